"""Torch function and dispatch modes of this thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import _pop_mode, _push_mode
from torch.utils import _device
from torch.utils._device import DeviceContext


def default_device() -> torch.device | None:
    """Return the device that `torch.set_default_device` set; it lives in a function mode. None also when another mode
    is active."""
    if torch._C._len_torch_function_stack() != 1:
        return None
    mode = torch._C._get_function_stack_at(0)
    return mode.device if type(mode) is DeviceContext else None


def foreign_mode() -> bool:
    """Return whether a mode of the user's is active, or `torch.jit.trace` records: these must see each operator, so
    nothing is compiled."""
    functions = torch._C._len_torch_function_stack()
    return torch._C._is_torch_function_all_disabled() or functions > 1 or functions == 1 and default_device() is None \
        or torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None


def recomputing() -> bool:
    """Return whether a backward is recomputing a forward for the tensors that it saves: as many as the first time."""
    return (torch._C._current_graph_task_id() >= 0
            and torch._C._autograd._top_saved_tensors_default_hooks(True) is not None)


@contextmanager
def under_functions(pushed: list[tuple[Any, Any]]) -> Iterator[None]:
    """Enter the function modes of captured code within the block, given as (the program's mode, the mode to enter)."""
    for _, mode in pushed:
        _push_mode(mode)
    try:
        yield
    finally:
        for _ in pushed:
            _pop_mode()


def devices() -> tuple[Any, ...]:
    """Return the thread's state that `with torch.device(...)` and `torch.set_default_device` change."""
    modes = [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
    return modes, _device.CURRENT_DEVICE, getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


@contextmanager
def without_default_device() -> Iterator[None]:
    """Disable the program's default device within the block, for code of the compiler, which names its devices."""
    kept = devices()
    if not kept[0]:
        yield
        return
    restore_devices(([], None, None))
    try:
        yield
    finally:
        restore_devices(kept)


def restore_devices(kept: tuple[Any, ...]) -> None:
    """Restore the state that `devices` returned."""
    modes, current, default = kept
    while torch._C._len_torch_function_stack():
        _pop_mode()
    for mode in modes:
        _push_mode(mode)
    _device.CURRENT_DEVICE = current
    torch._GLOBAL_DEVICE_CONTEXT.device_context = default
