"""Changes of torch's global state. The default dtype and device are changed for real during capture and restored when
it ends, and residual code replays the changes; it also sets seeds."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import CONSTANT_METHODS, calls
from ..trackers import Args, Kwargs


@calls(torch.set_default_dtype)
def _set_dtype(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    tracer.dtypes.change()
    return tracer.fold_call(torch.set_default_dtype, args, kwargs)


@calls(torch.set_default_device)
def _set_device(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    done = tracer.fold_call(torch.set_default_device, args, kwargs)
    tracer.device_changes.append((torch.set_default_device, tuple([a.real(tracer) for a in [*args, *kwargs.values()]])))
    return done


def _enter(tracer: Any, device: t.Const, args: Args, kwargs: Kwargs) -> t.Tracker:
    """`with torch.device(...)`"""
    tracer.folded(device.value.__enter__, ())
    tracer.device_changes.append((device.value.__enter__, ()))
    return device


def _exit(tracer: Any, device: t.Const, args: Args, kwargs: Kwargs) -> t.Tracker:
    tracer.folded(device.value.__exit__, (None, None, None))
    changes = tracer.device_changes
    if changes and changes[-1][0].__name__ == "__enter__":
        changes.pop()
    else:
        changes.append((device.value.__exit__, (None, None, None)))
    return t.NONE


def _seed(tracer: Any, setter: Any, seed: t.Tracker) -> None:
    number = tracer.folded(int, (seed.real(tracer),))
    if not -(1 << 63) <= number < 1 << 64:
        raise Unsupported("a seed that torch refuses")
    tracer.seeds.set(setter, number)


@calls(torch.manual_seed)
def _manual_seed(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    _seed(tracer, torch.manual_seed, args[0] if args else kwargs["seed"])
    return tracer.made(torch.default_generator)


def _seed_generator(tracer: Any, generator: t.Const, args: Args, kwargs: Kwargs) -> t.Tracker:
    _seed(tracer, generator.value.manual_seed, args[0] if args else kwargs["seed"])
    return generator


CONSTANT_METHODS[(torch.Generator, "manual_seed")] = _seed_generator
CONSTANT_METHODS[(torch.device, "__enter__")] = _enter
CONSTANT_METHODS[(torch.device, "__exit__")] = _exit
