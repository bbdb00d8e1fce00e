"""Values and objects of the process as JSON: constants by value, functions, classes and modules by name and digest.

A reference names an object by the way to it from a module, and says what the object must be; in another process it is
followed without running code of the program's, and what is found there must have the same reference. So `decode` gives
only objects of which `encode` would say the same: it is the one definition of what is compared.
"""

from __future__ import annotations

import collections
import enum
import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from framesmith.capture.bridges import Place, bridge, place_of
from framesmith.capture.origins import origin
from framesmith.capture.registry import CALLS
from framesmith.capture.residual import GRAPH
from framesmith.capture.sources import MISSING
from framesmith.symbolic.expr import Expr, Rel
from framesmith.util.errors import FramesmithError
from framesmith.util.marks import is_disabled

from .digests import class_digest, code_digest, fields_text, has_plain_layout

Json = Any


class Unportable(FramesmithError):
    """A value is bound to this process, or its required properties are unknown."""


class Stale(FramesmithError):
    """An entry of the cache does not fit this process: an object that it refers to is missing or different."""


class References:
    """The references of one entry. `code`, `space`: the frame's code and globals, which go by no name; `functions`: by
    the identity of other code, a function that has it."""

    def __init__(self, code: types.CodeType, space: dict[str, Any],
                 functions: Mapping[int, types.FunctionType] = types.MappingProxyType({})) -> None:
        self._code, self._space, self._functions = code, space, dict(functions)
        self._known: dict[int, tuple[Any, Json]] = {}
        """Objects by identity, with their references: one object has one, and one reference one object."""
        self._objects: dict[str, Any] = {}
        self._places: dict[int, tuple[Any, Json]] = {}
        """Paths to objects without a name of their own, as guards find them."""

    # --- objects to JSON ----------------------------------------------------------------------------------------------
    def encode(self, value: Any) -> Json:
        """Return the JSON of a value; containers by what they hold. Raises Unportable."""
        cls = type(value)
        if issubclass(cls, list) and (cls is list or cls.__module__ == "torch.fx.immutable_collections"):
            return ["[]", *map(self.encode, value)]
        if issubclass(cls, dict) and (cls is dict or cls.__module__ == "torch.fx.immutable_collections"):
            return ["{}", *[[self.encode(k), self.encode(v)] for k, v in value.items()]]
        return self.identify(value)

    def identify(self, value: Any) -> Json:
        """Return the JSON of a value that code knows by its identity: a container that may change is the one at its
        place."""
        cls = type(value)
        if cls is int or cls is str or value is None:
            return value
        row = _CONSTANTS.get(cls)
        return row(self, value) if row is not None else self.reference(value)

    def reference(self, value: Any) -> Json:
        """Return the reference of an object."""
        hit = self._known.get(id(value))
        if hit is not None:
            return hit[1]
        found = self._reference(value)
        self._known[id(value)] = value, found
        other = self._objects.setdefault(repr(found), value)
        if other is not value and found[0] not in _BY_VALUE:
            raise Unportable(f"two objects of one name: {found[1:]}")
        return found

    def _reference(self, value: Any) -> Json:
        for tag, named in _NAMED.items():
            if value is named:
                return ["named", tag]
        if value is self._code:
            return ["code"]
        if value is self._space:
            return ["globals"]
        cls = type(value)
        if isinstance(value, types.ModuleType):
            name = types.ModuleType.__getattribute__(value, "__name__")
            if sys.modules.get(name) is not value:
                raise Unportable(f"a module that is not imported under its name, {name}")
            return ["module", name]
        if issubclass(cls, type):
            return ["class", self._path(value), "" if _is_own(value) else class_digest(value) + _said(value)]
        if cls is types.FunctionType:
            if place_of(value.__code__) is not None:
                return ["bridge function", self.reference(value.__code__), self.reference(value.__globals__)]
            path = self._path(value)
            self._known[id(value)] = value, ["function", path]  # a default may refer to it
            return ["function", path, *self._function(value, path)]
        if cls is types.CodeType and (found := self._code_object(value)) is not None:
            return found
        if cls is weakref.ReferenceType and value() is self._code:
            return ["code reference"]
        if cls in _MEMBERS:
            return ["member", self.encode(value.__objclass__), value.__name__, _said(value)]
        if cls is types.BuiltinFunctionType and isinstance(value.__self__, type):
            return ["static", self.encode(value.__self__), value.__name__, _said(value)]
        if cls is types.BuiltinFunctionType or cls is functools._lru_cache_wrapper:
            return ["callable", self._path(value), cls.__name__, _said(value)]
        if cls is functools.partial:
            return ["partial", *map(self.encode, (value.func, value.args, value.keywords))]
        if cls is torch._ops.OpOverload:
            if value.namespace not in _OPERATORS:
                raise Unportable(f"the operator {value}, whose kernel is the program's")
            return ["operator", value.namespace, value._schema.name.partition("::")[2], value._overloadname]
        if isinstance(value, Expr | Rel):
            made: Any = value.__reduce__()
            return ["expression", *map(self.encode, made)]
        if isinstance(value, enum.Enum):
            return ["enum", self.encode(cls), value.name, self.encode(value.value)]
        if cls is dict and (module := _module_with(value)) is not None:
            return ["names", module]
        if issubclass(cls, tuple):
            return ["named tuple", self.encode(cls), [*map(self.encode, value)]]
        if cls.__module__.startswith("framesmith.") and (state := _state(cls)) is not None:
            return ["own", self.encode(cls), [self.encode(getattr(value, name)) for name in state]]
        return self._placed(value)

    def _code_object(self, code: types.CodeType) -> Json | None:
        """Refer to a bridge by the instruction that it runs, and to other code by a function that has it, or by the
        frame's code, where that makes a function of it."""
        if (made := place_of(code)) is not None:
            at, waits = made
            return ["bridge", self.reference(at.code), at.index, [*at.layout], [*at.names], [*at.kw_names], waits]
        if code is (user := origin(self._code, 0)[0]):
            return ["code of the continuation"]
        for k, one in enumerate(user.co_consts):
            if one is code:
                return ["code within", self.reference(user), k]
        fn = self._functions.get(id(code))
        return None if fn is None else ["code of", self.reference(fn)]

    def _placed(self, value: Any) -> Json:
        """Refer to an object without a name by the place where guards find it, and by its parts or the guards of its
        own."""
        place = self._places.get(id(value))
        if place is None:
            raise Unportable(f"an object without a name: a {type(value).__name__}")
        row = _PARTS.get(type(value))
        if row is not None:
            return ["at", place[1], type(value).__name__, *map(self.identify, row(value))]
        if not has_plain_layout(type(value)):
            raise Unportable(f"a {type(value).__name__}, whose state no guard compares")
        return ["at", place[1], self.identify(type(value))]

    def place(self, value: Any, owner: Any, name: str) -> Json:
        """Note that guards look `value` up in `owner`, a dict or a class, under `name`; returns its JSON."""
        if owner is self._space:
            base: Json = [""]
        elif isinstance(owner, dict):
            found = self.reference(owner)
            base = [found[1]] if found[0] == "names" else found[1]
        else:
            base = self._path(owner)
        self._note(value, [*base, ["name", name]])
        return self.identify(value)

    def _note(self, value: Any, path: Json) -> None:
        if value is not MISSING and type(value) not in _CONSTANTS:
            self._places.setdefault(id(value), (value, path))

    def _function(self, fn: types.FunctionType, path: Json) -> list[Json]:
        """Return the properties of a function that must match in addition to its name: code, defaults, and what the
        program has declared of it."""
        if _is_own(fn):
            return []
        self._note_inner(fn, path)
        defaults = _defaults(fn)
        for k, default in enumerate(defaults):
            self._note(default, [*path, ["default", k]])
        return [code_digest(fn.__code__), [*map(self.identify, defaults)], [*(fn.__kwdefaults__ or ())],
                fields_text(fn.__annotations__), sorted(fn.__dict__), f"{_said(fn)} {is_disabled(fn)}"]

    def _note_inner(self, fn: types.FunctionType, path: Json) -> None:
        """Note the cells of a function, and functions in them, as decorators make them."""
        for k, cell in enumerate(fn.__closure__ or ()):
            self._note(cell, [*path, ["cell object", k]])
        for step, inner in _inner(fn):
            if step[0] == "cell" and type(inner) is types.FunctionType and id(inner) not in self._places:
                self._note(inner, [*path, step])
                self._note_inner(inner, [*path, step])

    def _path(self, value: Any) -> Json:
        """Return a way to an object from a module: names, and steps beneath what decorators put around it."""
        if isinstance(value, type) and value in _HIDDEN:
            return ["interpreter", _HIDDEN[value]]
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if module is None and isinstance(value, types.BuiltinFunctionType):
            module = getattr(value.__self__, "__module__", None) or getattr(value.__self__, "__name__", None)
        if isinstance(module, str) and isinstance(name, str):
            for path in ([module, *name.split(".")], [module, name.rpartition(".")[2]]):
                try:
                    outer = functools.reduce(_step, path[1:], _module(path[0]))
                except Stale:
                    continue
                if outer is value:
                    return path
                for beneath in _beneath(outer, value):
                    return [*path, *beneath]
        place = self._places.get(id(value))
        if place is None:
            if isinstance(value, type) and isinstance(module, str) and type(sys.modules.get(module)) is value:
                return [module, ["class", ""]]
            if isinstance(value, type) and (kept := self._in_table(value)) is not None:
                return kept
            raise Unportable(f"{module}.{name}, which is not found under its name")
        return place[1]

    def _in_table(self, cls: type) -> Json | None:
        """Return the way to a class that a module, the one of a function in it, has made of one of its bases, by which
        it keeps it in a dict."""
        bases = cls.__mro__[1:]
        modules = [fn.__module__ for fn in vars(cls).values() if type(fn) is types.FunctionType]
        for module in dict.fromkeys([cls.__module__, *modules]):
            for name, table in vars(sys.modules.get(module, _INTERPRETER)).items():
                base = next((base for base in bases if table.get(base) is cls), None) if type(table) is dict else None
                if base is not None:
                    return [module, name, ["under", self._path(base)]]
        return None

    # --- JSON to objects ----------------------------------------------------------------------------------------------
    def decode(self, found: Json) -> Any:
        """Raises Stale."""
        if type(found) is not list:
            return found
        tag = found[0]
        row = _DECODED.get(tag)
        if row is not None:
            return row(self, found)
        text = repr(found)
        if text in self._objects:
            return self._objects[text]
        value = _FOUND[tag](self, *found[1:])
        self.expect(value, found)
        return value

    def code_of(self, fn: Any) -> types.CodeType:
        """Return the code of a function, by which it is known."""
        self._functions.setdefault(id(fn.__code__), fn)
        return fn.__code__  # type: ignore[no-any-return]

    def expect(self, value: Any, found: Json) -> None:
        """Raise Stale unless `value` has the reference `found`."""
        try:
            now = self.identify(value)
        except Unportable as error:
            raise Stale(str(error)) from None
        if now != found:
            raise Stale(f"changed: {_described(found)}")

    def _walk(self, path: Json) -> Any:
        """Return the object at the end of a path; no descriptor and no code of the program's runs."""
        value: Any = self._space if path[0] == "" else _module(path[0])
        for step in path[1:]:
            value = _step(value, step)
        self._note(value, path)
        return value


