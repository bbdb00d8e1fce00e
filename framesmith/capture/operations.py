"""Operators over trackers: arithmetic, comparison, membership, truth of protocols."""

from __future__ import annotations

import collections
import enum
import functools
import operator
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, cast

from framesmith.util.errors import Unsupported

from . import choices, data
from . import trackers as t
from .binary_slots import NOT_IMPLEMENTED, Attempts
from .comparison_guards import COMPARISONS
from .identity import same_object
from .operators import BINARY, COMPARE, DUNDER, MIRROR, OPERATORS
from .sources import MISSING
from .symbolic_arithmetic import are_open, computed, is_symbolic

_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "ne", "ne": "eq", "neg": "neg", "pos": "pos",
             "invert": "invert"}
_NUMERIC = (t.Tensor, t.Sym, t.Array)


class Operations(Attempts):
    """The part of the session that applies operators."""

    def binary(self, name: str, a: t.Tracker, b: t.Tracker, symbol: str | None = None) -> t.Tracker:
        """`a <name> b`; `symbol` is the operator as errors show it."""
        fn = OPERATORS[name]
        if a.constant and b.constant:
            return self.constants(fn, a, b)
        if name == "mod" and a.constant and issubclass(a.pytype(), (str, bytes)):
            return self.by_dunder("mod", a, b, "%")
        apply = self.binary if symbol is None else functools.partial(self.binary, symbol=symbol)
        if (found := self.directly(fn, apply, name, a, b)) is not None:
            return found
        if (isinstance(a, t.Static) or isinstance(b, t.Static)) and _folds(a) and _folds(b):
            return self.fold(fn, (a.real(self), b.real(self)))
        return self.by_dunder(name.rstrip("_"), a, b, symbol or ("** or pow()" if name == "pow" else BINARY[name]))

    def directly(self, fn: Callable[..., Any], apply: Callable[..., t.Tracker], name: str,
                 *args: t.Tracker) -> t.Tracker | None:
        """Apply the operator `fn` of choices, of tensors and arrays, or of data; `apply(name, *args)`
        applies it to trackers. None for other operands: these have special methods."""
        a, b = args[0], args[-1]
        if type(a) is t.Chosen or type(b) is t.Chosen:
            return choices.applied(self, functools.partial(apply, name), fn, list(args))
        counts = self.counters and t.Data in (type(a), type(b)) and t.Sym in (type(a), type(b))
        if not counts and (isinstance(a, _NUMERIC) or isinstance(b, _NUMERIC)):
            return self.numeric("<operator>", fn, list(args))
        if type(a) is t.Data or type(b) is t.Data:
            found = data.compared(fn, a, b) if fn in COMPARISONS else data.computed(fn, *args)
            return apply(name, *[data.known(self, x) for x in args]) if found is None else found
        return None

    def numeric(self, how: str, fn: Callable[..., Any], args: list[t.Tracker]) -> t.Tracker:
        """Apply an operator of tensors, or of NumPy arrays."""
        if any(type(a) is t.Array for a in args):
            return cast(t.Tracker, self.methods(t.Array, how)(self, fn.__name__, args))
        if fn in (operator.eq, operator.ne) and t.NONE in args and not self.asks(*args):
            return t.boolean(fn is operator.ne)
        for a in args:
            self.operated(a, fn.__name__.strip("_"))
        return self.torch_function(fn, args, {})

    def operated(self, x: t.Tracker, name: str) -> None:
        """Apply an operator to a tensor by torch's own method."""
        if isinstance(x, t.Tensor):
            for method in (name, _MIRRORED.get(name, name[1:] if name[0] == "i" else f"r{name}")):
                if t.is_users(self.lookup(x.pytype(), f"__{method}__")):
                    raise Unsupported(f"Tensor.__{method}__, which was replaced")

    def constants(self, fn: Callable[..., Any], *args: Any) -> t.Tracker:
        """Apply an operator to constants."""
        if (is_symbolic(*args) or fn in COMPARISONS
            and are_open(args)) and (found := computed(self, fn, args)) is not None:
            return found
        return self.fold(fn, tuple([a.value for a in args]))

    def by_dunder(self, base: str, a: t.Tracker, b: t.Tracker, symbol: str) -> t.Tracker:
        """Apply a binary operator by its special methods; the right operand's is called first if its class is a
        subclass that overrides it."""
        left, right = a.pytype(), b.pytype()
        reflected = f"__r{base}__"
        first = (right is not left and issubclass(right, left)
                 and self.lookup(right, reflected) is not self.lookup(left, reflected))
        result = self.attempt(b, reflected, [a]) if first else NOT_IMPLEMENTED
        if result is NOT_IMPLEMENTED:
            result = self.attempt(a, f"__{base}__", [b])
        if result is NOT_IMPLEMENTED and not first and (left is not right or not isinstance(a, t.Object)):
            result = self.attempt(b, reflected, [a])
        if result is NOT_IMPLEMENTED:
            return self.raise_(TypeError(_refusal(base, symbol, left, right)))
        return cast(t.Tracker, result)

    def inplace(self, name: str, a: t.Tracker, b: t.Tracker) -> t.Tracker:
        if a.constant and b.constant:
            return self.constants(OPERATORS[name], a, b)
        if type(b) is t.Chosen and isinstance(a, _NUMERIC):
            return choices.applied(self, functools.partial(self.inplace, name), OPERATORS.get(name[1:]), [a, b])
        if isinstance(a, _NUMERIC):
            return self.numeric("<inplace>", OPERATORS[name], [a, b])
        if type(a) is t.Data:
            found = data.computed(OPERATORS[name], a, b)
            return self.inplace(name, data.known(self, a), b) if found is None else found
        result = self.attempt(a, f"__{name}__", [b])
        if result is not NOT_IMPLEMENTED:
            return result
        plain = name[1:]
        plain += "_" if plain in ("and", "or") else ""
        return self.binary(plain, a, b, BINARY[plain] + "=")

    def unary(self, name: str, a: t.Tracker) -> t.Tracker:
        if a.constant:
            return self.constants(OPERATORS[name], a)
        if (found := self.directly(OPERATORS[name], self.unary, name, a)) is not None:
            return found
        result = self.attempt(a, f"__{name}__", [])
        if result is NOT_IMPLEMENTED:
            return self.raise_(TypeError(f"bad operand type for unary {_UNARY.get(name, name)}: "
                                         f"'{a.pytype().__name__}'"))
        return result

    def compare(self, name: str, a: t.Tracker, b: t.Tracker) -> t.Tracker:
        if a.constant and b.constant:
            return self.constants(COMPARE[name], a, b)
        if (found := self.directly(COMPARE[name], self.compare, name, a, b)) is not None:
            return found
        left, right = a.pytype(), b.pytype()
        sides = [(a, DUNDER[name], b), (b, DUNDER[MIRROR[name]], a)]
        if right is not left and issubclass(right, left):
            sides.reverse()
        for one, method, other in sides:
            result = self.attempt(one, method, [other])
            if result is not NOT_IMPLEMENTED:
                return result
        if name in ("==", "!="):
            return t.boolean(same_object(self, a, b) is (name == "=="))
        return self.raise_(TypeError(f"'{name}' not supported between instances of '{a.pytype().__name__}' and "
                                     f"'{b.pytype().__name__}'"))

    def equal(self, a: t.Tracker, b: t.Tracker) -> bool:
        """`a is b or a == b`"""
        if a is not b and t.Data in (type(a), type(b)):  # of numbers and text, one object is equal to itself
            return self.compare("==", a, b).truth(self)
        return same_object(self, a, b) or self.compare("==", a, b).truth(self)

    def contains(self, container: t.Tracker, item: t.Tracker) -> bool:
        """`item in container`"""
        if container.constant:
            return bool(self.folded(operator.contains,
                                    (container.value, item.real(self))))  # type: ignore[attr-defined]
        if isinstance(container, t.Dict):
            return container.has(self, item.key(self))
        if isinstance(container, t.Set):
            return container.contains(self, item)
        if isinstance(container, t.DictView):
            return container.contains(self, item)
        if isinstance(container, t.Tensor):
            raise Unsupported("membership in a tensor's data")
        if not isinstance(container, (t.Sequence, t.Static)):
            result = self.attempt(container, "__contains__", [item])
            if result is not NOT_IMPLEMENTED:
                return result.truth(self)
            if isinstance(container, t.Object) and container.payload is not None:
                return self.contains(container.payload, item)
        if isinstance(container, t.Class) and isinstance(self.lookup(container.pytype(), "__contains__"),
                                                         FunctionType) \
                and not issubclass(container.pytype(), enum.EnumMeta):
            return self.call_special(container, "__contains__", [item]).truth(self)
        if isinstance(container, t.Class) and issubclass(container.pytype(), enum.EnumMeta):
            return bool(self.folded(operator.contains, (container.value, item.real(self))))
        if not isinstance(container, (t.Sequence, t.Dict, t.DictView)) and not self.is_iterable(container):
            self.raise_(TypeError(f"argument of type '{container.pytype().__name__}' is not iterable"))
        it = container.iterate(self)
        while (v := it.next(self)) is not None:
            if self.equal(v, item):
                return True
        return False

    def index(self, key: t.Tracker, of: str | None = None) -> Any:
        """Return a number of elements, or a subscript of a sequence of kind `of`: an int or a slice (or a value that
        the sequence itself refuses)."""
        if isinstance(key, (t.Const, t.Slice, t.Data)):
            return key.real(self)
        if isinstance(key, t.Sym):
            return int(key.value)
        if isinstance(key, t.Tensor):
            return key.builtin_method(self, "__index__", [], {}).real(self)
        if isinstance(key, t.Object) and key.payload is not None and issubclass(key.payload.pytype(), int):
            return key.payload.real(self)
        kind = key.pytype().__name__
        if self.lookup(key.pytype(), "__index__") is MISSING:
            self.raise_(TypeError(
                _SUBSCRIPTS.get(of, "{} indices must be integers or slices, not {}").format(of, kind)))
        told = self.call_special(key, "__index__", [])
        if told.pytype() is not int:
            if issubclass(told.pytype(), int):
                raise Unsupported(f"__index__ of {key.describe()}, which gives a {told.pytype().__name__}")
            self.raise_(TypeError(f"__index__ returned non-int (type {told.pytype().__name__})"))
        return self.index(told)

    def mapping(self, v: t.Tracker) -> dict[Any, t.Tracker]:
        """Return the entries of any operand of `**`."""
        if isinstance(v, t.Dict):
            return v.open(self)
        return dict(self.mapping_items(v))

    def mapping_items(self, v: t.Tracker) -> Iterator[tuple[Any, t.Tracker]]:
        """Yield keys and values of an object that has `keys`; each value is read lazily."""
        if isinstance(v, t.Object) and isinstance(v.payload, t.Dict) and (self.lookup(v.cls, "__iter__")
                                                                          is dict.__iter__ or not any(
                # as PyDict_Merge looks
                isinstance(self.lookup(v.cls, name), FunctionType) for name in ("keys", "__getitem__"))):
            yield from list(v.payload.open(self).items())
            return
        for k in v.get(self, "keys").call(self, [], {}).items_list(self):
            yield k.key(self), v.item(self, k)


def _folds(x: t.Tracker) -> bool:
    """Return whether an operator's method on `x` can be no user's function."""
    return not isinstance(x, t.Object) and not (isinstance(x, t.Class) and type(x.value) is not type)


def _refusal(base: str, symbol: str, left: type, right: type) -> str:
    """Return the text of Python's error for unsupported operands; sequences have their own for + and *."""
    if base == "add" and left in _SEQUENCES:
        return f'can only concatenate {left.__name__} (not "{right.__name__}") to {left.__name__}'
    if base == "mul" and (left in _SEQUENCES or right in _SEQUENCES):
        return f"can't multiply sequence by non-int of type '{(right if left in _SEQUENCES else left).__name__}'"
    return f"unsupported operand type(s) for {symbol}: '{left.__name__}' and '{right.__name__}'"


_SUBSCRIPTS = {None: "'{1}' object cannot be interpreted as an integer",
               "str": "string indices must be integers, not '{1}'",
               "bytes": "byte indices must be integers or slices, not {1}"}
_SEQUENCES = frozenset({list, tuple, str, bytes, collections.deque})
_UNARY = {"neg": "-", "pos": "+", "invert": "~"}
