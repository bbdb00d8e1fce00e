"""One of two values, chosen by a tensor's data: the result of `max(x, 0)` for a tensor and a number."""

from __future__ import annotations

from typing import Any

from framesmith.util.errors import DataDependent

from .base import Tracker


class Chosen(Tracker):
    """`yes if condition else no`. Residual code chooses between the objects; operators choose in the graph, see
    `capture.choices`."""

    __slots__ = ("condition", "no", "yes")

    def __init__(self, condition: Tracker, yes: Tracker, no: Tracker) -> None:
        self.condition = condition
        self.yes = yes
        self.no = no

    def pytype(self) -> type:
        kind = self.yes.pytype()
        if kind is not self.no.pytype():
            raise self.refused()
        return kind

    def describe(self) -> str:
        return "what a tensor's data chooses"

    def refused(self) -> DataDependent:
        """Return the error of a use whose result differs for the two values."""
        return DataDependent(self.describe(),
                             hint="torch.maximum, torch.minimum and torch.where choose between tensors without a "
                                  "branch")

    def real(self, tracer: Any) -> Any:
        raise self.refused()

    truth = size = iterate = key = real

    def get(self, tracer: Any, name: str) -> Tracker:
        raise self.refused()

    set = delete = get  # type: ignore[assignment]
