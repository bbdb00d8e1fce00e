"""Python values of tensors' data and random numbers: residual code computes them from the graph's outputs, or draws
them; capture knows only their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.util.errors import DataDependent

from .base import Tracker
from .constants import Const
from .symbolic_size import Sym

_HINT = "keep it a tensor, or use it where its value decides nothing"
_DRAWN = "draw it before the call, or use it where its value decides nothing"


class ListSeen(DataDependent):
    """A value of a list from `tolist` is needed: the frame is captured with a break there."""


class Draw(Tracker):
    """The next number of a `random` generator: residual code draws each number once, in order, before it uses any."""

    __slots__ = ("generator",)
    cls = float

    def __init__(self, generator: Tracker) -> None:
        self.generator = generator

    def assumed(self, tracer: Any) -> None:
        """Return None: no value may be assumed."""


class Data(Tracker):
    """A number or text: `write(texts)` is its expression over the texts of `parts`, which cannot fail.

    It may be stored, returned, shown and computed with. Its value is available if the tensors are known, or may be
    assumed. `fn` computes it from the parts, if it is arithmetic. `total`: a quotient or power of it is assumed to be
    valid, which for some values would raise in Python.
    """

    __slots__ = ("fn", "kind", "listed", "parts", "total", "write")

    def __init__(self, kind: type, parts: tuple[Tracker, ...], write: Callable[..., str],
                 fn: Callable[..., Any] | None = None,
                 total: bool = False) -> None:
        self.kind = kind
        self.parts = parts
        self.write = write
        self.fn = fn
        self.total = total
        self.listed: bool = any(type(p) is Data and p.listed for p in parts)
        """It is an element of a result of `tolist`."""

    def pytype(self) -> type:
        return self.kind

    @property
    def drawn(self) -> bool:
        """True if it is computed from a random number."""
        return any(type(p) is Draw or type(p) is Data and p.drawn for p in self.parts)

    def describe(self) -> str:
        if self.drawn:
            return f"{'text' if self.kind is str else f'the {self.kind.__name__}'} of a random number"
        return f"{'text' if self.kind is str else f'the {self.kind.__name__}'} of a tensor's data"

    def assumed(self, tracer: Any) -> tuple[Any] | None:
        """Return the value, if it is known or may be assumed."""
        values: dict[int, Any] = {}
        for i, part in sorted(enumerate(self.parts), key=lambda item: type(item[1]) is Sym):  # sizes last: with guards
            found = (part.value,) if isinstance(part, Const) else part.assumed(tracer)  # type: ignore[attr-defined]
            if found is None:
                return None
            values[i] = found[0] if type(found) is tuple else found
        names = {f"x{i}": values[i] for i in range(len(values))}
        with torch._C._DisableTorchDispatch():
            return (eval(self.write(*names), {}, names),)

    def real(self, tracer: Any) -> Any:
        return self._known(tracer, self.describe(), _HINT).value

    def truth(self, tracer: Any) -> bool:
        decided = tracer.by_range(self)
        return decided if decided is not None else self._known(tracer, f"a branch on {self.describe()}",
                           "torch.where chooses between tensors without a branch").truth(tracer)

    def key(self, tracer: Any) -> Any:
        return self._known(tracer, f"{self.describe()} as a key", _HINT).value

    def get(self, tracer: Any, name: str) -> Tracker:
        return self._known(tracer, f"attribute {name!r} of {self.describe()}", _HINT).get(tracer, name)

    def _known(self, tracer: Any, what: str, hint: str) -> Const:
        found = self.assumed(tracer)
        if found is None:
            raise (ListSeen if self.listed else DataDependent)(what, hint=_DRAWN if self.drawn else hint)
        return Const(found[0])
