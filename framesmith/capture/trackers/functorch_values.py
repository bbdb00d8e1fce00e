"""The values that pass between captured code and a function transform that runs for real on fakes."""

from __future__ import annotations

from typing import Any

from framesmith.util.errors import Unsupported

from .base import Tracker
from .statics import Static
from .tensors import Tensor


class Inner(Tensor):
    """A tensor within a transform: a wrapper of torch's around fakes, which lives as long as the transform's level."""

    __slots__ = ()

    def known(self, tracer: Any) -> Any:
        return None

    def describe(self) -> str:
        return "a tensor within a function transform"

    def set(self, tracer: Any, name: str, value: Tracker) -> None:
        raise Unsupported(f"assignment to attribute {name!r} of a tensor within a function transform")

    delete = set  # type: ignore[assignment]


class Handed:
    """Any value as a leaf of the arguments or the result of a transform."""

    __slots__ = ("tracker",)

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker


class Pullback(Static):
    """The function that `torch.func.vjp` gives: it holds the graph of this capture."""

    __slots__ = ()

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        return tracer.torch_call(self.value, args, kwargs)
