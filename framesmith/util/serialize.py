"""Plain data as JSON and back: what the disk cache keeps of a graph.

A tuple is a JSON array, and whatever JSON has no form for an object of one member, `{name: [arguments]}`. Names stand
for the classes and functions that are marked `serializable`, and for PyTorch's constants; a function of framesmith's or
PyTorch's is named, and looked up in modules that are loaded. So reading text, wherever it comes from, calls nothing
else and imports nothing.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeVar

import torch

from framesmith.util.errors import NotSerializable

T = TypeVar("T")
_PLAIN = frozenset((int, str, bool, float, type(None)))
_PACKAGES = ("framesmith", "torch", "_operator")
_made: dict[str, Callable[..., Any]] = {}


def serializable(what: T) -> T:
    """Decorate a dataclass, which is written as its fields; or what `__reduce__` of a class has called, its arguments
    being plain."""
    _made[_name(what)] = what  # type: ignore[assignment]
    return what


def _name(what: Any) -> str:
    return f"{what.__module__}:{what.__qualname__}"


def _constant(name: str) -> Any:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype | torch.layout | torch.memory_format):
        raise ValueError(f"torch.{name} is no constant")
    return found


def _function(name: str) -> Any:
    module, _, path = name.partition(":")
    if module.partition(".")[0] not in _PACKAGES:
        raise ValueError(f"{name} is no function of ours")
    found: Any = sys.modules[module]
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, FunctionType | BuiltinFunctionType):
        raise ValueError(f"{name} is no function")
    return found


_made.update({
    "list": lambda *items: list(items), "dict": lambda *items: dict(items), "complex": complex,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "constant": _constant, "function": _function, "device": torch.device, "size": lambda *n: torch.Size(n),
})
_ROWS: dict[type, tuple[str, Callable[[Any], list[Any]]]] = {
    list: ("list", lambda x: [_plain(y) for y in x]),
    dict: ("dict", lambda x: [[_plain(k), _plain(v)] for k, v in x.items()]),
    complex: ("complex", lambda x: [x.real, x.imag]),
    bytes: ("bytes", lambda x: [base64.b64encode(x).decode()]),
    torch.dtype: ("constant", lambda x: [str(x).removeprefix("torch.")]),
    torch.layout: ("constant", lambda x: [str(x).removeprefix("torch.")]),
    torch.memory_format: ("constant", lambda x: [str(x).removeprefix("torch.")]),
    torch.device: ("device", lambda x: [str(x)]),
    torch.Size: ("size", list),
    FunctionType: ("function", lambda x: [_found(x)]),
    BuiltinFunctionType: ("function", lambda x: [_found(x)]),
}
"""The encoding of a value by its type: the name of the row that reads it, and its arguments."""


def serialize(value: Any) -> bytes:
    """Return the text of a value. Raises `NotSerializable`."""
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def deserialize(text: bytes) -> Any:
    """Return the value of a text. Raises ValueError for any text that `serialize` did not write."""
    try:
        return _value(json.loads(text))
    except (KeyError, AttributeError, TypeError, IndexError, RecursionError, RuntimeError, ArithmeticError,
            ImportError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _plain(x: Any) -> Any:
    kind = type(x)
    if kind in _PLAIN:
        return x
    if kind is tuple:
        return [y if type(y) in _PLAIN else _plain(y) for y in x]
    if (row := _ROWS.get(kind)) is not None:
        return {row[0]: row[1](x)}
    name = _name(kind)
    if is_dataclass(kind) and name in _made:
        return {name: [_plain(getattr(x, f.name)) for f in fields(kind)]}
    try:
        reduced = None if isinstance(x, type | torch.Tensor) else x.__reduce_ex__(4)
    except TypeError:
        reduced = None
    if type(reduced) is tuple and len(reduced) == 2 and (name := _name(reduced[0])) in _made:
        return {name: [_plain(y) for y in reduced[1]]}
    raise NotSerializable(f"a {kind.__qualname__} has no form in the cache")


def _found(x: Any) -> str:
    """Return the name by which a function is found again."""
    try:
        if _function(name := _name(x)) is x:
            return name
    except (ValueError, KeyError, AttributeError):
        pass
    raise NotSerializable(f"{x!r} is not found by its name")


def _value(x: Any) -> Any:
    if type(x) is list:
        return tuple([y if type(y) in _PLAIN else _value(y) for y in x])
    if type(x) is dict:
        ((name, arguments),) = x.items()
        return _made[name](*_value(arguments))
    return x