def tensor_data(x: Any) -> Json:
    """Return a tensor that the program makes of Python data, by its data. Raises Unportable."""
    if (type(x) is not torch.Tensor or x.device.type != "cpu" or not x.is_contiguous() or x.requires_grad
            or x.numel() > MOST_DATA):
        raise Unportable("a tensor that the capture holds")
    with torch.inference_mode(False):
        data = x.reshape(-1).view(torch.uint8).tolist()
    return ["tensor", str(x.dtype).removeprefix("torch."), list(x.shape), bytes(data).hex()]


def _tensor(refs: References, found: Json) -> torch.Tensor:
    _, dtype, shape, data = found
    return torch.tensor(list(bytes.fromhex(data)), dtype=torch.uint8).view(getattr(torch, dtype)).reshape(shape)


MOST_DATA = 4096
"""Elements of a tensor that an entry holds."""


def looked_up(owner: Any, name: str) -> Any:
    """Look a name up as guards do: in a dict, or in a class by its mro; MISSING if there is none."""
    if isinstance(owner, type):
        return next((vars(base)[name] for base in owner.__mro__ if name in vars(base)), MISSING)
    space = owner if isinstance(owner, dict) else types.ModuleType.__getattribute__(owner, "__dict__")
    return space.get(name, MISSING)


