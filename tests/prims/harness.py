"""One ATen call as a graph, decomposed and run on real tensors beside eager."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map_only

from framesmith.fake import Recorder
from framesmith.graph.interpreter import run
from framesmith.prims.decompose import decompose
from framesmith.prims.registry import rules


def recorded(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[fx.Graph, list[torch.Tensor]]:
    """The graph of the operators of which eager composes a call, and its inputs."""
    recorder = Recorder()
    inputs: list[torch.Tensor] = []

    def lift(real: torch.Tensor) -> torch.Tensor:
        inputs.append(real)
        return recorder.input(real, f"arg{len(inputs)}")

    given = tree_map_only(torch.Tensor, lift, (args, kwargs))
    with torch.no_grad(), recorder:
        out = target(*given[0], **given[1])
    graph = recorder.finish(tree_leaves(out))
    return graph, [*inputs, *[real for _, real in recorder.constants]]


def graph_of(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
             expected: Any) -> tuple[fx.Graph, list[torch.Tensor]]:
    """A graph of one call, with real tensors' metadata, and its inputs."""
    graph = fx.Graph()
    inputs: list[torch.Tensor] = []

    def lift(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            node = graph.placeholder(f"arg{len(inputs)}")
            node.meta["val"] = arg
            inputs.append(arg)
            return node
        return type(arg)(map(lift, arg)) if isinstance(arg, (tuple, list)) else arg

    node = graph.call_function(target, tuple(map(lift, args)), {name: lift(arg) for name, arg in kwargs.items()})
    node.meta["val"] = expected
    results = (node,)
    if isinstance(expected, tuple):
        results = tuple([graph.call_function(operator.getitem, (node, place)) for place in range(len(expected))])
        for result, val in zip(results, expected):
            result.meta["val"] = val
    graph.output(results)
    return graph, inputs


def check_meta(node: fx.Node, value: Any) -> None:
    """Every value has the shape and dtype that its node announces."""
    for spec, tensor in zip(*[one if isinstance(one, (tuple, list)) else (one,) for one in (node.meta["val"], value)]):
        if isinstance(tensor, torch.Tensor):
            assert tuple(tensor.shape) == spec.shape and tensor.dtype is spec.dtype, (node.format_node(), tensor.shape,
                                                                                      tensor.dtype, spec)


def targets(graph: fx.Graph) -> set[Any]:
    return {node.target for node in graph.nodes if node.op == "call_function"}


def check(target: Any, *args: Any, extern: bool = False, wide: bool = False, **kwargs: Any) -> fx.Graph:
    """Decompose one call and compare it with eager. An operator without a rule is recorded as its parts.

    `extern` says whether calls of ATen may remain; `wide`, that eager in 16 bits is no oracle, and eager in float32
    rounded is.
    """
    expected = target(*args, **kwargs)
    if isinstance(expected, list):
        expected = tuple(expected)
    graph, inputs = graph_of(target, args, kwargs, expected) if target in rules else recorded(target, args, kwargs)
    new = decompose(graph, strict=True)
    if not extern:
        left = {one for one in targets(new) if isinstance(one, torch._ops.OpOverload)}
        assert not left, f"{target} left {left}"
    actual = run(new, inputs, trace=check_meta)
    if wide:
        expected = _rounded(target(*[arg.float() if _is_short(arg) else arg for arg in args], **kwargs), expected)
    _compare(actual, expected if isinstance(expected, tuple) else (expected,))
    return new


def _is_short(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.is_floating_point() and arg.dtype.itemsize == 2


def _rounded(value: Any, like: Any) -> Any:
    return tuple(map(_rounded, value, like)) if isinstance(value, tuple) else value.to(like.dtype)


def _compare(actual: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected):
            if other is not None:
                _compare(one, other)
        return
    torch.testing.assert_close(actual, expected, equal_nan=True, check_stride=False)
