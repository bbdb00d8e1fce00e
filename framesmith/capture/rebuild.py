"""Trackers -> statements of residual code that make the values again.

A `Rebuilder` writes Python text: expressions that name arguments, graph outputs (`__fs_o`), graph inputs (`__fs_inputs`), held
objects (`__fs_h3`, filled into co_consts afterwards) and temporaries.  An object that is reached twice is made once, so identity is kept;
mutable ones are made empty first and then filled, so cycles work.
"""

from __future__ import annotations

import collections
import functools
import re
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
from .inference import Inference
from .interned import Kept, lasts
from .outputs import view_text
from .overrides import as_class, converts
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


class Rebuilder:
    """Collects statements (text, user's line) and graph outputs."""

    def __init__(self, cx: Any, code: types.CodeType, arg_names: dict[str, str]) -> None:
        self.cx = cx
        self.code = code
        self.free = code.co_freevars
        """Free variables of the code: in its text no global is known by such a name."""
        self.types: dict[Source, type] = {}
        self.types_of = -1
        self.arg_names = arg_names
        self.lines: list[str] = []
        self.after: list[str] = []
        """Statements for when all effects have happened."""
        self.held: list[Any] = []
        self.held_at: dict[int, str] = {}
        self.outputs: list[Any] = []
        self.output_at: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.alive: list[Any] = []
        self.unfinished = 0
        """Classes that do not have their attributes yet."""
        self.cells: list[t.Cell] = []
        """Cells of their functions: what they hold may be keys by a method of such a class, and is made afterwards."""
        self.n_temps = 0
        self.drawn_from: list[torch.Generator] = []
        """Generators that are put back where an assertion on data does not hold."""
        self.targets: dict[Source, str] = {}
        """What weak references refer to, read once: it may die between the guards and here."""

    # --- names --------------------------------------------------------------------------------------------------------
    def hold(self, obj: Any) -> str:
        """An expression for an object kept in co_consts."""
        name = self.held_at.get(id(obj))
        if name is None:
            name = self.held_at[id(obj)] = f"__fs_h{len(self.held)}"
            self.held.append(obj)
        return name

    def namespace(self, space: dict[str, Any]) -> str:
        """An expression for a globals dict."""
        plain = space is self.cx.root_globals and "globals" not in space and "globals" not in self.free
        return "globals()" if plain else self.hold(space)

    def klass(self, cls: type) -> str:
        """An expression for a class: one that the frame made is made again."""
        return self.value(self.cx.seen[id(cls)]) if cls in self.cx.made_classes else self.hold(cls)

    def type_at(self, source: Source) -> type | None:
        """The class that the guards found at `source`, if one of them asks."""
        guards = self.cx.guards
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
        """The expression that walks a source."""
        return SOURCES[type(s)](self, s)

    # --- trackers -----------------------------------------------------------------------------------------------------
    def value(self, x: t.Tracker) -> str:
        """The expression of a tracker's value; evaluated at most once when identity matters."""
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
            name = row(self, x)
            self.names[key] = name
        return name

    def const(self, x: t.Const) -> str:
        """The very object: one that guards compare by equality is read again, where it came from."""
        v = x.value
        if self.cx.made_classes and self.cx.mentions_made(v):
            raise Unsupported(f"{type(v).__name__} of a class made in the frame lives across the end of captured code")
        if v is None or type(v) is bool or type(v) is int and -6 < v < 257:
            return f"({v!r})"
        if id(v) in self.cx.parts:
            raise Unsupported("a field of a dataclass made in the frame lives across the end of captured code")
        if id(v) in self.cx.fields:
            return classes.field(self, v)
        if type(v) is str and x.source is None and not lasts(v):
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
        """A key, to be put into a table or taken out of it."""
        self.cx.settle_key(key)
        return self.value(self.cx.unkey(key))

    def keys(self, keys: Any) -> str:
        """A key, or what holds keys (of sets and dicts)."""
        if type(keys) not in (list, set, frozenset, dict):
            return self.key(keys)
        text = f"[{', '.join(map(self.key, keys))}]"
        if type(keys) is list:
            return text
        return f"{self.hold(dict.fromkeys)}({text})" if type(keys) is dict else f"{self.hold(type(keys))}({text})"

    def bind(self, x: t.Tracker, expr: str) -> str:
        """A name for a mutable value before its parts are made."""
        name = self.temp(expr)
        self.names[id(x)] = name
        return name

    def tensor(self, x: t.Tensor) -> str:
        """A graph output, or the input itself."""
        if x.value is not None and x.source is not None:
            return self.temp(self.input(x))
        node = self.cx.recorder.input_aliased(x.fake)
        owner = None if node is None else next((i for i in self.cx.inputs if i.fake._alias.storage.input is node), None)
        if owner is not None:
            base = self.input(owner) if not converts(owner.pyclass) else self.as_class(self.input(owner), torch.Tensor)
            text = view_text(self.hold, base, x.fake, self.cx.view_grad(owner.fake, x.fake))
            name = self.temp(self.of_class(x, text))
            self.names[id(x)] = name
            self.own_attributes(x, name)
            return name
        at = self.output_at.get(id(x.fake))
        if at is None:
            at = self.output_at[id(x.fake)] = len(self.outputs)
            self.outputs.append(x.fake)
        name = self.of_class(x, f"__fs_o[{at}]")
        if x.attrs or converts(x.pyclass):
            name = self.names[id(x)] = self.temp(name)
            self.own_attributes(x, name)
        return name

    def of_class(self, x: t.Tensor, expr: str) -> str:
        """`expr`, a tensor that the graph computed, as an instance of the class that the program made of it."""
        if converts(x.pyclass):
            return self.as_class(expr, x.pyclass)
        return expr if x.pyclass is torch.Tensor else f"{self.hold(x.pyclass)}({expr}, False)"

    def as_class(self, expr: str, cls: type) -> str:
        """`expr` as an instance of a class of tensors."""
        return f"{self.hold(as_class)}({expr}, {self.hold(cls)})"

    def own_attributes(self, x: t.Tensor, name: str) -> None:
        """Statements that set what the program has set on a tensor."""
        for k, v in (x.attrs or {}).items():
            if v is not t.DELETED:
                self.emit(f"{name}.{k} = {self.value(v)}")

    def entered(self, x: Inference) -> str:
        """The guard object of an inference mode that the program has entered and not left; the effects enter it."""
        name = self.names.get(id(x))
        if name is None:
            name = self.names[id(x)] = self.temp(f"{self.hold(torch._C._InferenceMode)}({x.mode})")
        return name

    def input(self, x: t.Tensor) -> str:
        """An input tensor by its place among the graph's inputs (the place is settled when the graph is finished)."""
        return f"__fs_inputs[{self.cx.input_slot(x)}]"