def _step(value: Any, step: Json) -> Any:
    try:
        if isinstance(step, list):
            return _BENEATH[step[0]](value, step[1])
        if isinstance(value, types.ModuleType):
            return types.ModuleType.__getattribute__(value, "__dict__")[step]
        if isinstance(value, type):
            return type.__dict__["__dict__"].__get__(value)[step]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        pass
    raise Stale(f"there is no {step} any more")


def _defaults(fn: types.FunctionType) -> list[Any]:
    return [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]


_BENEATH: dict[str, Callable[[Any, Any], Any]] = {
    "name": lambda owner, name: looked_up(owner, name),
    "default": lambda fn, k: _defaults(fn)[k],
    "cell object": lambda fn, k: fn.__closure__[k],
    "cell": lambda fn, k: fn.__closure__[k].cell_contents,
    "attribute": lambda value, name: value.__dict__[name],
    "class": lambda value, _: type(value),
    "under": lambda table, path: table[functools.reduce(_step, path[1:], _module(path[0]))],
    "part": lambda value, name: object.__getattribute__(value, name),
}
_WRAPPERS: dict[type, tuple[str, ...]] = {
    staticmethod: ("__func__",), classmethod: ("__func__",), property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",), functools._lru_cache_wrapper: (),
}


def _inner(value: Any) -> Iterator[tuple[Json, Any]]:
    """Yield the functions that a decorated one holds, and the way to each."""
    if isinstance(value, types.FunctionType):
        for k, cell in enumerate(value.__closure__ or ()):
            try:
                yield ["cell", k], cell.cell_contents
            except ValueError:  # not filled
                continue
    if isinstance(value, types.FunctionType | functools._lru_cache_wrapper) and "__wrapped__" in value.__dict__:
        yield ["attribute", "__wrapped__"], value.__dict__["__wrapped__"]
    for name in _WRAPPERS.get(type(value), ()):
        yield ["part", name], object.__getattribute__(value, name)


