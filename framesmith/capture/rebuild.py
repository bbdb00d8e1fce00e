"""Trackers -> statements of residual code that make the values again.

A `Rebuilder` writes Python text: expressions that name arguments, graph outputs (`__fs_o`), graph inputs
(`__fs_inputs`), held objects (`__fs_h3`, filled into co_consts afterwards) and temporaries.  An object that is reached
twice is made once, so identity is kept; mutable ones are made empty first and then filled, so cycles work.
"""

from __future__ import annotations

import collections
import functools
import re
import sys
import types
import weakref
from collections.abc import Callable
from random import Random
from typing import Any

import torch

from framesmith.util.errors import Unsupported

from . import rebuild_classes as classes
from . import rebuild_errors as errors
from . import rebuild_iterators as iterators
from . import trackers as t
from .class_making import dict_of
from .dynamic_sizes import size_text
from .inference import Inference
from .outputs import Views
from .overrides import as_class, is_class_of_programs
from .rebuild_attributes import assignment, own_dict
from .rebuild_classes import tuple_text
from .rebuild_sources import SOURCES
from .registry import PLAIN
from .sources import Cell, Local, Source
from .trackers.functions import FunctionDict
from .trackers.locks import Lock
from .trackers.opaque import Opaque
from .trackers.sequences import is_plain_tuple
from .values import BY_EQUALITY
from .wrapper_tensors import rewrapped


