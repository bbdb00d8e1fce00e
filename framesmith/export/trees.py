"""Arguments and results as trees: containers that PyTorch's pytree knows, and plain objects by their attributes.

A tree is data, and is written to a file as JSON. Read in a process that lacks a container's class, it gives a `Record`
in its place; no class is looked up but those that this process has registered with pytree itself.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from framesmith.util.errors import ExportError


class Record(OrderedDict[str, Any]):
    """A container whose class is not here: its parts by name, as entries, as attributes, and by number."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, int | slice) else super().__getitem__(key)

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())


@dataclass(frozen=True, slots=True)
class Tree:
    """`kind`: "leaf", "tuple", "list", "dict", "ordered dict", "default dict", "deque", "named tuple", "node" (a class
    registered with pytree), "object" (one by its attributes), "record" (`Record`). `name`: of the class;
    `keys`: of dicts, named tuples and
    objects; `context`: what pytree keeps of a node."""

    kind: str
    parts: tuple[Tree, ...] = ()
    name: str = ""
    keys: tuple[Any, ...] = ()
    context: Any = None
    cls: type | None = None

    @property
    def leaves(self) -> int:
        return 1 if self.kind == "leaf" else sum(p.leaves for p in self.parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and self.to_json() == other.to_json()

    def accepts(self, other: Tree) -> bool:
        """Return whether a value of the other tree fits: records stand for containers whose class is not here."""
        if len(self.parts) != len(other.parts) or (self.keys != other.keys and bool(self.keys and other.keys)):
            return False
        same = self.kind == other.kind and self.name == other.name or "record" in (self.kind, other.kind) and {
            self.kind, other.kind} <= _OBJECTS
        return same and all(a.accepts(b) for a, b in zip(self.parts, other.parts, strict=True))

    def __hash__(self) -> int:
        return hash((self.kind, self.name, self.parts))

    def __str__(self) -> str:
        if self.kind == "leaf":
            return "*"
        names = self.keys if self.kind in ("dict", "ordered dict", "default dict", "named tuple", "object") else ()
        inner = ", ".join([f"{k}={p}" for k, p in zip(names, self.parts, strict=True)] if names
                          else map(str, self.parts))
        if self.kind in ("tuple", "list"):
            return f"({inner}{',' if len(self.parts) == 1 else ''})" if self.kind == "tuple" else f"[{inner}]"
        return f"{self.name.rpartition('.')[2] or self.kind}({inner})"

    def to_json(self) -> Any:
        if self.kind == "leaf":
            return "*"
        out: dict[str, Any] = {"kind": self.kind, "parts": [p.to_json() for p in self.parts]}
        for key, value in (("name", self.name), ("keys", list(self.keys)), ("context", self.context)):
            if value not in ("", [], None):
                out[key] = value
        return out

    @staticmethod
    def from_json(data: Any) -> Tree:
        """Raises KeyError or TypeError for what `to_json` does not give."""
        if data == "*":
            return LEAF
        kind, name = data["kind"], data.get("name", "")
        if kind not in _BUILD:
            raise TypeError(f"a tree of kind {kind!r}")
        parts = tuple(map(Tree.from_json, data["parts"]))
        keys = tuple(data.get("keys", ()))
        if kind in _KEYED and len(keys) != len(parts):
            raise TypeError(f"a tree of {len(parts)} parts and {len(keys)} keys")
        return Tree(kind, parts, name, keys, data.get("context"), _registered(name) if kind == "node" else None)


LEAF = Tree("leaf")
_KEYED = frozenset(("dict", "ordered dict", "default dict", "named tuple", "object", "record"))
_OBJECTS = frozenset(("node", "object", "named tuple", "record"))
_PLAIN: dict[type, str] = {tuple: "tuple", list: "list", dict: "dict", OrderedDict: "ordered dict",
                           defaultdict: "default dict", deque: "deque", torch.Size: "tuple", Record: "record"}
_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.dtype, torch.device)


