"""Events of a capture: what interpreting the program asks and does, in order. `replay` repeats it for other modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .sources import Source

Places = tuple[tuple[str, int, str], ...]


@dataclass(slots=True)
class GuardEvent:
    """A guard on `source` was assumed."""

    source: Source
    kind: str
    value: Any
    place: Places


@dataclass(slots=True)
class InputEvent:
    """The tensor at `source` is an input, `fake`."""

    source: Source
    fake: Any
    place: Places


@dataclass(slots=True)
class ObjectEvent:
    """The object at `source` got its tracker."""

    source: Source


@dataclass(slots=True)
class CallEvent:
    """A torch function was called on fakes, in a state of the thread, and gave `out`."""

    fn: Any
    args: list[Any]
    kwargs: dict[str, Any]
    out: Any
    stack: Places
    place: Places
    state: Any


Event = GuardEvent | InputEvent | ObjectEvent | CallEvent


def state_of_call(tracer: Any) -> Any:
    """Return the state of the thread on which a torch call depends."""
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return *modes, tracer.recorder.autocast, torch.get_default_dtype()