class Rebuilder:
    """Collects statements (text, user's line) and graph outputs."""

    def __init__(self, tracer: Any, code: types.CodeType, arg_names: dict[str, str]) -> None:
        self.tracer = tracer
        self.code = code
        self.free = code.co_freevars
        """Free variables of the code, which shadow globals of the same names in its text."""
        self.types: dict[Source, type] = {}
        self.types_of = -1
        self.arg_names = arg_names
        self.lines: list[str] = []
        self.after: list[str] = []
        """Statements that run after all effects."""
        self.held: list[Any] = []
        self.held_at: dict[int, str] = {}
        self.outputs: list[Any] = []
        self.output_at: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.alive: list[Any] = []
        self.unfinished = 0
        """Classes that do not have their attributes yet."""
        self.cells: list[t.Cell] = []
        """Cells of their functions: their contents may be keys that such a class hashes, so they are rebuilt
        afterwards."""
        self.n_temps = 0
        self.detached: dict[int, str] = {}
        self.data_sizes: dict[str, str] = {}
        """Symbols of data, as views that leave the graph read them."""
        self.drawn_from: list[torch.Generator] = []
        """Generators whose states are restored if an assertion on data fails."""
        self.targets: dict[Source, str] = {}
        """The referents of weak references, each read once: a referent may die between the guards and here."""

    # --- names --------------------------------------------------------------------------------------------------------
    @property
    def views(self) -> Views:
        """The printer of views. It is not stored, since it holds methods of this object."""
        return Views(self, self.tracer.view_grad, self.emit, self.detached)

    def hold(self, obj: Any) -> str:
        """Return an expression for an object kept in co_consts."""
        name = self.held_at.get(id(obj))
        if name is None:
            name = self.held_at[id(obj)] = f"__fs_h{len(self.held)}"
            self.held.append(obj)
        return name

    def namespace(self, space: dict[str, Any]) -> str:
        """Return an expression for a globals dict."""
        plain = space is self.tracer.root_globals and "globals" not in space and "globals" not in self.free
        return "globals()" if plain else self.hold(space)

    def klass(self, cls: type) -> str:
        """Return an expression for a class: one that the frame made is made again."""
        return self.value(self.tracer.seen[id(cls)]) if cls in self.tracer.made_classes else self.hold(cls)

    def type_at(self, source: Source) -> type | None:
        """Return the class that guards require at `source`, if any."""
        guards = self.tracer.guards
        if self.types_of != len(guards):
            self.types_of = len(guards)
            self.types = {g.source: g.value for g in guards.values() if g.kind == "type"}
        return self.types.get(source)

    def temp(self, expr: str) -> str:
        """Bind `expr` to a new name."""
        name = f"__fs_t{self.n_temps}"
        self.n_temps += 1
        self.lines.append(f"{name} = {expr}")
        return name

    def emit(self, text: str) -> None:
        self.lines.append(text)

    # --- sources ------------------------------------------------------------------------------------------------------
    def source(self, s: Source) -> str:
        """Return the expression that walks a source."""
        return SOURCES[type(s)](self, s)

    # --- trackers -----------------------------------------------------------------------------------------------------
    def value(self, x: t.Tracker) -> str:
        """Return the expression of a tracker's value; evaluated at most once when identity matters."""
        if type(x) is t.Const:
            return self.const(x)
        key = id(x.fake) if isinstance(x, t.Tensor) else id(x)
        name = self.names.get(key)
        if name is None:
            row = _ROWS.get(type(x))
            if row is None:
                row = next((r for c, r in _ROWS.items() if isinstance(x, c)), None)
            if row is None:
                raise Unsupported(f"{x.describe()} lives across the end of captured code")
            self.alive.append(x)
            outside = isinstance(x, t.Holder) and not isinstance(x, t.Function) and x.value is not None
            name = row(self, x) if not outside or x.source is None else self.temp(self.source(x.source))
            self.names[key] = name
        return name

    def const(self, x: t.Const) -> str:
        """Return the expression of an identical object: one that guards compare by equality is read again from its
        source."""
        v = x.value
        if self.tracer.made_classes and self.tracer.mentions_made(v):
            raise Unsupported(f"{type(v).__name__} of a class made in the frame lives across the end of captured code")
        if v is None or type(v) is bool or type(v) is int and -6 < v < 257:
            return f"({v!r})"
        if id(v) in self.tracer.parts:
            raise Unsupported("a field of a dataclass made in the frame lives across the end of captured code")
        if id(v) in self.tracer.fields:
            return classes.field(self, v)
        if type(v) is str and x.source is None and not _lasts(v):
            return f"{self.hold(Kept(v))}.value"
        if x.source is None or type(v) not in BY_EQUALITY and type(v).__module__ != "numpy":
            return self.hold(v)
        name = self.names.get(id(x))
        if name is None:
            self.alive.append(x)
            name = self.bind(x, self.source(x.source))
        return name

    def values(self, xs: list[t.Tracker]) -> list[str]:
        return [self.value(x) for x in xs]

    def key(self, key: Any) -> str:
        """Return the expression of a key that is inserted into a table or deleted."""
        self.tracer.settle_key(key)
        return self.value(self.tracer.unkey(key))

    def keys(self, keys: Any) -> str:
        """Return the expression of a key, or of a set or dict of keys."""
        if type(keys) not in (list, set, frozenset, dict):
            return self.key(keys)
        text = f"[{', '.join(map(self.key, keys))}]"
        if type(keys) is list:
            return text
        return f"{self.hold(dict.fromkeys)}({text})" if type(keys) is dict else f"{self.hold(type(keys))}({text})"

    def called(self, fn: Any, *given: t.Tracker) -> str:
        """Bind what a call of `fn` makes of some values to a new name."""
        return self.temp(f"{self.hold(fn)}({', '.join(self.values(list(given)))})")

    def bind(self, x: t.Tracker, expr: str) -> str:
        """Return a name for a mutable value before its parts are made."""
        name = self.temp(expr)
        self.names[id(x)] = name
        return name

    def tensor(self, x: t.Tensor) -> str:
        """Return the expression of a graph output, or of the input itself."""
        if x.value is not None and x.source is not None:
            return self.temp(self.input(x))
        node = self.tracer.recorder.input_aliased(x.fake)
        owner = None if node is None else next((i for i in self.tracer.inputs if i.fake._alias.storage.input is node),
                                               None)
        if owner is not None:
            base = self.input(owner)
            if is_class_of_programs(owner.pyclass):
                base = self.as_class(base, torch.Tensor)
            name = self.temp(self.of_class(x, self.views.text(base, owner.fake, x.fake)))
            self.names[id(x)] = name
            self.own_attributes(x, name)
            return name
        self.tracer.refuse_former_view(x.fake._alias)
        at = self.output_at.get(id(x.fake))
        if at is None:
            at = self.output_at[id(x.fake)] = len(self.outputs)
            self.outputs.append(x.fake)
        name = self.of_class(x, f"__fs_o[{at}]")
        if x.attrs or is_class_of_programs(x.pyclass):
            name = self.names[id(x)] = self.temp(name)
            self.own_attributes(x, name)
        return name

    def size(self, x: t.Sym) -> str:
        """Return the expression of a number that is computed from inputs' sizes."""
        return self.temp(size_text(self, x.value))

    def of_class(self, x: t.Tensor, expr: str) -> str:
        """`expr`, a tensor that the graph computed, as an instance of the class that the program made of it."""
        if is_class_of_programs(x.pyclass):
            return self.as_class(expr, x.pyclass, x.fake._alias.grad)
        return expr if x.pyclass is torch.Tensor else f"{self.hold(x.pyclass)}({expr}, False)"

    def as_class(self, expr: str, cls: type, grad: bool = True) -> str:
        """Write the expression that makes an instance of a class of tensors of `expr`, in a grad mode."""
        return f"{self.hold(as_class)}({expr}, {self.hold(cls)}, {grad})"

    def own_attributes(self, x: t.Tensor, name: str) -> None:
        """Write statements that set the attributes that the program has set on a tensor."""
        for k, v in (x.attrs or {}).items():
            if v is not t.DELETED:
                self.emit(f"{name}.{k} = {self.value(v)}")

    def entered(self, x: Inference) -> str:
        """Return the guard object of an inference mode that the program has entered and not left; the effects enter
        it."""
        name = self.names.get(id(x))
        if name is None:
            name = self.names[id(x)] = self.temp(f"{self.hold(torch._C._InferenceMode)}({x.mode})")
        return name

    def input(self, x: t.Tensor) -> str:
        """Return an input tensor by its place among the graph's inputs (the place is settled when the graph is
        finished)."""
        return f"__fs_inputs[{self.tracer.input_slot(x)}]"


