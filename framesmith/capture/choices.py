"""Operators on a value chosen by a tensor's data: they are applied to both values, or to a choice that is made in the
graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from framesmith.graph.purity import is_view

from . import trackers as t
from .operators import COMPARED
from .trackers.symbolic_number import is_symbolic

aten = torch.ops.aten
_EITHER = (*COMPARED, operator.add, operator.sub, operator.mul, operator.truediv)
"""Operators with the same result for a zero-dimensional tensor and for the number of its value."""
_FINITE = frozenset((
    "sum", "mean", "add", "sub", "rsub", "mul", "neg", "abs", "relu", "clamp", "clamp_min", "clamp_max", "sin", "cos",
    "tanh", "sigmoid",
    "gelu", "silu", "softmax", "log_softmax", "max", "min", "amax", "amin", "maximum", "minimum", "where", "mm",
    "addmm", "bmm", "linear",
    "matmul", "dot", "mv", "conv1d", "conv2d", "convolution", "embedding", "mse_loss", "l1_loss", "smooth_l1_loss",
    "cross_entropy_loss",
    "nll_loss", "nll_loss_forward", "binary_cross_entropy_with_logits", "_to_copy", "clone", "copy", "cat", "stack",
    "select_scatter",
    "slice_scatter", "getitem", "gather", "index",
))
"""Operators whose derivatives are finite at finite values: they map a gradient of 0 to 0."""


def chooses(condition: t.Tracker) -> bool:
    """Return whether a comparison's result may decide between values in residual code."""
    return isinstance(condition, t.Tensor) and condition.fake.numel() == 1


def applied(tracer: Any, apply: Callable[..., t.Tracker], fn: Callable[..., Any] | None,
            args: list[t.Tracker]) -> t.Tracker:
    """Return the operator `fn` of a chosen value; `apply` applies it to trackers."""
    at = next(k for k, a in enumerate(args) if type(a) is t.Chosen)
    chosen: t.Chosen = args[at]  # type: ignore[assignment]
    others = args[:at] + args[at + 1:]
    if all(isinstance(a, t.Const) and not is_symbolic(a) for a in others):
        try:
            yes, no = (apply(*args[:at], side, *args[at + 1:]) for side in (chosen.yes, chosen.no))
        except t.CapturedError:
            raise chosen.refused() from None
        return t.Chosen(chosen.condition, yes, no)
    others = [_merged(tracer, a, [], fn in COMPARED) if type(a) is t.Chosen else a for a in others]
    if fn not in _EITHER or not all(isinstance(a, t.Tensor) for a in others):
        raise chosen.refused()
    one = _merged(tracer, chosen, others, fn in COMPARED)  # type: ignore[arg-type]
    return apply(*others[:at], one, *others[at:])


def _merged(tracer: Any, chosen: t.Chosen, others: list[t.Tensor], compares: bool) -> t.Tensor:
    """Return the choice as a tensor, for an operator that has `others` as its other operands."""
    yes, no = (_merged(tracer, side, others, compares) if type(side) is t.Chosen else side
               for side in (chosen.yes, chosen.no))
    a, b = (yes, no) if isinstance(yes, t.Tensor) else (no, yes)
    if not isinstance(a, t.Tensor) or a.pyclass is not torch.Tensor:
        raise chosen.refused()
    if not (_are_alike(a, b) if isinstance(b, t.Tensor) else _is_replaced(a, b, others)):
        raise chosen.refused()
    if not compares:
        _check_gradients(tracer, chosen, [a, b], others)
    if not isinstance(b, t.Tensor):
        b = t.Const(torch.tensor(b.value, dtype=a.fake.dtype).item())  # type: ignore[attr-defined]
    condition = tracer.torch_call(torch.reshape, [chosen.condition, tracer.made(())], {})
    sides = [a, b] if isinstance(yes, t.Tensor) else [b, a]
    return tracer.torch_call(torch.where, [condition, *sides], {})  # type: ignore[no-any-return]


def _are_alike(a: t.Tensor, b: t.Tensor) -> bool:
    one, other = ((x.fake.shape, x.fake.stride(), x.fake.dtype, x.fake.device, x.pyclass) for x in (a, b))
    return one == other


def _is_replaced(a: t.Tensor, b: t.Tracker, others: list[t.Tensor]) -> bool:
    """Return whether results have the type that they would have with the number `b`, and its value."""
    if (not isinstance(b, t.Const) or is_symbolic(b) or type(b.value) not in (int, float, bool) or a.fake.dim()
        or len(others) != 1):
        return False
    x, y = a.fake, others[0].fake
    if x.device != y.device or torch.result_type(x, y) != torch.result_type(b.value, y):
        return False
    if not x.dtype.is_floating_point and not (type(b.value) is not float
                                              and 0 <= b.value < 128) or abs(b.value) > 1 << 53:
        return False
    exact = torch.tensor(b.value, dtype=x.dtype).item() == b.value
    return exact or x.dtype in (torch.float32, torch.float64) and torch.result_type(x, y) is x.dtype


def _check_gradients(tracer: Any, chosen: t.Chosen, sides: list[t.Tracker], others: list[t.Tensor]) -> None:
    """Refuse a choice for which eager would give no gradient for an input, or where a gradient of 0 might become NaN on
    the way to one."""
    reached: list[set[Node]] = [_inputs(tracer, x, chosen) if isinstance(x, t.Tensor) else set() for x in sides]
    some, every = reached[0].union(*reached[1:]), reached[0].intersection(*reached[1:])
    if not some - every <= set().union(*[_inputs(tracer, x, None) for x in others]):
        raise chosen.refused()


def _inputs(tracer: Any, x: t.Tensor, chosen: t.Chosen | None) -> set[Node]:
    """Return the inputs that a gradient of `x` flows to; if `x` is chosen, all derivatives on the way must be
    finite."""
    todo, found = [tracer.recorder.nodes(x.fake)] if torch.is_grad_enabled() and tracer.wants_grad(
        x.fake) else [], set()
    while todo:
        node: Node = todo.pop()
        if node in found:
            continue
        found.add(node)
        if (chosen is not None and node not in tracer.differentiable and not is_view(node.target)
            and _name(node) not in _FINITE):
            raise chosen.refused()
        todo += filter(tracer.requires, node.all_input_nodes)
    return found & tracer.differentiable.keys()


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", "")).partition(".")[0]
