"""The functions that the Python of torch.inference_mode and torch.autocast calls."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import calls, named
from ..trackers import Args, Kwargs


@calls(torch._C._InferenceMode)
def _inference_mode(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.InferenceGuard(args[0].truth(tracer) if args else True)


_AUTOCAST_DEVICES = ("cpu", "cuda")


def _autocast_setter(fn: Any) -> None:
    """Make the row of a setter of autocast's state: set for real during capture, restored by `entry`, and replayed by
    `effects`."""

    @calls(fn)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        if args and isinstance(args[0], t.Const) and isinstance(args[0].value,
                                                                str) and args[0].value not in _AUTOCAST_DEVICES:
            raise Unsupported(f"autocast on {args[0].value}")
        done = tracer.fold_call(fn, args, kwargs)
        tracer.recorder.autocast = tuple([d for d in _AUTOCAST_DEVICES if torch.is_autocast_enabled(d)])
        return done


for _setter in (torch.set_autocast_enabled, torch.set_autocast_dtype, torch.autocast_increment_nesting,
                torch.autocast_decrement_nesting,
                torch.clear_autocast_cache, torch.set_autocast_cache_enabled):
    _autocast_setter(_setter)


@calls(torch._C._is_torch_function_mode_enabled)
def _function_mode(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Ignore function modes: the only mode from outside under which anything is captured is that of the default device,
    which autocast does not depend on."""
    return t.boolean(bool(tracer.modes.functions))


# Function modes of torch's own without state: what they make of a call is recorded as their own Python makes it.
_STATELESS = ("torch._dynamo._trace_wrapped_higher_order_op.TransformGetItemToIndex",)


@calls(torch._C._push_on_torch_function_stack)
def _push(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    kind = args[0].pytype()
    if not any(kind is named(path) for path in _STATELESS):
        raise Unsupported(f"a function mode of class {kind.__qualname__} entered in captured code")
    tracer.modes.functions.append((args[0], kind()))
    return t.NONE


@calls(torch._C._pop_torch_function_stack)
def _pop(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if not tracer.modes.functions:
        raise Unsupported("the exit of a function mode entered before")
    return tracer.modes.functions.pop()[0]
