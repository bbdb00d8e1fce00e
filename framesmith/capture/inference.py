"""Inference mode, entered for real while a program is followed that enters it; always left when capture ends, in
whatever way."""

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
        """Function modes of torch's own: what the program pushed, and such a mode that sees what is recorded."""

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


def in_mode(mode: bool) -> Callable[[Call, tuple[Any, ...]], tuple[Any, ...]]:
    """A function that calls a graph in inference mode, or out of it: for results that the program made so."""
    return _in_inference_mode if mode else _out_of_inference_mode


def _in_inference_mode(graph: Call, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    with torch._C._InferenceMode(True):
        return graph(inputs)


def _out_of_inference_mode(graph: Call, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    with torch._C._InferenceMode(False):
        return graph(inputs)


def made_in(mode: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that copies a tensor in inference mode, or out of it."""
    return _made_inferring if mode else _made_plainly


def _made_inferring(x: torch.Tensor) -> torch.Tensor:
    with torch._C._InferenceMode(True):
        return x.clone()


def _made_plainly(x: torch.Tensor) -> torch.Tensor:
    with torch._C._InferenceMode(False), torch.no_grad():
        return x.clone()
