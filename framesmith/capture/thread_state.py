"""The thread's torch state that capture depends on: read and restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace

import torch

from .inference import autocast_depth, set_autocast_depth
from .modes import default_device, devices, restore_devices
from .sources import GlobalState


def read_state() -> GlobalState:
    """Return the thread's state that capture depends on."""
    autocast = tuple([(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")])
    return GlobalState(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, torch.get_default_dtype(),
                       torch.are_deterministic_algorithms_enabled(), default_device(),
                       torch._C._is_torch_function_enabled(), autocast_depth(), torch.is_autocast_cache_enabled())


def casting(state: GlobalState) -> tuple[str, ...]:
    """Return the device types for which autocast is on."""
    return tuple([device for device, enabled, _ in state.autocast if enabled])


def restore_state(state: GlobalState) -> None:
    """Restore the state that capture may have changed."""
    torch._C._set_grad_enabled(state.grad_enabled)
    for device, enabled, dtype in state.autocast:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    if any(enabled for _, enabled, _ in state.autocast) or autocast_depth() != state.autocast_depth:
        torch.clear_autocast_cache()  # it may hold fakes
    set_autocast_depth(state.autocast_depth)
    torch.set_autocast_cache_enabled(state.autocast_cache)
    if torch.get_default_dtype() is not state.default_dtype:
        torch.set_default_dtype(state.default_dtype)


def handed_over() -> Callable[[], AbstractContextManager[None]]:
    """Return this thread's state, for another thread that captures on its behalf."""
    state, placed = read_state(), devices()
    cuda = torch.cuda.current_stream() if torch.cuda.is_initialized() else None

    @contextmanager
    def entered() -> Iterator[None]:
        before, kept = read_state(), devices()
        with ExitStack() as stack:
            if cuda is not None:
                stack.enter_context(torch.cuda.stream(cuda))
            if not state.torch_functions:
                stack.enter_context(torch._C.DisableTorchFunctionSubclass())
            stack.enter_context(torch.inference_mode(state.inference_mode))
            restore_state(replace(state, default_dtype=before.default_dtype))  # which is the process's
            restore_devices(placed)
            try:
                yield
            finally:
                restore_devices(kept)
                restore_state(replace(before, default_dtype=torch.get_default_dtype()))

    return entered
