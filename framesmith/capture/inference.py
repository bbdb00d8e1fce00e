"""Inference mode, which capture enters for real when the program does, and always leaves when capture ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.util.errors import Unsupported

Call = Callable[[tuple[Any, ...]], tuple[Any, ...]]


class Inference:
    """One `torch._C._InferenceMode(mode)`; `before`: grad mode when it was entered."""

    __slots__ = ("before", "guard", "mode")

    def __init__(self, mode: bool) -> None:
        self.mode = mode
        self.before = torch.is_grad_enabled()
        self.guard = torch._C._InferenceMode(mode)
        self.guard.__enter__()


class Modes:
    """The modes that the program is in, outermost first."""

    __slots__ = ("active", "functions")

    def __init__(self) -> None:
        self.active: list[Inference] = []
        self.functions: list[tuple[Any, Any]] = []
        """Torch's own function modes: the mode that the program pushed, and the one that stands for it while
        recording."""

    def enter(self, mode: bool) -> Inference:
        self.active.append(Inference(mode))
        return self.active[-1]

    def leave(self, entered: Inference | None) -> None:
        if not self.active or self.active[-1] is not entered:
            raise Unsupported("inference mode is not left in the order in which it was entered")
        self.active.pop().guard.__exit__(None, None, None)

    def __enter__(self) -> Modes:
        return self

    def __exit__(self, *exc: Any) -> None:
        while self.active:
            self.active.pop().guard.__exit__(None, None, None)


def autocast_depth() -> int:
    """Count the autocast contexts that are open in this thread."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def set_autocast_depth(depth: int) -> None:
    """Open or close that many."""
    now = autocast_depth()
    for _ in range(depth - now):
        torch.autocast_increment_nesting()
    for _ in range(now - depth):
        torch.autocast_decrement_nesting()


def call_in_mode(mode: bool, graph: Call, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Call a graph in inference mode, or outside it, as the program made its results."""
    with torch._C._InferenceMode(mode):
        return graph(inputs)


def copy_in_mode(mode: bool, x: torch.Tensor) -> torch.Tensor:
    """Copy a tensor in inference mode, or outside it."""
    with torch._C._InferenceMode(mode), torch.no_grad():
        return x.clone()