def _never(rb: Rebuilder, x: t.Tracker) -> str:
    raise Unsupported(f"{x.describe()} lives across the end of captured code")


def _late(rb: Rebuilder, x: t.Late) -> str:
    if x.write is None and x.settled:
        return rb.const(x)
    if x.write is None:
        return rb.temp(rb.source(x.source))  # type: ignore[arg-type]
    return rb.temp(x.write(*rb.values(list(x.parts))))


def _data(rb: Rebuilder, x: t.Data) -> str:
    return rb.temp(x.write(*rb.values(list(x.parts))))


def _chosen(rb: Rebuilder, x: t.Chosen) -> str:
    condition, yes, no = rb.values([x.condition, x.yes, x.no])
    return rb.temp(f"({yes} if {condition} else {no})")


def _draw(rb: Rebuilder, x: t.Draw) -> str:
    return rb.temp(f"{rb.hold(Random.random)}({rb.value(x.generator)})")


def _array(rb: Rebuilder, x: t.Array) -> str:
    if x.value is not None and x.source is not None:
        return rb.temp(rb.source(x.source))
    return rb.temp(f"{rb.value(x.tensor)}.numpy(){'[()]' if x.scalar else ''}")


def _static(rb: Rebuilder, x: t.Static | t.Function) -> str:
    """The object itself: an argument of the frame is not kept alive by residual code."""
    if x.source is not None and type(x.source.chain()[0]) is Local:
        return rb.temp(rb.source(x.source))
    return rb.hold(x.value)


