"""Optimisers: their Python is followed, without what it says to profilers and to torch.compile."""

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
    """A region for a profiler, which sees compiled code as one call."""
    return tracer.made(contextlib.nullcontext).call(tracer, [], {})


def _use_grad(tracer: Any, fn: t.Function, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Call an optimiser's `step` in the optimiser's grad mode, as its wrapper does; the wrapper's breaks, which are for
    torch.compile's sake, are left out."""
    step = dict(zip(fn.code.co_freevars, fn.value.__closure__ or ()))["func"].cell_contents  # type: ignore[union-attr]
    return tracer.made(in_grad_mode_of).call(tracer, [tracer.made(step), *args], kwargs)


@calls(own._get_value)
def _get_value(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """A number that Python computes with, as in eager: not what a program that is being compiled gets. As a count of
    steps, or a product of momenta, it divides what no count makes an error of."""
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
    """Tensors alike are one group, under their device and dtype as in eager; torch says None to a compiler."""
    first = args[0].items_list(tracer)[0].items_list(tracer)  # type: ignore[attr-defined]
    kinds = {(x.fake.device, x.fake.dtype) for x in first if isinstance(x, t.Tensor)}
    return tracer.made(in_one_group).call(tracer, [args[0], *map(tracer.made,
                                                                 kinds.pop() if len(kinds) == 1 else (None, None))], {})


def _branching(name: str, python: Callable[..., None]) -> None:
    """Calls of the two ways of an optimiser are calls of `python`, unless torch's own Python of it does not branch."""
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
