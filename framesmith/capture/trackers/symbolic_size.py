"""Dynamic sizes of tensors, and numbers computed from them."""

from __future__ import annotations

from typing import Any

from framesmith.symbolic.node import SYMBOLIC, specialised

from .base import Tracker


class Sym(Tracker):
    """A `torch.SymInt`, `SymFloat` or `SymBool` over symbols of the shape environment; Python operators on it run for
    real, and reading its value adds a guard."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def pytype(self) -> type:
        return SYMBOLIC[type(self.value)]

    def real(self, tracer: Any) -> Any:
        return self.value

    def truth(self, tracer: Any) -> bool:
        return bool(self.value)

    def assumed(self, tracer: Any) -> tuple[Any]:
        """Return the value, and guard it."""
        return (specialised(self.value),)

    def get(self, tracer: Any, name: str) -> Tracker:
        return tracer.fold(getattr, (self.value, name))

    def key(self, tracer: Any) -> Any:
        return int(self.value)
