"""The guard object behind torch.inference_mode."""

from __future__ import annotations

from typing import Any

import torch

from .base import Bound, Tracker
from .constants import NONE


class InferenceGuard(Tracker):
    """`torch._C._InferenceMode(mode)`; `entered`: what capture holds while the program is in it."""

    __slots__ = ("entered", "mode")

    def __init__(self, mode: bool) -> None:
        self.source = None
        self.mode = mode
        self.entered: Any = None

    def pytype(self) -> type:
        return torch._C._InferenceMode

    def get(self, tracer: Any, name: str) -> Tracker:
        return Bound(self, name) if name in ("__enter__", "__exit__") else super().get(tracer, name)

    def builtin_method(self, tracer: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        if name == "__enter__":
            self.entered = tracer.modes.enter(self.mode)
        elif name == "__exit__":
            tracer.modes.leave(self.entered)
            self.entered = None
        else:
            return super().builtin_method(tracer, name, args, kwargs)
        return NONE


__all__ = ["InferenceGuard"]
