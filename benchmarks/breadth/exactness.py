"""What to make of a difference between compiled and eager: whether both are as far from what float64 gives, or eager
computes something else where the program asks whether it is being compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.comparing import TOLERANCE, assert_same, error, leaves

Call = Callable[[nn.Module, dict[str, Any]], Any]
_LEEWAY = 1.5


@contextmanager
def said_to_compile() -> Iterator[None]:
    """`torch.compiler.is_compiling()` is true inside."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def compiles_otherwise(ours: Any, model: nn.Module, inputs: Callable[[], dict[str, Any]], call: Call) -> str | None:
    """A note if eager agrees with `ours` when the program is told that it is being compiled; else None."""
    with said_to_compile():
        told = call(model, inputs())
    try:
        assert_same(ours, told)
    except AssertionError:
        return None
    return "equal to eager under torch.compiler.is_compiling(), where the model itself computes otherwise"


def raises_when_compiled(problem: BaseException, model: nn.Module, inputs: Callable[[], dict[str, Any]],
                         call: Call) -> bool:
    """Whether eager raises the same as `problem` when the program is told that it is being compiled: the model's own
    fault."""
    with said_to_compile():
        try:
            call(model, inputs())
        except Exception as own:
            return type(own) is type(problem) and str(own) == str(problem)
    return False


def as_exact(ours: Any, eager: Any, model: nn.Module, inputs: Callable[[], dict[str, Any]], call: Call) -> str | None:
    """A note if each tensor of `ours` that differs is as near to what float64 gives as eager's is, by a factor of 1.5;
    else None."""
    wide = call(copy.deepcopy(model).double(), {k: _wide(v) for k, v in inputs().items()})
    exact, mine, theirs = dict(leaves(wide)), dict(leaves(ours)), dict(leaves(eager))
    worst = 0.0, 0.0
    for path, b in theirs.items():
        a, reference = mine[path], exact.get(path)
        if not isinstance(b, Tensor) or not b.is_floating_point() or error(a, b) <= TOLERANCE:
            continue
        if not isinstance(reference, Tensor) or reference.shape != b.shape:
            return None
        pair = error(a, reference), error(b, reference)
        if not pair[0] <= _LEEWAY * pair[1]:
            return None
        worst = max(worst, pair)
    return f"as near to float64 as eager: {worst[0]:.1e}, eager {worst[1]:.1e}"


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


__all__ = ["as_exact", "compiles_otherwise", "raises_when_compiled"]
