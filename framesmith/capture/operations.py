"""Operators over trackers: arithmetic, comparison, membership, formatting, truth of protocols."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import FunctionType
from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .sources import MISSING

OPERATORS: dict[str, Callable[..., Any]] = {
    n: getattr(operator, n) for n in ("add", "and_", "floordiv", "lshift", "matmul", "mul", "mod", "or_", "pow", "rshift", "sub", "truediv",
                                      "xor", "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imul", "imod", "ior", "ipow", "irshift",
                                      "isub", "itruediv", "ixor", "neg", "pos", "invert")}
COMPARE = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge}
_DUNDER = {"<": "__lt__", "<=": "__le__", "==": "__eq__", "!=": "__ne__", ">": "__gt__", ">=": "__ge__"}
_MIRROR = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}
_SYMBOL = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "** or pow()",
           "matmul": "@", "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>"}
_NUMERIC = (t.Tensor, t.Sym)
NOT_IMPLEMENTED = object()


class Operations:
    """The part of the session that applies operators."""

    torch_call: Callable[..., t.Tracker]
    fold: Callable[..., t.Tracker]
    folded: Callable[..., Any]
    raise_: Callable[..., Any]
    made: Callable[..., t.Tracker]
    methods: Callable[..., Any]
    lookup: Callable[..., Any]
    class_function: Callable[..., t.Tracker]

    def attempt(self, obj: t.Tracker, name: str, args: list[t.Tracker]) -> Any:
        """A special method's result, or NOT_IMPLEMENTED."""
        row = self.methods(type(obj), name)
        if row is not None and not isinstance(obj, t.Object):
            result = row(self, obj, *args)
        else:
            raw = self.lookup(obj.pytype(), name)
            if isinstance(raw, FunctionType):
                result = self.class_function(raw).call(self, [obj, *args], {})
            elif isinstance(obj, t.Object) and obj.payload is not None and raw is not MISSING:
                return self.attempt(obj.payload, name, [_payload(a) for a in args])
            else:
                return NOT_IMPLEMENTED
        if result is None or isinstance(result, t.Const) and result.value is NotImplemented:
            return NOT_IMPLEMENTED
        return result

    def binary(self, name: str, a: t.Tracker, b: t.Tracker) -> t.Tracker:
        fn = OPERATORS[name]
        if a.constant and b.constant:
            return self.fold(fn, (a.value, b.value))  # type: ignore[attr-defined]
        if isinstance(a, _NUMERIC) or isinstance(b, _NUMERIC):
            return self.torch_call(fn, [a, b], {})
        if name == "mod" and a.constant:
            return self.fold(fn, (a.value, b.real(self)))  # type: ignore[attr-defined]
        base = name.rstrip("_")
        result = self.attempt(a, f"__{base}__", [b])
        if result is NOT_IMPLEMENTED:
            result = self.attempt(b, f"__r{base}__", [a])
        if result is NOT_IMPLEMENTED:
            if isinstance(a, t.Static) or isinstance(b, t.Static):
                return self.fold(fn, (a.real(self), b.real(self)))
            return self.raise_(TypeError(f"unsupported operand type(s) for {_SYMBOL[name]}: '{a.pytype().__name__}' and "
                                         f"'{b.pytype().__name__}'"))
        return result

    def inplace(self, name: str, a: t.Tracker, b: t.Tracker) -> t.Tracker:
        if a.constant and b.constant:
            return self.fold(OPERATORS[name], (a.value, b.value))  # type: ignore[attr-defined]
        if isinstance(a, _NUMERIC):
            return self.torch_call(OPERATORS[name], [a, b], {})
        result = self.attempt(a, f"__{name}__", [b])
        if result is not NOT_IMPLEMENTED:
            return result
        plain = name[1:]
        return self.binary(plain + "_" if plain in ("and", "or") else plain, a, b)

    def unary(self, name: str, a: t.Tracker) -> t.Tracker:
        if a.constant:
            return self.fold(OPERATORS[name], (a.value,))  # type: ignore[attr-defined]
        if isinstance(a, _NUMERIC):
            return self.torch_call(OPERATORS[name], [a], {})
        result = self.attempt(a, f"__{name}__", [])
        if result is NOT_IMPLEMENTED:
            return self.raise_(TypeError(f"bad operand type for unary {name}: '{a.pytype().__name__}'"))
        return result

    def compare(self, name: str, a: t.Tracker, b: t.Tracker) -> t.Tracker:
        fn = COMPARE[name]
        if a.constant and b.constant:
            return self.fold(fn, (a.value, b.value))  # type: ignore[attr-defined]
        if isinstance(a, _NUMERIC) or isinstance(b, _NUMERIC):
            if name in ("==", "!=") and t.NONE in (a, b):
                return t.boolean(name == "!=")
            return self.torch_call(fn, [a, b], {})
        result = self.attempt(a, _DUNDER[name], [b])
        if result is NOT_IMPLEMENTED:
            result = self.attempt(b, _DUNDER[_MIRROR[name]], [a])
        if result is not NOT_IMPLEMENTED:
            return result
        if name == "!=":
            result = self.attempt(a, "__eq__", [b])
            if result is not NOT_IMPLEMENTED:
                return t.boolean(not result.truth(self))
        if name in ("==", "!="):
            return t.boolean((a.identity() is b.identity()) is (name == "=="))
        return self.raise_(TypeError(f"'{name}' not supported between instances of '{a.pytype().__name__}' and '{b.pytype().__name__}'"))

    def equal(self, a: t.Tracker, b: t.Tracker) -> bool:
        """`a is b or a == b`"""
        return a.identity() is b.identity() or self.compare("==", a, b).truth(self)

    def contains(self, container: t.Tracker, item: t.Tracker) -> bool:
        """`item in container`"""
        if container.constant:
            return bool(self.folded(operator.contains, (container.value, item.real(self))))  # type: ignore[attr-defined]
        if isinstance(container, t.Dict):
            return container.lookup(self, item.key(self)) is not None
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
        if isinstance(container, t.Class):
            return bool(self.folded(operator.contains, (container.value, item.real(self))))
        it = container.iterate(self)
        while (v := it.next(self)) is not None:
            if self.equal(v, item):
                return True
        return False

    def format_value(self, v: t.Tracker, conversion: int, spec: str) -> t.Tracker:
        """One field of an f-string."""
        if isinstance(v, t.Object):
            name = {0: "__format__", 1: "__str__", 2: "__repr__", 3: "__repr__"}[conversion]
            if name == "__format__" and not isinstance(self.lookup(v.cls, "__format__"), FunctionType):
                name = "__str__"
            return self.text(v, name)
        value = v.real(self)
        if _has_tensor(v):
            raise Unsupported("text of a tensor's data")
        value = (None, str, repr, ascii)[conversion](value) if conversion else value  # type: ignore[misc]
        return self.fold(format, (value, spec))

    def text(self, v: t.Tracker, name: str = "__str__") -> t.Tracker:
        """str(v) or repr(v) of an object."""
        raw = self.lookup(v.pytype(), name)
        if raw is object.__str__:
            raw = self.lookup(v.pytype(), "__repr__")
        if isinstance(raw, FunctionType):
            return self.class_function(raw).call(self, [v], {})
        if isinstance(v, t.Object) and issubclass(v.cls, BaseException):
            return self.error_text(v, name)
        if _has_tensor(v):
            raise Unsupported("text of a tensor's data")
        return self.fold({"__repr__": repr, "__str__": str}[name], (v.real(self),))

    def error_text(self, v: t.Object, name: str) -> t.Tracker:
        """str or repr of an exception."""
        args = v.init_args or []
        if name == "__repr__":
            return t.Const(f"{v.cls.__name__}({', '.join([self.text(a, name).real(self) for a in args])})")
        base = next(b for b in v.cls.__mro__ if b.__module__ == "builtins")
        return self.fold(str, (base(*[self.text(a).real(self) if isinstance(a, t.Object) else a.real(self) for a in args]),))

    def mapping(self, v: t.Tracker) -> dict[Any, t.Tracker]:
        """The entries of anything that ** takes."""
        if isinstance(v, t.Dict):
            return v.open(self)
        if isinstance(v, t.Object) and isinstance(v.payload, t.Dict) and not isinstance(self.lookup(v.cls, "keys"), FunctionType):
            return v.payload.open(self)
        keys = v.get(self, "keys").call(self, [], {}).items_list(self)
        return {k.key(self): v.item(self, k) for k in keys}


def _payload(a: t.Tracker) -> t.Tracker:
    return a.payload if isinstance(a, t.Object) and a.payload is not None else a


def _has_tensor(v: t.Tracker) -> bool:
    if isinstance(v, t.Sequence) and v._items is not None:
        return any(_has_tensor(x) for x in v.items)
    return isinstance(v, t.Tensor)
