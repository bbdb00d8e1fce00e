"""Python functions, bound methods, partials, and the cells that closures share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from ..sources import Attr, DictAttr, Item, Pinned, Source
from .base import Holder, Tracker, always, has_member
from .constants import NONE, Const
from .dicts import Dict
from .sequences import Tuple


class Cell(Tracker):
    """A closure cell.  `real_cell`, if it exists outside, is read once and written back when changed. `of`: the
    function in which it was found, if that was guarded by its parts."""

    __slots__ = ("content", "of", "real_cell", "source", "written")
    cls = CellType

    def __init__(self, content: Tracker | None = None, real_cell: Any = None, source: Source | None = None,
                 of: Function | None = None) -> None:
        self.of = of
        self.content = content
        self.real_cell = real_cell
        self.source = source
        self.written = False

    def get(self, tracer: Any, name: str) -> Tracker:
        if name == "cell_contents":
            return tracer.load_cell(self, "cell")
        return super().get(tracer, name)


class Function(Holder):
    """A Python function: one that exists (`value`), or one made in the frame (`value` None until rebuilt).

    One that the program may make anew for each call is guarded by its parts (code, globals, defaults, cells), from
    which captured calls of it follow. `guard` records its identity, too, once something depends on that.
    """

    __slots__ = ("annotations", "attrs", "closure", "code", "defaults", "existing", "fields", "globals", "guard",
                 "kwdefaults", "name", "qualname", "space")
    cls = FunctionType
    truth = always

    def __init__(self, code: CodeType, globals_: dict[str, Any], *, value: FunctionType | None = None,
                 source: Source | None = None, name: str | None = None, qualname: str | None = None,
                 guard: Callable[..., None] | None = None) -> None:
        self.code = code
        self.globals = globals_
        self.existing = value
        """The function that exists. Its identity may not be guarded."""
        self.guard = guard
        """The capture session's, while the function is guarded by its parts alone."""
        self.source = source
        self.name = name or code.co_name
        self.qualname = qualname or self.name
        self.defaults: list[Tracker] | None = None
        self.kwdefaults: dict[str, Tracker] | None = None
        self.closure: list[Cell] | None = None
        self.attrs: dict[Any, Tracker] | None = None
        """The entries of `__dict__` of a function made in the frame."""
        self.space: FunctionDict | None = None
        self.fields: dict[str, Tracker] = {}
        """Values assigned to `__doc__` and similar attributes."""
        self.annotations: Tracker | None = None

    @property
    def value(self) -> FunctionType | None:  # type: ignore[override]
        """The function that exists. Whoever reads it may depend on its identity."""
        self.guard_identity()
        return self.existing

    def guard_identity(self) -> None:
        """Guard that the next call has the same function."""
        if self.guard is not None:
            guard, self.guard = self.guard, None
            guard(self.source, "id", self.existing)

    def describe(self) -> str:
        return f"function {self.qualname}"

    def real(self, tracer: Any) -> Any:
        if self.value is None:
            return super().real(tracer)
        return self.value

    def key(self, tracer: Any) -> Any:
        return self.identity()

    def open(self, tracer: Any) -> None:
        """Make trackers of defaults and closure of an existing function."""
        fn = self.existing
        if fn is None or self.closure is not None:
            return
        src = self.source
        cells = fn.__closure__ or ()
        of = self if self.guard is not None else None
        self.closure = [tracer.cell(c, None if src is None else Item(Attr(src, "__closure__"), i), of) for i,
                        c in enumerate(cells)]
        if self.guard is not None:
            self.open_parts(tracer, fn)
            return
        tracer.guard(src if src is not None else Pinned(fn), "function", fn)
        if fn.__defaults__ and self.defaults is None:
            base = None if src is None else Attr(src, "__defaults__")
            self.defaults = [tracer.wrap_static(d, base and Item(base, i)) for i, d in enumerate(fn.__defaults__)]
        if fn.__kwdefaults__ and self.kwdefaults is None:
            base = None if src is None else Attr(src, "__kwdefaults__")
            self.kwdefaults = {k: tracer.wrap_static(d, base and Item(base, k)) for k, d in fn.__kwdefaults__.items()}

    def open_parts(self, tracer: Any, fn: FunctionType) -> None:
        """Make trackers of the defaults of a function that may be another one in the next call."""
        src: Any = self.source
        defaults = tracer.wrap(fn.__defaults__, Attr(src, "__defaults__"))
        self.defaults = None if defaults is NONE else defaults.open(tracer)
        named = tracer.wrap(fn.__kwdefaults__, Attr(src, "__kwdefaults__"))
        self.kwdefaults = None if named is NONE else dict(named.open(tracer))

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        return tracer.call_function(self, args, kwargs)

    def get(self, tracer: Any, name: str) -> Tracker:
        if self.guard is not None and name in _NAMES:
            return tracer.wrap(getattr(self.existing, name), Attr(self.source, name))  # type: ignore[arg-type]
        row = _FUNCTION_ATTRS.get(name)
        if row is not None:
            return row(self, tracer)
        if self.existing is not None:
            if self.attrs is not None and (name in self.attrs or name == "__dict__"):
                return self.attrs[name] if name != "__dict__" else super().get(tracer, name)
            base = self.source if self.source is not None else Pinned(self.existing)
            if name in self.existing.__dict__:
                return tracer.wrap(self.existing.__dict__[name], DictAttr(base, name))
            if name in ("__dict__", "__annotations__"):
                return tracer.wrap(getattr(self.existing, name),
                                   None if self.source is None else Attr(self.source, name))
            tracer.guard(base, "not_hasattr", name)
            return tracer.fold(getattr, (self.value, name))
        made = _MADE_ATTRS.get(name)
        if made is not None:
            return self.fields.get(name) or made(self, tracer)
        if self.attrs is not None and name in self.attrs:
            return self.attrs[name]
        if has_member(FunctionType, name):
            return super().get(tracer, name)
        return tracer.no_attribute(self, name)

    def set(self, tracer: Any, name: str, value: Tracker) -> None:
        if self.value is not None:
            self.set_outside(tracer, name, value)
        elif name in ("__name__", "__qualname__") and isinstance(value, Const) and type(value.value) is str:
            setattr(self, name.strip("_"), value.value)
        elif name in _MADE_ATTRS and name != "__dict__":
            self.fields[name] = value
        elif has_member(FunctionType, name):
            super().set(tracer, name, value)
        else:
            self.namespace()[name] = value

    def set_outside(self, tracer: Any, name: str, value: Tracker) -> None:
        """Set an attribute of an existing function; a field that C keeps may only be set to its present value."""
        if has_member(FunctionType, name):
            if not value.constant or getattr(self.value, name) != value.value:  # type: ignore[attr-defined]
                super().set(tracer, name, value)
            return
        tracer.mutates(self)
        self.namespace()[name] = value

    def namespace(self) -> dict[Any, Tracker]:
        """Return the entries of `__dict__` of a function made in the frame."""
        if self.attrs is None:
            self.attrs = {}
        return self.attrs


