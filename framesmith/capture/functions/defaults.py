"""Changes of torch's global state. The default dtype and device are changed for real during capture, set back when it ends, and the
changes replayed; seeds are set by residual code."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import CONSTANT_METHODS, calls

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


@calls(torch.set_default_dtype)
def _set_dtype(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    cx.dtypes.change()
    return cx.fold_call(torch.set_default_dtype, args, kwargs)


@calls(torch.set_default_device)
def _set_device(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    done = cx.fold_call(torch.set_default_device, args, kwargs)
    cx.device_changes.append((torch.set_default_device, tuple([a.real(cx) for a in [*args, *kwargs.values()]])))
    return done


@calls(torch.get_default_device)
def _get_device(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return cx.fold_call(torch.get_default_device, args, kwargs)


def _enter(cx: Any, device: t.Const, args: Args, kwargs: Kwargs) -> t.Tracker:
    """`with torch.device(...)`"""
    cx.folded(device.value.__enter__, ())
    cx.device_changes.append((device.value.__enter__, ()))
    return device


def _exit(cx: Any, device: t.Const, args: Args, kwargs: Kwargs) -> t.Tracker:
    cx.folded(device.value.__exit__, (None, None, None))
    changes = cx.device_changes
    if changes and changes[-1][0].__name__ == "__enter__":
        changes.pop()
    else:
        changes.append((device.value.__exit__, (None, None, None)))
    return t.NONE


def _seed(cx: Any, setter: Any, seed: t.Tracker) -> None:
    number = cx.folded(int, (seed.real(cx),))
    if not -(1 << 63) <= number < 1 << 64:
        raise Unsupported("a seed that torch refuses")
    cx.seeds.set(setter, number)


@calls(torch.manual_seed)
def _manual_seed(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    _seed(cx, torch.manual_seed, args[0] if args else kwargs["seed"])
    return cx.made(torch.default_generator)


def _seed_generator(cx: Any, generator: t.Const, args: Args, kwargs: Kwargs) -> t.Tracker:
    _seed(cx, generator.value.manual_seed, args[0] if args else kwargs["seed"])
    return generator


CONSTANT_METHODS[(torch.Generator, "manual_seed")] = _seed_generator
CONSTANT_METHODS[(torch.device, "__enter__")] = _enter
CONSTANT_METHODS[(torch.device, "__exit__")] = _exit

__all__: list[str] = []