def _list(rb: Rebuilder, x: t.List) -> str:
    if x.value is not None and x.source is not None:
        return rb.temp(rb.source(x.source))
    name = rb.bind(x, "[]")
    if x.open(rb.cx):
        rb.emit(f"{name}.extend([{', '.join(rb.values(x.items))}])")
    return name


def _deque(rb: Rebuilder, x: t.Deque) -> str:
    if x.value is not None and x.source is not None:
        return rb.temp(rb.source(x.source))
    name = rb.bind(x, f"{rb.hold(collections.deque)}((), {x.maxlen})")
    rb.emit(f"{name}.extend([{', '.join(rb.values(x.open(rb.cx)))}])")
    return name


_WRITTEN = re.compile(r"\((?:-?\d+|None|True|False)\)")


def _tuple(rb: Rebuilder, x: t.Tuple) -> str:
    if x.value is not None and x.source is not None:
        return rb.temp(rb.source(x.source))
    items = rb.values(x.open(rb.cx))
    text = tuple_text(items)
    if x.cls is tuple:
        written = items and all(map(_WRITTEN.fullmatch, items))  # then Python would make it once for all calls
        return rb.temp(f"(*[{', '.join(items)}],)" if written else text)
    if is_plain_tuple(x.cls):
        return rb.temp(f"{rb.hold(tuple.__new__)}({rb.klass(x.cls)}, {text})")
    return rb.temp(f"{rb.klass(x.cls)}({text})")


def fill_dict(rb: Rebuilder, name: str, entries: dict[Any, t.Tracker], setter: str | None = None) -> None:
    """Statements that store entries."""
    for k, v in entries.items():
        key = rb.key(k)
        rb.emit(f"{setter}({name}, {key}, {rb.value(v)})" if setter else f"{name}[{key}] = {rb.value(v)}")


def _dict(rb: Rebuilder, x: t.Dict) -> str:
    if isinstance(x, t.InstanceDict):
        return rb.temp(own_dict(rb, rb.value(x.obj), x.obj.pytype()))
    if isinstance(x, t.ClassDict):
        return rb.temp(f"{rb.hold(dict_of)}({rb.klass(x.of)})")
    if isinstance(x, FunctionDict):
        return rb.temp(f"{rb.value(x.fn)}.__dict__")
    if x.value is not None and x.source is not None:
        return rb.temp(rb.source(x.source))
    make = "{}" if x.cls is dict else f"{rb.klass(x.cls)}()"
    if x.factory is not None:
        make = f"{rb.klass(x.cls)}({rb.value(x.factory)})"
    name = rb.bind(x, make)
    fill_dict(rb, name, x.entries)
    for k, v in (x.attrs or {}).items():
        rb.emit(f"{name}.{k} = {rb.value(v)}")
    return name


def _view(rb: Rebuilder, x: t.DictView) -> str:
    of = x.owner if x.owner is not None else x.dict
    if type(of) is t.Dict and of.cls in (dict, collections.OrderedDict):
        return rb.temp(f"{rb.value(of)}.{x.kind}()")
    return rb.temp(f"{rb.hold(getattr(x.dict.viewed, x.kind))}({rb.value(of)})")


def _set(rb: Rebuilder, x: t.Set) -> str:
    if x.value is not None and x.source is not None:
        return rb.temp(rb.source(x.source))
    keys = x.open(rb.cx)
    if x.loose and len(keys) > 1:
        raise Unsupported("a set made of one from outside, whose history decides the order, lives across the end of captured code")
    if x.first is None or list(x.cls(list(keys))) == list(keys):
        return rb.temp(rb.keys(keys))
    name = rb.temp(f"{rb.klass(x.cls)}({rb.keys(x.first)})")
    rb.lines += set_changes(rb, name, x)
    return name


def set_changes(rb: Rebuilder, name: str, x: t.Set) -> list[str]:
    """Statements that change a set as the program did."""
    return [f"{rb.hold(getattr(set, method))}({', '.join([name, *map(rb.keys, args)])})" for method, args in x.changes]


