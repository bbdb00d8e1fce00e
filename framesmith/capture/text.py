"""Text of values: str, repr, format, the fields of f-strings."""

from __future__ import annotations

import operator
from types import FunctionType

from framesmith._C import not_shown
from framesmith.util.errors import Unsupported

from . import data
from . import trackers as t
from .formatting import bare, scalar_part
from .session import Session
from .sources import MISSING
from .symbolic_arithmetic import is_symbolic, written

_CONVERSIONS = {1: "__str__", 2: "__repr__", 3: "__repr__"}


class Texts(Session):
    """The part of the session that turns values to text."""

    def format_value(self, v: t.Tracker, conversion: int, spec: str) -> t.Tracker:
        """Format one field of an f-string: converted (by !s, !r, !a), then formatted."""
        if conversion:
            v = self.text(v, _CONVERSIONS[conversion])
            if conversion == 3:
                v = self.fold(lambda s: s.encode("ascii", "backslashreplace").decode("ascii"), (v.real(self),))
        return self.formatted(v, spec)

    def formatted(self, v: t.Tracker, spec: str) -> t.Tracker:
        """format(v, spec)"""
        if type(v) is t.Sym:
            return data.of_size(v, lambda a: f"{a}.__format__({spec!r})")
        if v.constant:
            if is_symbolic(v) and (found := written(self, v, spec)) is not None:
                return found
            return self.fold(format, (v.real(self), spec))
        if isinstance(v, (t.Tensor, t.Data)):
            return data.formatted(self, v, spec)
        raw = self.lookup(v.pytype(), "__format__")
        if isinstance(raw, FunctionType):
            return self._checked(self.class_function(raw).call(self, [v, t.Const(spec)], {}), "__format__")
        if isinstance(v, t.Object) and v.payload is not None and raw is not object.__format__:
            if not spec and raw in _TEXT_ALONE:
                return self.text(v)
            return self.fold(format, (bare(v), spec)) if scalar_part(v) is not None else self.formatted(v.payload, spec)
        if raw is object.__format__:
            if spec:
                self.raise_(TypeError(f"unsupported format string passed to {v.pytype().__name__}.__format__"))
            return self.text(v)
        if _has_tensor(v):
            raise Unsupported("text of a tensor's data")
        return self.fold(format, (v.real(self), spec))

    def percent(self, a: t.Const, b: t.Tracker) -> t.Tracker:
        """`a % b` of a text or bytes."""
        arguments = b.payload if isinstance(b, t.Object) and isinstance(b.payload, t.Tuple) else b
        shown = self.shown_container(arguments, False) if isinstance(arguments, (t.Sequence, t.Dict)) else self.shown(b)
        return self.fold(operator.mod, (a.value, shown))

    def text(self, v: t.Tracker, name: str = "__str__") -> t.Tracker:
        """str(v) or, by `name`, repr(v)."""
        if type(v) is t.Sym:
            return data.of_size(v, lambda a: f"{a}.{name}()")
        if isinstance(v, (t.Tensor, t.Data)):
            return data.shown(self, v, name)
        raw = self.lookup(v.pytype(), name)
        if raw is object.__str__:
            name = "__repr__"
            raw = self.lookup(v.pytype(), "__repr__")
        if isinstance(raw, FunctionType):
            return self._checked(self.class_function(raw).call(self, [v], {}), name)
        if isinstance(v, t.Object) and raw is not MISSING:
            return v.builtin_method(self, name, [], {})
        self.not_shown(v)
        if isinstance(v, (t.Iter, t.Lazy, t.Until, t.Generator)):
            raise Unsupported("the text of an iterator")
        if isinstance(v, t.Set):
            return t.Const(self.set_text(v))
        if isinstance(v, (t.Dict, t.Sequence)):
            return self.fold(repr, (self.shown_container(v),))
        if _has_tensor(v):
            raise Unsupported("text of a tensor's data")
        return self.fold({"__repr__": repr, "__str__": str}[name], (v.real(self),))

    def _checked(self, made: t.Tracker, name: str) -> t.Tracker:
        """Check that the result of a user's `__str__` is a str, and return it; raise the program's TypeError if not."""
        if not issubclass(made.pytype(), str):
            self.raise_(TypeError(f"{name} {'must return a str' if name == '__format__' else 'returned non-string'}"
                                  f"{', not' if name == '__format__' else ' (type'} {made.pytype().__name__}"
                                  f"{'' if name == '__format__' else ')'}"))
        return made.plain()

    def not_shown(self, v: t.Tracker) -> None:
        """Guard that the caller is not computing the repr of this container, within which it would be dots."""
        value = getattr(v, "value", None)
        if value is not None and isinstance(v, (t.Sequence, t.Dict, t.Set)):
            if not not_shown(value):
                raise Unsupported(f"the text of {v.describe()} within its own")
            self.guard(v.source, "callable", not_shown)

    def set_text(self, v: t.Set) -> str:
        """repr(v) of a set, in the program's order: a real set of stand-ins would have another."""
        if not v.size(self):
            return f"{v.cls.__name__}()"
        if any(x is v for x in self.showing):
            return f"{v.cls.__name__}(...)"
        self.showing.append(v)
        try:
            elements = f"{{{', '.join([self.repr_text(x) for x in v.items_list(self)])}}}"
        finally:
            self.showing.pop()
        return elements if v.cls is set else f"{v.cls.__name__}({elements})"

    def repr_text(self, v: t.Tracker) -> str:
        return self.text(v, "__repr__").real(self)


_TEXT_ALONE = (int.__format__, float.__format__, complex.__format__, str.__format__)
"""Types whose `format(x, "")` is `str(x)`."""
def _has_tensor(v: t.Tracker) -> bool:
    if isinstance(v, t.Sequence) and v._items is not None:
        return any(_has_tensor(x) for x in v.items)
    return isinstance(v, t.Tensor)
