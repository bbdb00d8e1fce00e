"""Sources, the places that values came from, and guards, the assumptions on them.

A `Source` is a path from the frame (locals, globals, closure) to a value.  Sources are immutable, compare by value and
cache their hash, so they serve as keys; `str(source)` prints the path in the user's terms: ``L['x'].weight``.

A `Guard` is data: the value at `source` must satisfy `kind` with parameter `value`; `capture.guards` lowers it to C++.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import (
    BuiltinFunctionType,
    FunctionType,
    MappingProxyType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any


class _Missing:
    """The value of a name that must be absent from a namespace."""

    def __repr__(self) -> str:
        return "<missing>"


MISSING = _Missing()


_NAMED = (type, FunctionType, BuiltinFunctionType, ModuleType, MethodDescriptorType, WrapperDescriptorType)


def name_of(value: Any) -> str | None:
    """Return the name of a class, a function or a module; None for anything else, whose attributes are the program's
    own code."""
    if not issubclass(type(value), _NAMED):
        return None
    read = next((raw for base, raw in _RAW if issubclass(type(value), base)), object.__getattribute__)
    for place in ("__qualname__", "__name__"):
        try:
            name = read(value, place)
        except AttributeError:
            continue
        if isinstance(name, str):
            return name
    return None


_RAW: tuple[tuple[type, Callable[[Any, str], Any]], ...] = ((type, type.__getattribute__),
                                                            (ModuleType, ModuleType.__getattribute__))
"""Lookups that ignore overrides by a metaclass or a module's class."""


class Source:
    """A path to a value.  Subclasses set `_key`, the tuple that decides equality."""

    __slots__ = ("_hash", "_key")
    _key: tuple[Any, ...]
    base: Source | None = None

    def __init__(self, *key: Any) -> None:
        self._key = key
        self._hash = hash((type(self).__name__, *key))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (type(self) is type(other) and self._hash == other._hash  # type: ignore[attr-defined]
                and self._key == other._key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._key))})"

    def beneath(self, base: Source) -> Source:
        """Return the path of the same last step from another base."""
        new = object.__new__(type(self))
        for kind in type(self).__mro__[:-1]:
            for name in kind.__slots__:  # type: ignore[attr-defined]
                object.__setattr__(new, name, getattr(self, name))
        new.base, new._key = base, (base, *self._key[1:])  # type: ignore[misc]
        new._hash = hash((type(new).__name__, *new._key))
        return new

    def chain(self) -> list[Source]:
        """Return the path from the root (first) to this source (last)."""
        out: list[Source] = []
        s: Source | None = self
        while s is not None:
            out.append(s)
            s = s.base
        return out[::-1]


class _Named(Source):
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Local(_Named):
    """An argument of the frame, by the name in co_varnames."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"L[{self.name!r}]"


class Global(_Named):
    """A name in the frame's own f_globals."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"G[{self.name!r}]"


class Builtin(_Named):
    """A name in the frame's builtins."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.name


OWN = "__fs_own_"
"""The prefix of the free variables through which a function's own cells reach a continuation."""


class Cell(_Named):
    """The content of a closure cell of the frame's function, by the name in co_freevars."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"C[{self.name.removeprefix(OWN)!r}]"


class GlobalOf(Source):
    """A name in the namespace of another module: ``sys.modules[module].__dict__[name]``."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        super().__init__(module, name)
        self.module = module
        self.name = name

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Pinned(Source):
    """An object that the guard holds; compared by identity, without a walk. The variant dies with it."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any) -> None:
        super().__init__(id(obj))
        self.obj = obj

    def __repr__(self) -> str:
        return f"Pinned({str(self)})"

    def __str__(self) -> str:
        if type(self.obj) is dict and isinstance(self.obj.get("__name__"), str):
            return f"module {self.obj['__name__']}"
        name = name_of(self.obj)
        return name if name is not None else f"<{type(self.obj).__name__} at {id(self.obj):#x}>"


class Made(Pinned):
    """An object that the program recreates in each call, and that guards keep alive."""

    __slots__ = ()


class _Child(Source):
    __slots__ = ("base",)
    base: Source  # type: ignore[assignment]

    def __init__(self, base: Source, *key: Any) -> None:
        super().__init__(base, *key)
        self.base = base


class _Member(_Child):
    __slots__ = ("name",)

    def __init__(self, base: Source, name: str) -> None:
        super().__init__(base, name)
        self.name = name

    def __str__(self) -> str:
        return f"{self.base}.{self.name}"


class Attr(_Member):
    """``getattr(base, name)``, where the generic lookup is exact (attributes of functions, of builtin objects and of
    modules)."""

    __slots__ = ()


class DictAttr(_Member):
    """``base.__dict__[name]`` read straight from the instance dict: no descriptor, no ``__getattr__``, no user code."""

    __slots__ = ()


class Slot(_Child):
    """``cls.__dict__[name].__get__(base)``: the value that a C descriptor reads, ignoring overrides in subclasses of
    `cls`; no user code runs."""

    __slots__ = ("cls", "name")

    def __init__(self, base: Source, cls: type, name: str) -> None:
        super().__init__(base, cls, name)
        self.cls = cls
        self.name = name

    def __str__(self) -> str:
        return f"{self.base}.{self.name}"


_MODULE_DICTS = frozenset({"_parameters", "_buffers", "_modules"})


class Item(_Child):
    """``base[key]`` by the raw method of dict, list or tuple (subclasses included: user code never runs)."""

    __slots__ = ("key",)

    def __init__(self, base: Source, key: Any) -> None:
        super().__init__(base, type(key).__name__, key)
        self.key = key

    def __repr__(self) -> str:
        return f"Item({self.base!r}, {self.key!r})"

    def __str__(self) -> str:
        base = self.base
        if type(base) is DictAttr and base.name in _MODULE_DICTS:
            return f"{base.base}[{self.key}]" if self.key.isdigit() else f"{base.base}.{self.key}"
        return f"{base}[{self.key!r}]"


class DictKey(_Child):
    """The key number `index` of a dict, in its order."""

    __slots__ = ("index",)

    def __init__(self, base: Source, index: int) -> None:
        super().__init__(base, index)
        self.index = index

    def __str__(self) -> str:
        return f"list({self.base})[{self.index}]"


class TypeOf(_Child):
    """``type(base)``."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"type({self.base})"