def _slice(rb: Rebuilder, x: t.Slice) -> str:
    if x.value is not None and x.source is not None:
        return rb.temp(rb.source(x.source))
    return rb.temp(f"{rb.hold(slice)}({', '.join(rb.values(x.parts))})")


def _function(rb: Rebuilder, x: t.Function) -> str:
    if x.value is not None:
        return _static(rb, x) if id(x.value) not in rb.cx.of_made else classes.function_of_made(rb, x.value)
    cells = tuple_text(rb.values(list(x.closure))) if x.closure else "None"
    defaults = tuple_text(rb.values(x.defaults)) if x.defaults else "None"
    name = rb.bind(x, f"{rb.hold(types.FunctionType)}({rb.hold(x.code)}, {rb.hold(x.globals)}, {x.name!r}, {defaults}, {cells})")
    if x.kwdefaults:
        entries = ", ".join(f"{k!r}: {rb.value(v)}" for k, v in x.kwdefaults.items())
        rb.emit(f"{name}.__kwdefaults__ = {{{entries}}}")
    if x.qualname != x.code.co_qualname:
        rb.emit(f"{name}.__qualname__ = {x.qualname!r}")
    if x.annotations is not None or x.fields:
        _function_fields(rb, x, name)
    for k, v in (x.attrs or {}).items():
        rb.emit(f"{name}.__dict__[{rb.key(k)}] = {rb.value(v)}")
    return name


def _function_fields(rb: Rebuilder, x: t.Function, name: str) -> None:
    if x.annotations is not None:
        x.get(rb.cx, "__annotations__")
    for k, v in x.fields.items():
        rb.emit(f"{name}.{k} = {rb.value(v)}")


def _cell(rb: Rebuilder, x: t.Cell) -> str:
    if x.real_cell is not None:
        if isinstance(x.source, Cell):
            return rb.temp(f"(lambda: {x.source.name}).__closure__[0]")
        return rb.hold(x.real_cell) if x.source is None else rb.temp(rb.source(x.source))
    name = rb.bind(x, f"{rb.hold(types.CellType)}()")
    if rb.unfinished:
        rb.cells.append(x)
    elif x.content is not None:
        rb.emit(f"{name}.cell_contents = {rb.value(x.content)}")
    return name


def _method(rb: Rebuilder, x: t.Method) -> str:
    if isinstance(x.func, t.Const) and not callable(x.func.value):
        raise Unsupported("a method of what cannot be called")
    if x.value is not None and x.source is not None:
        return rb.temp(rb.source(x.source))
    return rb.temp(f"{rb.hold(types.MethodType)}({rb.value(x.func)}, {rb.value(x.obj)})")


def _partial(rb: Rebuilder, x: t.Partial) -> str:
    if x.value is not None and x.source is not None:
        return rb.temp(rb.source(x.source))
    args = "".join(f", {a}" for a in rb.values(x.args))
    kwargs = "".join(f", {k}={rb.value(v)}" for k, v in x.kwargs.items())
    made = rb.temp(f"{rb.hold(functools.partial)}({rb.value(x.func)}{args}{kwargs})")
    if x.space is not None and x.space.entries:
        rb.emit(f"{made}.__dict__.update({rb.value(x.space)})")
    return made


def _bound(rb: Rebuilder, x: t.Bound | t.TensorMethod) -> str:
    raw = x.raw if isinstance(x, t.Bound) else None
    if raw is not None:
        return rb.temp(f"{rb.hold(raw)}.__get__({rb.value(x.obj)}, {rb.hold(x.obj.pytype())})")
    return rb.temp(f"{rb.value(x.obj)}.{x.name}")


def _weak(rb: Rebuilder, x: t.WeakRef) -> str:
    return rb.temp(f"{rb.hold(weakref.ref)}({rb.value(x.target)})")


def _proxy(rb: Rebuilder, x: t.Proxy) -> str:
    return rb.temp(f"{rb.hold(types.MappingProxyType)}({rb.value(x.of)})")


def _super(rb: Rebuilder, x: t.Super) -> str:
    return rb.temp(f"{rb.hold(super)}({rb.klass(x.cls)}, {rb.value(x.obj)})")


