"""Hashes of tracked values, and keys for capture's hash tables."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from framesmith._C import stored_hashes
from framesmith.util.errors import Unsupported

from . import trackers as t
from .session import Session


class Hashing(Session):
    """The part of the session that hashes."""

    changes = 0
    """The number of mutations of any tracked object so far."""

    def hash_of(self, x: t.Tracker) -> int:
        """`hash(x)`, where it is not derived from an address."""
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
            value = int(number.real(self))
            return (value if value != -1 else -2) if -1 << 63 <= value < 1 << 63 else hash(value)
        x = x.plain()
        if isinstance(x, t.Tuple):
            return hash(tuple([t.Number(self.hash_of(v)) for v in x.open(self)]))
        if isinstance(x, t.Set):
            return hash(frozenset([t.Number(self.hash_of(self.unkey(k))) for k in x.open(self)]))
        if x.constant:
            return self.folded(hash, (x.value,))  # type: ignore[attr-defined]
        raise Unsupported(f"the hash of {x.describe()}, which is its address")

    def key_hash(self, x: t.Tracker) -> int:
        """Return the hash of a key; residual code rebuilds tables, and calls `__hash__` again."""
        return self.without_effects(lambda: self.hash_of(x), f"the hash of {x.describe()}")

    def without_effects(self, ask: Callable[[], Any], what: str) -> Any:
        """Return the result of `ask`, which runs a method more often than the program does; raise Unsupported if it has
        effects."""
        before = self.changes
        out = ask()
        if self.changes != before:
            raise Unsupported(f"{what}, which changes something")
        return out

    def settle_key(self, key: Any) -> None:
        """Check that `key`, which residual code puts into a table, has the hash then that it had in the program."""
        if isinstance(key, (tuple, frozenset)):
            for part in key:
                self.settle_key(part)
        elif type(key) is t.Hashed and isinstance(self.lookup(key.tracker.pytype(), "__hash__"), FunctionType):
            if id(key.tracker) in self.mutated:
                raise Unsupported(f"{key.tracker.describe()}, a key that was changed, lives across the end of captured "
                                  "code")
            try:
                again = self.key_hash(key.tracker)
            except t.CapturedError:
                again = None
            if again != key.hash:
                raise Unsupported(f"the hash of {key.tracker.describe()} has changed since it became a key")

    def stored_keys(self, keys: list[Any], container: Any) -> list[Any]:
        """Return the keys of a real dict, or the elements of a real set, in trackers' form; keys with a user's hash
        along with its value."""
        own = [self.has_own_hash(k) for k in keys]
        hashes = stored_hashes(container) if any(own) else {}
        return [self.stored_key(k, hashes.get(id(k))) if mine else k for k, mine in zip(keys, own)]

    def has_own_hash(self, key: Any) -> bool:
        """Return whether the hash of a real object is computed by the program's code."""
        if issubclass(type(key), (tuple, frozenset)) and any(map(self.has_own_hash, key)):
            return True
        return isinstance(type(key).__hash__, FunctionType)

    def stored_key(self, key: Any, number: int | None = None) -> Any:
        """Return the key that stands for a real key; `number` is its hash, if that is known."""
        made = self.made(key)
        if isinstance(made, t.Object) and number is not None:
            return t.Hashed(self, made, number)
        return made.key(self)

    def as_element(self, key: Any) -> Any:
        """Return a stored key of a dict as an element of a set."""
        stands = isinstance(key, (t.Tracker, t.Hashed, t.AddressKey)) or type(key).__hash__ is not object.__hash__
        return key if stands else self.unkey(key).element(self)

    def no_key(self, x: t.Tracker) -> Any:
        """Raise for an unhashable key: the program's error, or Unsupported."""
        if self.lookup(x.pytype(), "__hash__") is None:
            self.raise_(TypeError(f"unhashable type: '{type_name(x.pytype())}'"))
        raise Unsupported(f"{x.describe()} as a key")


_IMMUTABLE = 1 << 8


def type_name(kind: type) -> str:
    """Return the name of a class in CPython's messages: with its module if it was written in C outside of builtins."""
    return (kind.__name__ if not kind.__flags__ & _IMMUTABLE
            or kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}")
