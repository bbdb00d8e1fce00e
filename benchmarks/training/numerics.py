"""What steps leave behind, gradients first, compared with eager's, and with a run of eager in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from benchmarks.run import relative_error
from benchmarks.training.tasks import Task

STEPS = 2
"""The first step compiles; the second runs what was compiled."""
VANISHING = 1e-3
"""Relative error of eager's own gradient, against float64, from which on it is called rounding noise: it should be zero
(the bias of a key in attention, or before a batch-norm; nearly, the scale of a batch-norm before another), and an error
relative to it says nothing."""
NUDGES = 4
"""Further runs of eager with parameters and inputs an ulp aside: they show what rounding does where a relu or a maximum
is on the edge."""
ENOUGH = 1e-5
"""A relative error that needs no excuse."""

State = dict[str, Tensor | None]


class _Wide(TorchDispatchMode):
    """Every operator that is asked for float32 gives float64: models name the type for their norms and rotations."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def widened(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        return func(*tree_map(widened, args), **tree_map(widened, kwargs or {}))


def gradients(task: Task) -> State:
    return {f"gradient of {name}": leaf.grad for name, leaf in task.leaves().items()}


def after(step: Callable[[], object], task: Task, steps: int = STEPS) -> State:
    """Gradients, parameters and buffers after some steps, by name."""
    for _ in range(steps):
        step()
    state = gradients(task)
    if task.optimizer is not None:
        state |= dict(task.module.named_parameters())
    state |= dict(task.module.named_buffers())
    return {name: None if value is None else value.detach().clone() for name, value in state.items()}


def exact(task: Task) -> State:
    """The state after eager's steps in float64."""
    wide = task.copy()
    wide.module.double()
    wide.inputs = tuple(x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
                        for x in wide.inputs)
    torch.set_default_dtype(torch.float64)
    try:
        with _Wide():
            return after(wide.step("eager"), wide)
    finally:
        torch.set_default_dtype(torch.float32)


def _errors(expected: State, actual: State) -> dict[str, float]:
    """The relative error of each tensor; infinite where one of both is None, or the shapes differ."""
    errors = {}
    for name, want in expected.items():
        got = actual[name]
        if want is None or got is None:
            errors[name] = 0.0 if want is got else float("inf")
        else:
            errors[name] = relative_error(want, got) if want.shape == got.shape else float("inf")
    return errors


def nudged(task: Task, seed: int) -> Task:
    """A copy whose parameters and inputs are each an ulp (or none) larger or smaller."""
    copy = task.copy()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for x in (*copy.module.parameters(), *copy.inputs):
            if x.is_floating_point():
                # the same for a task on any device
                drawn = torch.rand(x.shape, generator=generator, device=generator.device)
                x += x * (drawn.to(x.device) * 2 - 1) * torch.finfo(x.dtype).eps
    return copy


class Judge:
    """Compares states with `expected`, eager's, and with the same in float64, as far from which eager's own roundings
    are."""

    def __init__(self, task: Task, expected: State) -> None:
        self.expected = expected
        self.exact = exact(task)
        own = _errors(self.exact, expected)
        self.vanishing = {name for name, error in own.items() if VANISHING < error < float("inf")}
        for seed in range(NUDGES):
            other = nudged(task, seed)
            again = _errors(self.exact, after(other.step("eager"), other))
            own = {name: max(error, again[name]) for name, error in own.items()}
        self.own = own

    def judge(self, actual: State) -> dict[str, Any]:
        """`error`: the largest against eager but for tensors that vanish, and `worst`, where. `exact_error`: the same
        against float64. `beyond`: the largest distance from float64 of any tensor in units of eager's own, or of
        `ENOUGH` if that is less. Infinite: a gradient is missing, too many, or NaN."""
        against, exact = _errors(self.expected, actual), _errors(self.exact, actual)
        counted = [name for name in against if name not in self.vanishing]
        worst = max(counted, key=against.__getitem__)
        return {
            "error": against[worst], "worst": worst, "exact_error": max(exact[name] for name in counted),
            "own_error": max(self.own[name] for name in counted),
            "beyond": max(error / max(self.own[name], ENOUGH) for name, error in exact.items()),
        }  # fmt: skip