def _object(rb: Rebuilder, x: t.Object) -> str:
    if x.value is not None:
        if x.source is None:
            return rb.hold(x.value)
        return rb.temp(rb.source(x.source))
    if x.cls.__module__ in iterators.OURS and x.cls.__name__ in ("Groups", "Group"):
        raise Unsupported("groups of itertools.groupby live across the end of captured code")
    cls = rb.klass(x.cls)
    if id(x) in rb.names:  # the class refers to it
        return rb.names[id(x)]
    name = rb.bind(x, _new_text(rb, x, cls))
    if isinstance(x.payload, t.Dict):
        fill_dict(rb, name, x.payload.entries, rb.hold(vars(x.payload.base)["__setitem__"]))
    elif isinstance(x.payload, t.List) and x.payload.items:
        rb.emit(f"{rb.hold(list.extend)}({name}, [{', '.join(rb.values(x.payload.items))}])")
    elif isinstance(x.payload, t.Set) and x.payload.cls is set:
        rb.emit(f"{rb.hold(set.update)}({name}, {rb.keys(x.payload.open(rb.cx))})")
    for k, v in x.attrs.items():
        rb.emit(assignment(rb, x, name, k, rb.value(v)))
    return name


def _object_outside(rb: Rebuilder, x: Any) -> str:
    return rb.hold(x.value) if x.source is None else rb.temp(rb.source(x.source))


def _new_text(rb: Rebuilder, x: t.Object, cls: str) -> str:
    p = x.payload
    if p is None:
        made_by = next((b for b in x.cls.__mro__ if b in PLAIN), object)
        return f"{rb.hold(made_by.__new__)}({cls})"
    if isinstance(p, t.Tuple):
        return f"{rb.hold(tuple.__new__)}({cls}, {tuple_text(rb.values(p.items))})"
    if isinstance(p, t.Const):
        return f"{rb.hold(type(p.value).__new__)}({cls}, {rb.value(p)})"
    if isinstance(p, t.Set):
        items = f", {rb.keys(p.open(rb.cx))}" if p.cls is frozenset else ""
        return f"{rb.hold(p.cls.__new__)}({cls}{items})"
    base = p.cls if isinstance(p, t.Dict) else list
    return f"{rb.hold(base.__new__)}({cls})"


def _inference(rb: Rebuilder, x: t.InferenceGuard) -> str:
    return rb.entered(x.entered) if x.entered is not None else rb.temp(f"{rb.hold(torch._C._InferenceMode)}({x.mode})")


_ROWS: dict[type, Callable[[Rebuilder, Any], str]] = {
    t.Array: _array, t.Inner: _never, t.Pullback: _never,
    t.Tensor: Rebuilder.tensor, t.InferenceGuard: _inference, t.Sym: _never, t.Late: _late, t.MadeClass: classes.made_class,
    t.Wrapped: classes.wrapped,
    t.Static: _static, t.Builtin: _static, t.Data: _data, t.Draw: _draw, t.Chosen: _chosen,
    t.Class: _static, t.PyModule: _static, t.Scripted: _static,
    t.List: _list, t.Deque: _deque, t.Proxy: _proxy, t.WeakRef: _weak, t.Tuple: _tuple, t.Dict: _dict,
    t.DictView: _view, t.Set: _set, t.Slice: _slice, t.Function: _function, t.Cell: _cell,
    t.Method: _method, t.Partial: _partial, t.Bound: _bound, t.TensorMethod: _bound, t.Super: _super,
    t.SeqIter: iterators.sequence_iterator, t.Outside: iterators.outside_iterator, t.Iter: iterators.values_iterator,
    t.Backward: iterators.sequence_iterator, t.Walk: iterators.constant_iterator, t.CheckedIter: iterators.checked_iterator,
    t.Fixed: iterators.fixed_iterator,
    t.Lazy: iterators.lazy_iterator, t.Until: iterators.calling_iterator, t.Generator: iterators.generator,
    t.Traceback: errors.traceback, t.FrameEnd: errors.frame_end, t.Error: errors.error,
    Lock: _object_outside, Opaque: _object_outside, t.Object: _object, t.Module: _object,
}


__all__ = ["Rebuilder", "fill_dict", "set_changes"]
