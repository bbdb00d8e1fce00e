"""Record a function on fakes, run the graph on the real inputs, and compare with eager."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils._pytree import tree_leaves

from framesmith.fake import FakeTensor, Recorder


def run(graph: Graph, inputs: list) -> tuple:
    """Executes the graph's nodes in order with the real operators."""
    env: dict[Node, Any] = {}
    feed = iter(inputs)
    for node in graph.nodes:
        if node.op == "placeholder":
            env[node] = node.meta["constant"] if "constant" in node.meta else next(feed)
            continue
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
        if node.op == "output":
            return tuple(args[0])
        assert (node.target is operator.getitem or not node.target._schema.is_mutable
                or node.target is torch.ops.aten.copy_.default)
        env[node] = node.target(*args, **kwargs)
        check_val(node, env[node])
    raise AssertionError("no output")


def check_val(node: Node, real: Any) -> None:
    for val, out in zip(tree_leaves(node.meta["val"]), tree_leaves(real)):
        if isinstance(val, FakeTensor) and isinstance(out, torch.Tensor):
            assert tuple(val.shape) == tuple(out.shape), (node.format_node(), val, out.shape)
            assert val.dtype == out.dtype, (node.format_node(), val, out.dtype)


def same_strides(shape: Any, a: tuple, b: tuple) -> bool:
    return 0 in shape or all(n == 1 or s == t for n, s, t in zip(shape, a, b))


def record(fn: Any, inputs: list) -> tuple[Graph, list]:
    rec = Recorder()
    fakes = [rec.input(t, f"arg{i}") if isinstance(t, torch.Tensor) else t for i, t in enumerate(inputs)]
    with torch.no_grad(), rec:
        leaves = tree_leaves(fn(*fakes))
    return rec.finish(leaves), leaves


def clone(t: Any) -> Any:
    if not isinstance(t, torch.Tensor):
        return t
    extent = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) if t.numel() else 0
    return t.detach().as_strided((extent,), (1,)).clone().as_strided(t.shape, t.stride())


def check(fn: Any, *inputs: Any, seed: int | None = None, tol: float = 0.0) -> Graph:
    """`fn` recorded and run gives what eager gives: values, shapes, strides, dtypes, and writes into its inputs."""
    graph, fakes = record(fn, list(inputs))
    graph.lint()
    eager_in = [clone(t) for t in inputs]
    ours_in = [clone(t) for t in inputs]
    with torch.no_grad():
        if seed is not None:
            torch.manual_seed(seed)
        expected = tree_leaves(fn(*eager_in))
        if seed is not None:
            torch.manual_seed(seed)
        got = run(graph, [t for t in ours_in if isinstance(t, torch.Tensor)])
    assert len(expected) == len(got)
    for want, fake, out in zip(expected, fakes, got):
        if not isinstance(want, torch.Tensor):
            assert want == out
            continue
        assert want.shape == fake.shape == out.shape, (want.shape, fake.shape, out.shape)
        assert want.dtype == fake.dtype == out.dtype, (want.dtype, fake.dtype, out.dtype)
        assert same_strides(want.shape, want.stride(), fake.stride()), (want.shape, want.stride(), fake.stride())
        torch.testing.assert_close(out, want, rtol=tol, atol=tol, equal_nan=True)
    for want, out in zip(eager_in, ours_in):
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(out, want, rtol=tol, atol=tol, equal_nan=True)
    return graph
