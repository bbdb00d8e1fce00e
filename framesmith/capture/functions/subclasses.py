"""Rows that make tensors of subclasses, and the row of torch.Tensor's own `__torch_function__`."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import get_default_nowrap_functions

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import CALLS, by_position, calls, method
from ..trackers import Args, Kwargs


def _converting(tracer: Any, cls: t.Tracker, func: t.Tracker, types: t.Tracker, args: t.Tracker | None = None,
                kwargs: t.Tracker | None = None) -> t.Tracker:
    """Answer as torch.Tensor's own `__torch_function__` does."""
    kind = cls.real(tracer)
    if not all(issubclass(kind, other.real(tracer)) for other in types.items_list(tracer)):
        return t.Const(NotImplemented)
    with tracer.without_functions():
        named = {} if kwargs in (None, t.NONE) else tracer.mapping(kwargs)
        out = func.call(tracer, [] if args is None else args.items_list(tracer), named)
        wraps = not isinstance(func, t.Static) or func.value not in get_default_nowrap_functions()
        return tracer.convert(out, kind) if wraps else out


@calls(torch._C._disabled_torch_function_impl)
def _of_nobody(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Call `func(*args, **kwargs)` without asking any class; the arguments are `(func, types, args, kwargs)`."""
    with tracer.without_functions():
        given = args[2].items_list(tracer) if len(args) > 2 else []
        return args[0].call(tracer, given, tracer.mapping(args[3]) if len(args) > 3 else {})


@calls(torch._C.DisableTorchFunction)
def _without_modes(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Disable subclasses; function modes, that of the default device among them, must not be active."""
    if tracer.modes.functions or torch._C._len_torch_function_stack():
        raise Unsupported("DisableTorchFunction in a function mode")
    return t.FunctionsGuard(torch._C.DisableTorchFunction)


@method(t.Tensor, "as_subclass")
def _as_subclass(tracer: Any, x: t.Tensor, cls: t.Tracker) -> t.Tracker:
    return tracer.as_subclass(x, cls.real(tracer))


@calls(torch.Tensor._make_subclass)
def _make_subclass(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Make a tensor without history over the same memory."""
    if kwargs or len(args) > 3 or len(args) == 3 and args[2].truth(tracer):
        raise Unsupported("Tensor._make_subclass of a tensor that requires grad from then on")
    with tracer.without_functions():
        return tracer.as_subclass(tracer.torch_call(torch.Tensor.detach, args[1:2], {}), args[0].real(tracer))


@calls(torch.Tensor.__new__)
def _new(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Make a tensor as the legacy constructor does: of a tensor, of sizes, or of numbers."""
    of_tensor = len(args) == 2 and isinstance(args[1], t.Tensor)
    data = args[1] if of_tensor else CALLS[torch.Tensor](tracer, args[1:], kwargs)
    return tracer.as_subclass(data, args[0].real(tracer))


by_position({
    torch.Tensor.__torch_function__.__func__: _converting,  # type: ignore[attr-defined]
    torch._C._is_torch_function_enabled: lambda tracer: t.boolean(tracer.functions),
    torch._C.DisableTorchFunctionSubclass: lambda tracer: t.FunctionsGuard(torch._C.DisableTorchFunctionSubclass),
})
