"""Torch function and dispatch modes of this thread."""

from __future__ import annotations

import torch
from torch.utils._device import DeviceContext


def default_device() -> torch.device | None:
    """What `torch.set_default_device` set; it lives in a function mode. None also when another mode is active."""
    if torch._C._len_torch_function_stack() != 1:
        return None
    mode = torch._C._get_function_stack_at(0)
    return mode.device if type(mode) is DeviceContext else None


def foreign_mode() -> bool:
    """A mode of the user's is active: it is to see each operator, so nothing is compiled beneath it."""
    functions = torch._C._len_torch_function_stack()
    return functions > 1 or functions == 1 and default_device() is None or torch._C._len_torch_dispatch_stack() > 0


__all__ = ["default_device", "foreign_mode"]
