"""Guard objects of thread state: of inference mode, and of `__torch_function__`."""

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


class FunctionsGuard(Tracker):
    """`torch._C.DisableTorchFunctionSubclass()` or its like; `before`: the state in which it was entered, each time."""

    __slots__ = ("before", "cls")

    def __init__(self, cls: Any) -> None:
        self.source = None
        self.cls = cls
        self.before: list[bool] = []

    def pytype(self) -> type:
        return self.cls  # type: ignore[no-any-return]

    def get(self, tracer: Any, name: str) -> Tracker:
        return Bound(self, name) if name in ("__enter__", "__exit__") else super().get(tracer, name)

    def builtin_method(self, tracer: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        if name == "__enter__":
            self.before.append(tracer.functions)
            tracer.functions = False
        elif name == "__exit__" and self.before:
            tracer.functions = self.before.pop()
        else:
            return super().builtin_method(tracer, name, args, kwargs)
        return NONE
