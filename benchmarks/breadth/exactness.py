"""What to make of a difference between compiled and eager: whether it is rounding, which a choice among nearly equal
values may enlarge, or eager computes something else where the program asks whether it is being compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.comparing import TOLERANCE, assert_same, error, leaves, metadata

Call = Callable[[nn.Module, dict[str, Any]], Any]
_LEEWAY = 1.5
_SHAKES = 16


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


class Rounding:
    """Whether differences from eager are rounding alone, of one model: see `excuses`. `compiled`: compiles as the model
    was compiled."""

    def __init__(self, model: nn.Module, compiled: Callable[[nn.Module], Any], call: Call) -> None:
        self._model, self._call = model, call
        self._wide = copy.deepcopy(model).double()
        self._compiled = compiled(self._wide)

    def excuses(self, ours: Any, eager: Any, inputs: Callable[[], dict[str, Any]]) -> str | None:
        """A note if `ours` differs by rounding, else None. Both are required: compiled in float64, the model equals
        eager in float64; and each element of `ours` that differs is as near to eager's as eager's own is when
        parameters and inputs change in their last bits."""
        wide = [self._call(model, {k: _wide(v) for k, v in inputs().items()}) for model in (self._compiled, self._wide)]
        assert_same(*wide)
        shaken = [dict(leaves(self._call(_shaken(self._model, seed), _shaken_inputs(inputs(), seed))))
                  for seed in range(_SHAKES)]
        mine, worst = dict(leaves(ours)), 0.0
        for path, b in leaves(eager):
            if not isinstance(b, Tensor):
                continue
            a = mine[path]
            if metadata(a) != metadata(b) or not _within(a, b, [one[path] for one in shaken]):
                return None
            worst = max(worst, error(a, b)) if b.is_floating_point() else worst
        return f"equal in float64; {worst:.1e} off, as eager by a change of last bits"


def _within(a: Tensor, b: Tensor, shaken: list[Tensor]) -> bool:
    """Whether each element of `a` is as near to that of `b` as one of `shaken` is, by a factor of 1.5, or equal but for
    the tolerance."""
    if b.numel() == 0 or torch.equal(a, b):
        return True
    wide = torch.complex128 if b.is_complex() else torch.float64
    ours, eager, others = a.to(wide), b.to(wide), torch.stack(shaken).to(wide)
    moved = (others - eager).abs().amax(0).nan_to_num(0.0, 0.0)
    finite = eager.isfinite()
    allowed = TOLERANCE * eager[finite].abs().max() if b.is_floating_point() and finite.any() else 0.0
    near = (ours - eager).abs() <= _LEEWAY * moved + allowed
    return bool((near | (ours == eager) | ours.isnan() & eager.isnan()).all())


def _shaken(model: nn.Module, seed: int) -> nn.Module:
    """A copy whose parameters and buffers differ in their last two bits."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in [*other.parameters(), *other.buffers()]:
            if value.is_floating_point():
                value.data = _shake(value.data, generator)
    return other


def _shaken_inputs(inputs: dict[str, Any], seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {k: _shake(v, generator) if isinstance(v, Tensor) and v.is_floating_point() else v
            for k, v in inputs.items()}


def _shake(value: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.rand(value.shape, generator=generator, dtype=value.dtype) * 2 - 1
    return value + value * noise * (2 * torch.finfo(value.dtype).eps)


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


__all__ = ["Rounding", "compiles_otherwise", "raises_when_compiled"]
