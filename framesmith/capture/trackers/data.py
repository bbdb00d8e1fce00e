"""Python values of tensors' data: residual code makes them of what the graph gives; capture knows their type alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framesmith.util.errors import DataDependent

from .base import Tracker

_HINT = "keep it a tensor, or use it where its value decides nothing"


class Data(Tracker):
    """A number or text: `write(texts)` is its expression over the texts of `parts`, which cannot fail.

    It may be stored, returned, shown and computed with; whoever needs its value refuses.
    """

    __slots__ = ("kind", "parts", "write")

    def __init__(self, kind: type, parts: tuple[Tracker, ...], write: Callable[..., str]) -> None:
        self.source = None
        self.kind = kind
        self.parts = parts
        self.write = write

    def pytype(self) -> type:
        return self.kind

    def describe(self) -> str:
        return f"{'text' if self.kind is str else f'the {self.kind.__name__}'} of a tensor's data"

    def real(self, cx: Any) -> Any:
        raise DataDependent(self.describe(), hint=_HINT)

    def truth(self, cx: Any) -> bool:
        raise DataDependent(f"a branch on {self.describe()}", hint="torch.where chooses between tensors without a branch")

    def key(self, cx: Any) -> Any:
        raise DataDependent(f"{self.describe()} as a key", hint=_HINT)

    def get(self, cx: Any, name: str) -> Tracker:
        raise DataDependent(f"attribute {name!r} of {self.describe()}", hint=_HINT)


__all__ = ["Data"]
