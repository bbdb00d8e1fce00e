"""Sizes of tensors that vary from call to call, and numbers computed of them."""

from __future__ import annotations

from typing import Any

from framesmith.symbolic.node import SYMBOLIC, specialised

from ..sources import Source
from .base import Tracker


class Sym(Tracker):
    """A `torch.SymInt`, `SymFloat` or `SymBool` over symbols of the shape environment; Python operators on it run for
    real, and whoever needs the value guards it."""

    __slots__ = ("source", "value")

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.value = value
        self.source = source

    def pytype(self) -> type:
        return SYMBOLIC[type(self.value)]

    def real(self, tracer: Any) -> Any:
        return self.value

    def truth(self, tracer: Any) -> bool:
        return bool(self.value)

    def assumed(self, tracer: Any) -> tuple[Any]:
        """The value, which a guard holds on to."""
        return (specialised(self.value),)

    def get(self, tracer: Any, name: str) -> Tracker:
        return tracer.fold(getattr, (self.value, name))

    def key(self, tracer: Any) -> Any:
        return int(self.value)
