"""Optimisers: their Python is captured, without its calls for profilers and for torch.compile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as own

from .. import trackers as t
from ..polyfills import branching
from ..polyfills.functions import in_grad_mode_of, in_one_group
from ..registry import CODES, by_name, calls, named
from ..trackers import Args, Kwargs


@calls(torch.autograd.profiler.record_function)
def _record_function(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Ignore a profiler's region: a profiler sees compiled code as one call."""
    return tracer.made(contextlib.nullcontext).call(tracer, [], {})


def _use_grad(tracer: Any, fn: t.Function, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Call an optimiser's `step` in the optimiser's grad mode, as its wrapper does; the wrapper's breaks, which are for
    torch.compile's sake, are left out."""
    step = dict(zip(fn.code.co_freevars, fn.value.__closure__ or ()))["func"].cell_contents  # type: ignore[union-attr]
    return tracer.made(in_grad_mode_of).call(tracer, [tracer.made(step), *args], kwargs)


@calls(own._get_value)
def _get_value(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Return a number that Python computes with, as in eager, not the tensor that a compiled program gets. As a count
    of steps, or a product of momenta, it never makes a division fail."""
    if not isinstance(args[0], t.Tensor):
        return args[0]
    found = args[0].get(tracer, "item").call(tracer, [], {})
    if type(found) is t.Data:
        found.total = True
    return found


@calls(own._stack_if_compiling)
def _stack_if_compiling(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return args[0]


@calls(own.Optimizer._group_tensors_by_device_and_dtype)
def _grouped(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Group tensors by device and dtype as in eager; under a compiler, torch would group by None."""
    first = args[0].items_list(tracer)[0].items_list(tracer)  # type: ignore[attr-defined]
    kinds = {(x.fake.device, x.fake.dtype) for x in first if isinstance(x, t.Tensor)}
    return tracer.made(in_one_group).call(tracer, [args[0], *map(tracer.made,
                                                                 kinds.pop() if len(kinds) == 1 else (None, None))], {})


def _branching(name: str, python: Callable[..., None]) -> None:
    """Let calls of both implementations of an optimiser be calls of `python`, except for `capturable` ones, which do
    not branch."""
    for way in ("single", "multi"):
        path = f"torch.optim.{name}._{way}_tensor_{name}"

        @by_name(path)
        def _step(tracer: Any, args: Args, kwargs: Kwargs, path: str = path) -> t.Tracker:
            if kwargs["capturable"].truth(tracer):
                return tracer.inline(tracer.made(named(path)), args, kwargs)
            return tracer.made(python).call(tracer, args, kwargs)


_branching("radam", branching.radam)
_branching("asgd", branching.asgd)
CODES[id(own._use_grad_for_differentiable(lambda self: None).__code__)] = _use_grad