def _beneath(outer: Any, wanted: Any, depth: int = 6) -> Iterator[list[Json]]:
    """The steps from an object to one that it holds, as decorators nest functions."""
    if outer is wanted:
        yield []
    elif depth and not isinstance(outer, type | types.ModuleType):
        for step, inner in _inner(outer):
            for rest in _beneath(inner, wanted, depth - 1):
                yield [step, *rest]


def _state(cls: type) -> tuple[str, ...] | None:
    """Return the attributes that an object of a class of ours consists of; None: it is no plain value."""
    if is_dataclass(cls):
        return tuple([f.name for f in fields(cls)])
    slots = vars(cls).get("__slots__")
    return tuple(slots) if isinstance(slots, tuple) and cls.__base__ is object else None


def _is_own(value: Any) -> bool:
    """Return whether an object is ours, the interpreter's or of torch's C: those change only with versions that are in
    the key."""
    return str(getattr(value, "__module__", "")).partition(".")[0] in ("framesmith", "builtins")


def _said(fn: Any) -> str:
    """Return the name of capture's handler for calls of `fn`, which the program may have set; "" if calls are
    followed."""
    row = CALLS.get(fn)
    return "" if row is None else f"{row.__module__}.{row.__qualname__}"


def _own(refs: References, cls: Json, parts: list[Json]) -> Any:
    kind: Any = refs.decode(cls)
    value = object.__new__(kind)
    for name, part in zip(_state(kind) or (), parts, strict=True):
        object.__setattr__(value, name, refs.decode(part))
    return value


def _bridge(refs: References, code: Json, index: int, layout: Json, names: Json, keywords: Json,
            waits: bool) -> types.CodeType:
    return bridge(Place(refs.decode(code), index, tuple(layout), tuple(names), tuple(keywords)), waits)


def _described(found: Json) -> str:
    return ".".join(map(str, found[1])) if isinstance(found, list) and isinstance(found[1], list) else str(found)


_EMPTY: tuple[dict[Any, Any], ...] = ({}, collections.OrderedDict())
_INTERPRETER = types.ModuleType("interpreter")
"""Classes of the interpreter that no module of its own shows."""
_INTERPRETER.__dict__.update(
    {name: kind for name, kind in vars(types).items() if isinstance(kind, type)},
    **{type(one).__name__: type(one) for space in _EMPTY
       for view in (space.keys(), space.values(), space.items()) for one in (view, iter(view))},
    **{type(one).__name__: type(one) for one in (
        iter(()), iter([]), reversed([]), iter(""), iter(b""), iter(range(0)), iter(set()), reversed({}),
        iter(int, 0))})
_HIDDEN = {kind: name for name, kind in vars(_INTERPRETER).items() if isinstance(kind, type)}
_MEMBERS = frozenset({types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
                      types.MemberDescriptorType, types.ClassMethodDescriptorType})
_OPERATORS = frozenset({"aten", "prims", "mkldnn"})
_NAMED: dict[str, Any] = {"missing": MISSING, "graph": GRAPH, "modules": sys.modules, "ellipsis": ...,
                          "not implemented": NotImplemented}
_BY_VALUE = frozenset({"enum", "named tuple", "own", "partial", "code reference", "operator",
                       "expression", "bridge function"})
_PARTS: dict[type, Callable[[Any], list[Any]]] = {
    property: lambda p: [p.fget, p.fset, p.fdel],
    classmethod: lambda p: [p.__func__],
    staticmethod: lambda p: [p.__func__],
    types.CellType: lambda p: [],
}
"""The parts of objects without a name that no guard looks into."""