class Kept:
    """Holds a string that residual code hands out: among the constants of code, one that looks like a name would be
    interned, and become another object."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value


def _lasts(text: str) -> bool:
    """Return whether a string among the constants of code remains the same object."""
    return (len(text) < 2 or not text.isascii() or not text.replace("_", "a").isalnum()
            or sys.intern("".join(text)) is text)


def _never(rebuilder: Rebuilder, x: t.Tracker) -> str:
    raise Unsupported(f"{x.describe()} lives across the end of captured code")


def _late(rebuilder: Rebuilder, x: t.SymbolicNumber) -> str:
    if x.write is None and x.settled:
        return rebuilder.const(x)
    if x.write is None:
        return rebuilder.temp(rebuilder.source(x.source))  # type: ignore[arg-type]
    return rebuilder.temp(x.write(*rebuilder.values(list(x.parts))))


def _data(rebuilder: Rebuilder, x: t.Data) -> str:
    return rebuilder.temp(x.write(*rebuilder.values(list(x.parts))))


def _chosen(rebuilder: Rebuilder, x: t.Chosen) -> str:
    condition, yes, no = rebuilder.values([x.condition, x.yes, x.no])
    return rebuilder.temp(f"({yes} if {condition} else {no})")


def _array(rebuilder: Rebuilder, x: t.Array) -> str:
    return rebuilder.temp(f"{rebuilder.value(x.tensor)}.numpy(){'[()]' if x.scalar else ''}")


def _static(rebuilder: Rebuilder, x: t.Static | t.Function) -> str:
    """Return the expression of the object itself: residual code does not keep an argument of the frame alive."""
    if x.source is not None and type(x.source.chain()[0]) is Local:
        return rebuilder.temp(rebuilder.source(x.source))
    return rebuilder.hold(x.value)


def _list(rebuilder: Rebuilder, x: t.List) -> str:
    name = rebuilder.bind(x, "[]")
    if x.open(rebuilder.tracer):
        rebuilder.emit(f"{name}.extend([{', '.join(rebuilder.values(x.items))}])")
    return name


def _deque(rebuilder: Rebuilder, x: t.Deque) -> str:
    name = rebuilder.bind(x, f"{rebuilder.hold(collections.deque)}((), {x.maxlen})")
    rebuilder.emit(f"{name}.extend([{', '.join(rebuilder.values(x.open(rebuilder.tracer)))}])")
    return name


_WRITTEN = re.compile(r"\((?:-?\d+|None|True|False)\)")


def _tuple(rebuilder: Rebuilder, x: t.Tuple) -> str:
    items = rebuilder.values(x.open(rebuilder.tracer))
    text = tuple_text(items)
    if x.cls is tuple:
        written = items and all(map(_WRITTEN.fullmatch, items))  # then Python would make it once for all calls
        return rebuilder.temp(f"(*[{', '.join(items)}],)" if written else text)
    if is_plain_tuple(x.cls):
        return rebuilder.temp(f"{rebuilder.hold(tuple.__new__)}({rebuilder.klass(x.cls)}, {text})")
    return rebuilder.temp(f"{rebuilder.klass(x.cls)}({text})")


def fill_dict(rebuilder: Rebuilder, name: str, entries: dict[Any, t.Tracker], setter: str | None = None) -> None:
    """Write statements that store entries."""
    for k, v in entries.items():
        key = rebuilder.key(k)
        rebuilder.emit(f"{setter}({name}, {key}, {rebuilder.value(v)})" if setter
                       else f"{name}[{key}] = {rebuilder.value(v)}")


def _dict(rebuilder: Rebuilder, x: t.Dict) -> str:
    if isinstance(x, t.InstanceDict):
        return rebuilder.temp(own_dict(rebuilder, rebuilder.value(x.obj), x.obj.pytype()))
    if isinstance(x, t.ClassDict):
        return rebuilder.temp(f"{rebuilder.hold(dict_of)}({rebuilder.klass(x.of)})")
    if isinstance(x, FunctionDict):
        return rebuilder.temp(f"{rebuilder.value(x.fn)}.__dict__")
    make = "{}" if x.cls is dict else f"{rebuilder.klass(x.cls)}()"
    if x.factory is not None:
        make = f"{rebuilder.klass(x.cls)}({rebuilder.value(x.factory)})"
    name = rebuilder.bind(x, make)
    fill_dict(rebuilder, name, x.entries)
    for k, v in (x.attrs or {}).items():
        rebuilder.emit(f"{name}.{k} = {rebuilder.value(v)}")
    return name


def _view(rebuilder: Rebuilder, x: t.DictView) -> str:
    of = x.owner if x.owner is not None else x.dict
    if type(of) is t.Dict and of.cls in (dict, collections.OrderedDict):
        return rebuilder.temp(f"{rebuilder.value(of)}.{x.kind}()")
    return rebuilder.temp(f"{rebuilder.hold(getattr(x.dict.viewed, x.kind))}({rebuilder.value(of)})")


def _set(rebuilder: Rebuilder, x: t.Set) -> str:
    keys = x.open(rebuilder.tracer)
    if x.loose and len(keys) > 1:
        raise Unsupported("a set made of one from outside, whose history decides the order, lives across the end of "
                          "captured code")
    if x.first is None or list(x.cls(list(keys))) == list(keys):
        return rebuilder.temp(rebuilder.keys(keys))
    name = rebuilder.temp(f"{rebuilder.klass(x.cls)}({rebuilder.keys(x.first)})")
    rebuilder.lines += set_changes(rebuilder, name, x)
    return name


def set_changes(rebuilder: Rebuilder, name: str, x: t.Set) -> list[str]:
    """Return statements that change a set as the program did."""
    return [f"{rebuilder.hold(getattr(set, method))}({', '.join([name, *map(rebuilder.keys, args)])})" for method,
            args in x.changes]


def _function(rebuilder: Rebuilder, x: t.Function) -> str:
    if x.guard is not None and x.source is not None:
        return rebuilder.temp(rebuilder.source(x.source))
    if x.value is not None:
        return (_static(rebuilder, x) if id(x.value) not in rebuilder.tracer.of_made
                else classes.function_of_made(rebuilder, x.value))
    cells = tuple_text(rebuilder.values(list(x.closure))) if x.closure else "None"
    defaults = tuple_text(rebuilder.values(x.defaults)) if x.defaults else "None"
    name = rebuilder.bind(x, f"{rebuilder.hold(types.FunctionType)}({rebuilder.hold(x.code)}, "
                             f"{rebuilder.hold(x.globals)}, {x.name!r}, {defaults}, {cells})")
    if x.kwdefaults:
        entries = ", ".join(f"{k!r}: {rebuilder.value(v)}" for k, v in x.kwdefaults.items())
        rebuilder.emit(f"{name}.__kwdefaults__ = {{{entries}}}")
    if x.qualname != x.code.co_qualname:
        rebuilder.emit(f"{name}.__qualname__ = {x.qualname!r}")
    if x.annotations is not None or x.fields:
        _function_fields(rebuilder, x, name)
    for k, v in (x.attrs or {}).items():
        rebuilder.emit(f"{name}.__dict__[{rebuilder.key(k)}] = {rebuilder.value(v)}")
    return name


def _function_fields(rebuilder: Rebuilder, x: t.Function, name: str) -> None:
    if x.annotations is not None:
        x.get(rebuilder.tracer, "__annotations__")
    for k, v in x.fields.items():
        rebuilder.emit(f"{name}.{k} = {rebuilder.value(v)}")


def _cell(rebuilder: Rebuilder, x: t.Cell) -> str:
    if x.real_cell is not None:
        if isinstance(x.source, Cell):
            return rebuilder.temp(f"(lambda: {x.source.name}).__closure__[0]")
        return rebuilder.hold(x.real_cell) if x.source is None else rebuilder.temp(rebuilder.source(x.source))
    name = rebuilder.bind(x, f"{rebuilder.hold(types.CellType)}()")
    if rebuilder.unfinished:
        rebuilder.cells.append(x)
    elif x.content is not None:
        rebuilder.emit(f"{name}.cell_contents = {rebuilder.value(x.content)}")
    return name


def _method(rebuilder: Rebuilder, x: t.Method) -> str:
    if isinstance(x.func, t.Const) and not callable(x.func.value):
        raise Unsupported("a method of what cannot be called")
    return rebuilder.called(types.MethodType, x.func, x.obj)


def _partial(rebuilder: Rebuilder, x: t.Partial) -> str:
    args = "".join(f", {a}" for a in rebuilder.values(x.args))
    kwargs = "".join(f", {k}={rebuilder.value(v)}" for k, v in x.kwargs.items())
    made = rebuilder.temp(f"{rebuilder.hold(functools.partial)}({rebuilder.value(x.func)}{args}{kwargs})")
    if x.space is not None and x.space.entries:
        rebuilder.emit(f"{made}.__dict__.update({rebuilder.value(x.space)})")
    return made


def _bound(rebuilder: Rebuilder, x: t.Bound | t.TensorMethod) -> str:
    raw = x.raw if isinstance(x, t.Bound) else None
    if raw is not None:
        return rebuilder.temp(f"{rebuilder.hold(raw)}.__get__({rebuilder.value(x.obj)}, "
                              f"{rebuilder.hold(x.obj.pytype())})")
    return rebuilder.temp(f"{rebuilder.value(x.obj)}.{x.name}")


def _super(rebuilder: Rebuilder, x: t.Super) -> str:
    return rebuilder.temp(f"{rebuilder.hold(super)}({rebuilder.klass(x.cls)}, {rebuilder.value(x.obj)})")


def _object(rebuilder: Rebuilder, x: t.Object) -> str:
    if x.value is not None:
        return rebuilder.hold(x.value)
    cls = rebuilder.klass(x.cls)
    if id(x) in rebuilder.names:  # the class refers to it
        return rebuilder.names[id(x)]
    name = rebuilder.bind(x, _new_text(rebuilder, x, cls))
    if isinstance(x.payload, t.Dict):
        fill_dict(rebuilder, name, x.payload.entries, rebuilder.hold(vars(x.payload.base)["__setitem__"]))
    elif isinstance(x.payload, t.List) and x.payload.items:
        rebuilder.emit(f"{rebuilder.hold(list.extend)}({name}, [{', '.join(rebuilder.values(x.payload.items))}])")
    elif isinstance(x.payload, t.Set) and x.payload.cls is set:
        rebuilder.emit(f"{rebuilder.hold(set.update)}({name}, {rebuilder.keys(x.payload.open(rebuilder.tracer))})")
    for k, v in x.attrs.items():
        rebuilder.emit(assignment(rebuilder, x, name, k, rebuilder.value(v)))
    return name


def _new_text(rebuilder: Rebuilder, x: t.Object, cls: str) -> str:
    p = x.payload
    if p is None:
        made_by = next((b for b in x.cls.__mro__ if b in PLAIN), object)
        return f"{rebuilder.hold(made_by.__new__)}({cls})"
    if isinstance(p, t.Tuple):
        return f"{rebuilder.hold(tuple.__new__)}({cls}, {tuple_text(rebuilder.values(p.items))})"
    if isinstance(p, t.Const):
        return f"{rebuilder.hold(type(p.value).__new__)}({cls}, {rebuilder.value(p)})"
    if isinstance(p, t.Set):
        items = f", {rebuilder.keys(p.open(rebuilder.tracer))}" if p.cls is frozenset else ""
        return f"{rebuilder.hold(p.cls.__new__)}({cls}{items})"
    base = p.cls if isinstance(p, t.Dict) else list
    return f"{rebuilder.hold(base.__new__)}({cls})"


def _inference(rebuilder: Rebuilder, x: t.InferenceGuard) -> str:
    return (rebuilder.entered(x.entered) if x.entered is not None
            else rebuilder.temp(f"{rebuilder.hold(torch._C._InferenceMode)}({x.mode})"))


_ROWS: dict[type, Callable[[Rebuilder, Any], str]] = {
    t.Array: _array, t.Inner: _never, t.Pullback: _never,
    t.WrapperTensor: rewrapped, t.Tensor: lambda rebuilder, x: rebuilder.tensor(x), t.InferenceGuard: _inference,
    t.Sym: lambda rebuilder, x: rebuilder.size(x), t.SymbolicNumber: _late,
    t.MadeClass: classes.made_class,
    t.Wrapped: classes.wrapped,
    t.Static: _static, t.Builtin: _static, t.Data: _data,
    t.Draw: lambda rebuilder, x: rebuilder.called(Random.random, x.generator), t.Chosen: _chosen,
    t.Class: _static, t.PyModule: _static, t.Scripted: _static,
    **dict.fromkeys((t.FilledList, t.FilledTuple), lambda rebuilder, x: x.open(rebuilder.tracer)),
    t.List: _list, t.Deque: _deque, t.Tuple: _tuple,
    t.Proxy: lambda rebuilder, x: rebuilder.called(types.MappingProxyType, x.of),
    t.WeakRef: lambda rebuilder, x: rebuilder.called(weakref.ref, x.target), t.Dict: _dict,
    t.DictView: _view, t.Set: _set,
    t.Slice: lambda rebuilder, x: rebuilder.called(slice, *x.parts), t.Function: _function, t.Cell: _cell,
    t.Method: _method, t.Partial: _partial, t.Bound: _bound, t.TensorMethod: _bound, t.Super: _super,
    t.SeqIter: iterators.sequence_iterator, t.Outside: iterators.outside_iterator, t.Iter: iterators.values_iterator,
    t.Backward: iterators.sequence_iterator, t.Walk: iterators.constant_iterator,
    t.CheckedIter: iterators.checked_iterator, t.RangeIterator: iterators.range_iterator,
    **dict.fromkeys((t.Range, t.LoopIterator), lambda rebuilder, x: rebuilder.value(x.fixed(rebuilder.tracer))),
    t.Lazy: iterators.lazy_iterator, t.Until: iterators.calling_iterator, t.Generator: iterators.generator,
    t.Traceback: errors.traceback, t.FrameEnd: errors.frame_end, t.Error: errors.error,
    Lock: _static, Opaque: _static, t.Object: _object, t.Module: _object,
}


__all__ = ["Rebuilder", "fill_dict", "set_changes"]
