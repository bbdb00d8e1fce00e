"""A function and its derivative as one recorded graph, decomposed and run on real tensors beside eager's engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from framesmith.fake.recorder import Recorder
from framesmith.graph.interpreter import run
from framesmith.prims.decompose import decompose
from tests.prims.harness import targets

Function = Callable[..., Any]


def joint_graph(function: Function, inputs: list[torch.Tensor], tangents: list[torch.Tensor]) -> fx.Graph:
    """(*inputs, *tangents) -> (*outputs, *gradients of those inputs that require one and are reached)."""
    rec = Recorder(below_autograd=False)
    fakes = [rec.input(x, f"x{i}") for i, x in enumerate(inputs)]
    with rec:
        outs = tree_leaves(function(*fakes))
        given = [rec.input(t, f"t{i}") for i, t in enumerate(tangents)]
        grads = _gradients(outs, fakes, given)
    return rec.finish([*outs, *grads])


def _gradients(outs: list[torch.Tensor], inputs: list[Any], tangents: list[torch.Tensor]) -> list[torch.Tensor]:
    asked = [x for x in inputs if x.requires_grad]
    grads = torch.autograd.grad([o for o in outs if o.requires_grad], asked, tangents, allow_unused=True)
    return [g for g in grads if g is not None]


def _copies(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.requires_grad) for x in inputs]


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Shape, dtype, and the strides that matter."""
    strides = [s for n, s in zip(tensor.shape, tensor.stride()) if n != 1] if tensor.numel() else []
    return tuple(tensor.shape), tensor.dtype, strides


def _check_layout(node: fx.Node, value: Any) -> None:
    # of what has gaps, eager's has gaps too
    if node.op == "call_function" and node.target is not torch.ops.aten.copy.default:
        for fake, real in zip(tree_leaves(node.meta["val"]), tree_leaves(value)):
            if isinstance(real, torch.Tensor):
                assert _layout(fake) == _layout(real), (node.format_node(), fake, real.shape, real.stride(), real.dtype)


def check_joint(
    function: Function, *inputs: torch.Tensor, extern: bool | tuple[str, ...] = False, exact: bool = True,
    tolerance: float | None = None
) -> fx.Graph:
    """Records outputs and gradients of `function`; recorded graph and prims give what eager gives, written inputs too.

    `extern` says which calls of ATen may remain; `exact`, that each recorded layout is eager's; `tolerance`, absolute
    and relative, what rounding within eager's operators is worth (None: what the dtype stands for). Returns the graph
    of prims.
    """
    given = list(inputs)
    own = _copies(given)
    outs = [o for o in tree_leaves(function(*own)) if isinstance(o, torch.Tensor)]
    tangents = [torch.randn_like(o) for o in outs if o.requires_grad]
    expected = [*outs, *_gradients(outs, own, tangents)]
    graph = joint_graph(function, given, tangents)
    prims = decompose(graph, strict=True)
    left = {str(one).removeprefix("aten.").removesuffix(".default")
            for one in targets(prims) if isinstance(one, torch._ops.OpOverload)}
    assert extern is True or left <= {*(extern or ()), "copy_"}, f"calls left: {left}"
    for one, trace in ((graph, _check_layout if exact else None), (prims, None)):
        arguments = _copies(given)
        with torch.no_grad():
            actual = run(one, [*arguments, *tangents], trace=trace)
        for a, b in zip((*actual, *arguments), (*expected, *own), strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False)
    return prims