def held(x: Any) -> Any:
    """Return the object that exists behind a tracker, if any, without a guard on its identity."""
    return x.existing if type(x) is Function else getattr(x, "value", None)


class FunctionDict(Dict):
    """`__dict__` of a function made in the frame."""

    __slots__ = ("fn",)

    def __init__(self, fn: Function) -> None:
        super().__init__(fn.namespace())
        self.fn = fn


def _dict(self: Function, tracer: Any) -> Tracker:
    if self.space is None:
        self.space = FunctionDict(self)
    return self.space


def _annotations(self: Function, tracer: Any) -> Tracker:
    pairs = self.annotations.open(tracer) if self.annotations is not None else ()  # type: ignore[attr-defined]
    made = self.fields["__annotations__"] = Dict({k.key(tracer): v for k, v in zip(pairs[::2], pairs[1::2])})
    return made


def _doc(self: Function, tracer: Any) -> Tracker:
    first = self.code.co_consts[0] if self.code.co_consts else None
    return Const(first if isinstance(first, str) else None)


_MADE_ATTRS = {
    "__dict__": _dict,
    "__annotations__": _annotations,
    "__doc__": _doc,
    "__module__": lambda self, tracer: tracer.made(self.globals.get("__name__")),
    "__type_params__": lambda self, tracer: Tuple([]),
}


def _kwdefaults(self: Function, tracer: Any) -> Tracker:
    self.open(tracer)
    return Dict(dict(self.kwdefaults)) if self.kwdefaults else NONE