class Applied(_Child):
    """``function(base)``: a new value at each reading, without side effects; ``text`` is its form for the user."""

    __slots__ = ("function", "text")

    def __init__(self, base: Source, function: Callable[[Any], Any], text: str) -> None:
        super().__init__(base, function)
        self.function = function
        self.text = text

    def __str__(self) -> str:
        return self.text.format(self.base)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The conditions that a tensor must satisfy. A size or stride of None is free (dynamic); `strides` None: not
    checked."""

    cls: type
    dtype: Any
    device: Any
    layout: Any
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...] | None
    requires_grad: bool
    keys: int
    """``torch._C._dispatch_keys(t).raw_repr()``; -1: not checked."""


@dataclass(frozen=True, slots=True)
class GlobalState:
    """Process and thread state under which a graph was captured."""

    grad_enabled: bool
    inference_mode: bool
    autocast: tuple[tuple[str, bool, Any], ...]
    """(device type, enabled, dtype) of each device type whose autocast is guarded."""
    default_dtype: Any
    deterministic: bool = False
    default_device: Any = None
    """The device that `torch.set_default_device` set, through a function mode; no other mode may be active."""
    torch_functions: bool = True
    """Torch functions call the `__torch_function__` of subclasses."""
    autocast_depth: int = 0
    autocast_cache: bool = True
    """These two are restored and replayed, but not guarded: no graph depends on them."""


KINDS = MappingProxyType({
    "type": "type(x) is value",
    "id": "x is value",
    "equals": "type(x) is type(value) and x == value; floats bit for bit (a NaN equals itself, 0.0 is not -0.0)",
    "none": "x is None",
    "not_none": "x is not None",
    "len": "len(x) == value by the raw length of list, tuple, dict, set (and of subclasses)",
    "keys": "tuple(raw keys of the dict) == value, in order; keys that are no constants by identity",
    "contains": "value in the raw dict x",
    "not_contains": "value not in the raw dict x",
    "bool": "bool(x) is value; x is an exact builtin container or a constant",
    "tensor": "x agrees with value, a TensorSpec",
    "hasattr": "the instance dict of x has the name value",
    "not_hasattr": "the instance dict of x, if it has one, lacks the name value",
    "bare": "value = (names, ((name, dict or OrderedDict), ...)): the instance dict of x lacks the names, and has "
    "empty dicts of exactly these classes under the others",
    "namespace": "source is Pinned(dict or class); value = {name: object or MISSING}, by identity; a class is looked "
                 "up "
                 "over its mro.  The dict's ma_version_tag or the class's tp_version_tag is the fast path",
    "same": "x is the object at the source value",
    "distinct": "source None; the objects at the sources in value are pairwise different",
    "function": "the function value has the code and the defaults that it had; the source only names it",
    "globals_state": "source None; the thread's state equals value, a GlobalState",
    "no_alias": "source None; storages of the tensors at the sources in value do not overlap",
    "shape": "source None; value = (Rel, {symbol name: (source, 'size' | 'stride' | 'value', dim)})",
    "callable": "value(x) is true (a Python predicate: last resort)",
})


@dataclass(frozen=True, slots=True)
class Guard:
    """The value at `source` satisfies `kind` (a key of KINDS) with parameter `value`."""

    source: Source | None
    kind: str
    value: Any = None
    stack: tuple[tuple[str, int, str], ...] = field(default=(), compare=False)
    """The user's (file, line, function), innermost last, that made the assumption."""

    def __str__(self) -> str:
        return f"{self.kind}({self.source if self.source is not None else ''}, {self.value!r})"
