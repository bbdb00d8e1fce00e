"""The hash of tracked values, and keys for the hash tables that capture keeps."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t


class Hashing:
    """The part of the session that hashes."""

    lookup: Callable[..., Any]
    call_special: Callable[..., t.Tracker]
    folded: Callable[..., Any]
    raise_: Callable[..., Any]
    unkey: Callable[..., t.Tracker]

    def hash_of(self, x: t.Tracker) -> int:
        """`hash(x)`, where it is no address."""
        if x.constant or isinstance(x, t.Static) and not isinstance(x, t.MadeClass):
            return self.folded(hash, (x.value,))  # type: ignore[attr-defined]
        if type(x) is t.Hashed:
            return x.hash
        kind = x.pytype()
        raw = self.lookup(kind, "__hash__")
        if raw is None:
            return self.raise_(TypeError(f"unhashable type: '{type_name(kind)}'"))
        if isinstance(raw, FunctionType):
            number = self.call_special(x, "__hash__", [])
            if not issubclass(number.pytype(), int):
                self.raise_(TypeError("__hash__ method should return an integer"))
            return self.folded(hash, (number.real(self),))
        if isinstance(x, t.Object) and x.payload is not None:
            x = x.payload
        if isinstance(x, t.Tuple):
            return hash(tuple([t.Number(self.hash_of(v)) for v in x.open(self)]))
        if isinstance(x, t.Set):
            return hash(frozenset([t.Number(self.hash_of(self.unkey(k))) for k in x.open(self)]))
        if x.constant:
            return self.folded(hash, (x.value,))  # type: ignore[attr-defined]
        raise Unsupported(f"the hash of {x.describe()}, which is its address")

    def no_key(self, x: t.Tracker) -> Any:
        """`x` was to be a key: an error of the program, or of ours."""
        if self.lookup(x.pytype(), "__hash__") is None:
            self.raise_(TypeError(f"unhashable type: '{type_name(x.pytype())}'"))
        raise Unsupported(f"{x.describe()} as a key")


_IMMUTABLE = 1 << 8


def type_name(kind: type) -> str:
    """The name of a class in CPython's messages: with its module if it was written in C outside of builtins."""
    return kind.__name__ if not kind.__flags__ & _IMMUTABLE or kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