def _defaults(self: Function, tracer: Any) -> Tracker:
    self.open(tracer)
    return NONE if self.defaults is None else Tuple(self.defaults)


def _closure(self: Function, tracer: Any) -> Tracker:
    self.guard_identity()  # cells may be compared by identity
    self.open(tracer)
    return Tuple(list(self.closure)) if self.closure else NONE


_NAMES = ("__name__", "__qualname__")
_FUNCTION_ATTRS = {
    "__code__": lambda self, tracer: Const(self.code),
    "__name__": lambda self, tracer: Const(self.name),
    "__qualname__": lambda self, tracer: Const(self.qualname),
    "__defaults__": _defaults,
    "__kwdefaults__": _kwdefaults,
    "__closure__": _closure,
    "__globals__": lambda self, tracer: tracer.wrap(self.globals, Pinned(self.globals)),
}


class Method(Holder):
    """A function bound to its first argument."""

    __slots__ = ("func", "obj", "value")
    cls = MethodType
    truth = always

    def __init__(self, func: Tracker, obj: Tracker, source: Source | None = None, value: Any = None) -> None:
        self.func = func
        self.obj = obj
        self.source = source
        self.value = value

    def describe(self) -> str:
        return f"method of {self.func.describe()}"

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        return self.func.call(tracer, [self.obj, *args], kwargs)

    def get(self, tracer: Any, name: str) -> Tracker:
        if name == "__self__":
            return self.obj
        if name == "__func__":
            return self.func
        return self.func.get(tracer, name)

    def key(self, tracer: Any) -> Any:
        return self

    def real(self, tracer: Any) -> Any:
        obj = self.obj.real(tracer)
        return MethodType(self.func.real(tracer), obj)


class Partial(Holder):
    """functools.partial."""

    __slots__ = ("args", "func", "kwargs", "space", "value")
    cls = functools.partial
    truth = always

    def __init__(self, func: Tracker, args: list[Tracker], kwargs: dict[str, Tracker], *, value: Any = None,
                 source: Source | None = None) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.value = value
        self.source = source
        self.space: Dict | None = None
        """The instance dict of one made in the frame, once it has been read."""

    def key(self, tracer: Any) -> Any:
        return self.identity()

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        return self.func.call(tracer, [*self.args, *args], {**self.kwargs, **kwargs})

    def get(self, tracer: Any, name: str) -> Tracker:
        if name == "func":
            return self.func
        if name == "args":
            return Tuple(self.args)
        if name == "keywords":
            return Dict(dict(self.kwargs))
        if self.space is not None and name in self.space.entries:
            return self.space.entries[name]
        if name == "__module__" or name == "__doc__" and self.value is None:
            return tracer.made(getattr(functools.partial, name))
        if self.value is None and name == "__dict__":
            return self.namespace()
        if self.value is None and not has_member(functools.partial, name):
            return tracer.no_attribute(self, name)
        return super().get(tracer, name)

    def namespace(self) -> Dict:
        """`__dict__` of one made in the frame."""
        if self.space is None:
            self.space = Dict({})
        return self.space

    def set(self, tracer: Any, name: str, value: Tracker) -> None:
        if self.value is not None or name in _PARTS:
            super().set(tracer, name, value)
        self.namespace().entries[name] = value


_PARTS = ("func", "args", "keywords", "__dict__", "__class__")


class ByRow(Tracker):
    """A callable implemented by a handler."""

    __slots__ = ("handler",)
    cls = FunctionType
    truth = always

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        return self.handler(tracer, args, kwargs)


class Address(Tracker):
    """`id(x)` of an object made in the frame: equal to another exactly if both are of the same object; its number is
    unknown."""

    __slots__ = ("of",)
    cls = int
    truth = always

    def __init__(self, of: Tracker) -> None:
        self.of = of

    def identity(self) -> Any:
        return self.of.identity()

    def key(self, tracer: Any) -> Any:
        return AddressKey(self)


class AddressKey:
    """An address in a hash table of capture's."""

    __slots__ = ("tracker",)

    def __init__(self, tracker: Address) -> None:
        self.tracker = tracker

    def __hash__(self) -> int:
        return hash(id(self.tracker.identity()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AddressKey) and other.tracker.identity() is self.tracker.identity()