_FOUND: dict[str, Callable[..., Any]] = {
    "named": lambda refs, tag: _NAMED[tag],
    "code": lambda refs: refs._code,
    "globals": lambda refs: refs._space,
    "code reference": lambda refs: weakref.ref(refs._code),
    "code of": lambda refs, fn: refs.code_of(refs.decode(fn)),
    "code of the continuation": lambda refs: origin(refs._code, 0)[0],
    "code within": lambda refs, outer, k: refs.decode(outer).co_consts[k],
    "bridge": _bridge,
    "bridge function": lambda refs, code, space: types.FunctionType(refs.decode(code), refs.decode(space)),
    "module": lambda refs, name: _module(name),
    "names": lambda refs, name: _module(name).__dict__,
    "class": lambda refs, path, digest: refs._walk(path),
    "function": lambda refs, path, *rest: refs._walk(path),
    "callable": lambda refs, path, *rest: refs._walk(path),
    "member": lambda refs, cls, name, said: _step(refs.decode(cls), name),
    "static": lambda refs, cls, name, said: getattr(refs.decode(cls), name),
    "partial": lambda refs, func, args, named: functools.partial(refs.decode(func), *refs.decode(args),
                                                                 **refs.decode(named)),
    "operator": lambda refs, space, name, overload: getattr(getattr(getattr(torch.ops, space), name), overload
                                                            or "default"),
    "expression": lambda refs, make, args: refs.decode(make)(*refs.decode(args)),
    "enum": lambda refs, cls, name, value: refs.decode(cls)[name],
    "named tuple": lambda refs, cls, items: tuple.__new__(refs.decode(cls), map(refs.decode, items)),
    "own": _own,
    "at": lambda refs, path, *rest: refs._walk(path),
}


def _module_with(space: dict[str, Any]) -> str | None:
    """Return the name under which the module with these names was imported."""
    name = space.get("__name__")
    if isinstance(name, str) and getattr(sys.modules.get(name), "__dict__", None) is space:
        return name
    if "__spec__" not in space:
        return None
    return next((name for name, module in sys.modules.items()
                 if type(module) is types.ModuleType and module.__dict__ is space), None)


def _module(name: str) -> types.ModuleType:
    found = _INTERPRETER if name == "interpreter" else sys.modules.get(name)
    if found is None:
        raise Stale(f"the module {name} is not imported")
    return found


def _torch_named(refs: References, value: Any) -> Json:
    return ["torch", str(value).removeprefix("torch.")]


def _frozenset(refs: References, value: Any) -> Json:
    return ["frozenset", sorted([refs.encode(v) for v in value], key=repr)]


_CONSTANTS: dict[type, Callable[[References, Any], Json]] = {
    **dict.fromkeys((type(None), int, str), lambda refs, v: v),
    bool: lambda refs, v: ["bool", int(v)],  # JSON's own would equal 0 and 1
    float: lambda refs, v: ["float", v.hex()],
    complex: lambda refs, v: ["complex", v.real.hex(), v.imag.hex()],
    bytes: lambda refs, v: ["bytes", v.hex()],
    tuple: lambda refs, v: ["()", *map(refs.encode, v)],
    frozenset: _frozenset,
    slice: lambda refs, v: ["slice", *map(refs.encode, (v.start, v.stop, v.step))],
    range: lambda refs, v: ["range", v.start, v.stop, v.step],
    torch.Size: lambda refs, v: ["size", *v],
    torch.device: lambda refs, v: ["device", str(v)],
    **dict.fromkeys((torch.dtype, torch.layout, torch.memory_format), _torch_named),
}
_DECODED: dict[str, Callable[[References, Json], Any]] = {
    "bool": lambda refs, f: bool(f[1]),
    "float": lambda refs, f: float.fromhex(f[1]),
    "complex": lambda refs, f: complex(float.fromhex(f[1]), float.fromhex(f[2])),
    "bytes": lambda refs, f: bytes.fromhex(f[1]),
    "()": lambda refs, f: tuple([refs.decode(v) for v in f[1:]]),
    "[]": lambda refs, f: [refs.decode(v) for v in f[1:]],
    "frozenset": lambda refs, f: frozenset(map(refs.decode, f[1])),
    "slice": lambda refs, f: slice(*map(refs.decode, f[1:])),
    "range": lambda refs, f: range(*f[1:]),
    "size": lambda refs, f: torch.Size(f[1:]),
    "device": lambda refs, f: torch.device(f[1]),
    "torch": lambda refs, f: getattr(torch, f[1]),
    "tensor": _tensor,
    "{}": lambda refs, f: {refs.decode(k): refs.decode(v) for k, v in f[1:]},
}
