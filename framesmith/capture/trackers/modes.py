"""Guard objects of thread state: of inference mode, and of `__torch_function__`."""

from __future__ import annotations

from typing import Any

import torch

from .base import Bound, Tracker
from .constants import NONE


class _Guard(Tracker):
    """The base of both: an object that is entered and exited."""

    __slots__ = ()

    def get(self, tracer: Any, name: str) -> Tracker:
        return Bound(self, name) if name in ("__enter__", "__exit__") else super().get(tracer, name)

    def builtin_method(self, tracer: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        if name not in ("__enter__", "__exit__"):
            return super().builtin_method(tracer, name, args, kwargs)
        self.enter(tracer) if name == "__enter__" else self.leave(tracer)
        return NONE

    def enter(self, tracer: Any) -> None:
        raise NotImplementedError

    leave = enter


class InferenceGuard(_Guard):
    """`torch._C._InferenceMode(mode)`; `entered`: the guard object that capture holds while the program is in the
    mode."""

    __slots__ = ("entered", "mode")
    cls = torch._C._InferenceMode

    def __init__(self, mode: bool) -> None:
        self.mode = mode
        self.entered: Any = None

    def enter(self, tracer: Any) -> None:
        self.entered = tracer.modes.enter(self.mode)

    def leave(self, tracer: Any) -> None:
        tracer.modes.leave(self.entered)
        self.entered = None


class FunctionsGuard(_Guard):
    """`torch._C.DisableTorchFunctionSubclass()` or its like; `before`: the state in which it was entered, each time."""

    __slots__ = ("before", "cls")

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.before: list[bool] = []

    def enter(self, tracer: Any) -> None:
        self.before.append(tracer.functions)
        tracer.functions = False

    def leave(self, tracer: Any) -> None:
        tracer.functions = self.before.pop()