def flatten(value: Any, is_leaf: Callable[[Any], bool] = lambda x: False) -> tuple[list[Any], Tree]:
    """Return the leaves of a value, and its tree. Raises `ExportError` for an object that is neither tensor, plain
    data, nor made of such."""
    leaves: list[Any] = []

    def visit(x: Any) -> Tree:
        if isinstance(x, _ATOMS) or is_leaf(x):
            leaves.append(x)
            return LEAF
        kind = _PLAIN.get(type(x))
        if kind in ("tuple", "list", "deque"):
            return Tree(kind, tuple([visit(v) for v in x]))
        if kind is not None:
            for key in x:
                if not isinstance(key, str | int | bool):
                    raise ExportError(f"a dict with the key {key!r}: text and whole numbers can be exported")
            return Tree(kind, tuple([visit(v) for v in x.values()]), keys=tuple(x))
        cls = type(x)
        if isinstance(x, tuple) and hasattr(cls, "_fields"):
            return Tree("named tuple", tuple([visit(v) for v in x]), _name(cls), tuple(cls._fields), cls=cls)
        if cls in pytree.SUPPORTED_NODES:
            parts, context = pytree.SUPPORTED_NODES[cls].flatten_fn(x)
            return Tree("node", tuple([visit(v) for v in parts]), _name(cls), _part_names(x, context, len(parts)),
                        _dumped(cls, context), cls)
        attributes = getattr(x, "__dict__", None)
        if attributes is None or callable(x) or cls.__module__ in ("builtins", "types"):
            leaves.append(x)
            return LEAF
        return Tree("object", tuple([visit(v) for v in attributes.values()]), _name(cls), tuple(attributes), cls=cls)

    return leaves, visit(value)


def unflatten(leaves: Sequence[Any], tree: Tree) -> Any:
    """Return the value of a tree with these leaves."""
    rest = iter(leaves)
    return _unflatten(rest, tree)


def _unflatten(rest: Iterator[Any], tree: Tree) -> Any:
    if tree.kind == "leaf":
        return next(rest)
    return _BUILD[tree.kind](tree, [_unflatten(rest, p) for p in tree.parts])


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _registered(name: str) -> type | None:
    """Return the class of that name which this process has registered with pytree."""
    return next((cls for cls in pytree.SUPPORTED_NODES if isinstance(cls, type) and _name(cls) == name), None)


def _part_names(x: Any, context: Any, count: int) -> tuple[Any, ...]:
    """Names of a node's parts, where it tells them: a mapping's keys, a dataclass's fields."""
    for names in (list(x) if isinstance(x, dict) else None, context,
                  context[0] if isinstance(context, tuple) and context else None):
        if isinstance(names, list | tuple) and len(names) == count and all(isinstance(n, str) for n in names):
            return tuple(names)
    return ()


def _dumped(cls: type, context: Any) -> Any:
    serial = pytree.SUPPORTED_SERIALIZED_TYPES.get(cls)
    dump = None if serial is None else serial.to_dumpable_context
    if dump is not None:
        context = dump(context)
    if not _is_json(context):
        raise ExportError(f"what {_name(cls)} keeps of its instances, {context!r}, is no plain data")
    return context if dump is None else {"dumped": context}


def _is_json(x: Any) -> bool:
    if isinstance(x, list | tuple):
        return all(map(_is_json, x))
    if isinstance(x, dict):
        return all(isinstance(k, str) and _is_json(v) for k, v in x.items())
    return x is None or isinstance(x, bool | int | float | str)


def _node(tree: Tree, parts: list[Any]) -> Any:
    if tree.cls is None:
        return _record(tree, parts)
    context = tree.context
    if isinstance(context, dict) and list(context) == ["dumped"]:
        load = pytree.SUPPORTED_SERIALIZED_TYPES[tree.cls].from_dumpable_context
        context = context["dumped"] if load is None else load(context["dumped"])
    return pytree.SUPPORTED_NODES[tree.cls].unflatten_fn(parts, context)


def _record(tree: Tree, parts: list[Any]) -> Record:
    keys = tree.keys or tuple(map(str, range(len(parts))))
    return Record(zip(keys, parts, strict=True))


def _object(tree: Tree, parts: list[Any]) -> Any:
    if tree.cls is None:
        return _record(tree, parts)
    made: Any = object.__new__(tree.cls)
    made.__dict__.update(zip(tree.keys, parts, strict=True))
    return made


def _named_tuple(tree: Tree, parts: list[Any]) -> Any:
    return _record(tree, parts) if tree.cls is None else tuple.__new__(tree.cls, parts)


_BUILD: dict[str, Callable[[Tree, list[Any]], Any]] = {
    "leaf": lambda tree, parts: None,
    "tuple": lambda tree, parts: tuple(parts),
    "list": lambda tree, parts: parts,
    "deque": lambda tree, parts: deque(parts),
    "dict": lambda tree, parts: dict(zip(tree.keys, parts, strict=True)),
    "ordered dict": lambda tree, parts: OrderedDict(zip(tree.keys, parts, strict=True)),
    "default dict": lambda tree, parts: defaultdict(None, zip(tree.keys, parts, strict=True)),
    "named tuple": _named_tuple, "node": _node, "object": _object, "record": _record,
}
