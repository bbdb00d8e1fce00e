"""Explanations of guards in the user's terms: the condition, and the reason of a failure."""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from framesmith.capture.modes import default_device
from framesmith.capture.sources import Source, TensorSpec, name_of
from framesmith.capture.values import BY_EQUALITY


class Note(NamedTuple):
    """The part of a guard that is kept for explanations: constants and text, no object of the user's."""

    kind: str
    path: str | Source | None
    value: Any
    stack: tuple[tuple[str, int, str], ...] = ()

    def __str__(self) -> str:
        said = _SAY[self.kind](self.value)
        return _named(said if self.path is None else f"{self.path} {said}")


def explain(note: Note, value: Any) -> str:
    """Explain why the guard fails on `value`, with the user's line that made the assumption."""
    text = _named(_EXPLAIN[note.kind](note, value))
    if note.stack:
        file, line, function = note.stack[-1]
        source = linecache.getline(file, line).strip()
        text += f" (assumed at {file}:{line} in {function}{': ' if source else ''}{source})"
    return text


def change(note: Note, value: Any) -> tuple[str, str]:
    """Return short texts of the value that a failing guard expects, and of the value that it found."""
    pair = _CHANGE.get(note.kind)
    return ("", "") if pair is None else tuple(map(_named, pair(note, value)))  # type: ignore[return-value]


_ADDRESS = re.compile(r"<(?:[\w.<>]*\.)?([\w<>]+)(?: object)? at 0x[0-9a-f]+>")


def _named(text: str) -> str:
    """Return the text with objects' types in place of addresses."""
    return _ADDRESS.sub(r"a \1", text)


def predicate(check: Any) -> str:
    """Return the condition that a predicate checks: the first line of its docstring, and the constants that it compares
    with."""
    about = check if inspect.isroutine(check) or isinstance(check, type) else type(check)
    said = (about.__doc__ or about.__name__).split("\n")[0].rstrip(".").removeprefix("Return whether ")
    names = list(getattr(about, "__slots__", ()) or vars(check)) if about is not check else []
    values = [_short(v, 60) for n in names if type(v := getattr(check, n)) in BY_EQUALITY or type(v) in (list, tuple)]
    return said[:1].lower() + said[1:] + (f": {', '.join(values)}" if values else "")


_SAFE = frozenset({float, complex, bool, type(None), type(...), bytes, range, torch.dtype, torch.device, torch.layout,
                   torch.memory_format})
"""Types whose repr runs no other code, and is short. (An int may have more digits than Python will print.)"""


def _shown(value: Any, depth: int = 4) -> str:
    """Return a value as text, without running the program's own code: no `__repr__` of its classes, no attribute."""
    kind = type(value)
    if kind is str or kind in _SAFE:
        return repr(value)
    if kind is int:
        return repr(value) if value.bit_length() < 4096 else f"an int of {value.bit_length()} bits"
    if kind in (tuple, list) and depth:  # it may hold itself
        text = ", ".join([_shown(v, depth - 1) for v in value[:8]])
        text += ", …" if len(value) > 8 else "," if kind is tuple and len(value) == 1 else ""
        return f"[{text}]" if kind is list else f"({text})"
    if type(value).__module__ == "numpy":
        return repr(value)
    return object.__repr__(value)


def _short(value: Any, limit: int = 200) -> str:
    text = value if type(value) is str else _shown(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _name(value: Any) -> str:
    name = name_of(value)
    return name if name is not None else type(value).__name__


def _tensor(note: Note, value: Any) -> str:
    spec: TensorSpec = note.value
    t: torch.Tensor = value
    if type(value) is not spec.cls:
        return f"{note.path} is a {_name(type(value))}, expected {_name(spec.cls)}"
    with torch._C.DisableTorchFunctionSubclass():
        found = [f"{what}: expected {wanted}, got {got}" for what, wanted, got in _differences(spec, t)]
    return f"{note.path} has another {'; '.join(found) or 'set of dispatch keys'}"


def _differences(spec: TensorSpec, t: torch.Tensor) -> list[tuple[str, Any, Any]]:
    rows: list[tuple[str, Any, Any]] = [
        ("dtype", spec.dtype, t.dtype), ("device", spec.device, t.device), ("layout", spec.layout, t.layout),
        ("requires_grad", spec.requires_grad, t.requires_grad), ("number of dimensions", len(spec.sizes), t.dim()),
    ]
    if len(spec.sizes) == t.dim():
        rows += [(f"size of dimension {i}", want, got) for i, (want, got) in enumerate(zip(spec.sizes, t.shape))
                 if want is not None]
        if spec.strides is not None and t.layout == torch.strided:
            rows += [(f"stride of dimension {i}", want, got)
                     for i, (want, got) in enumerate(zip(spec.strides, t.stride())) if want is not None]
    return [row for row in rows if row[1] != row[2]]


def resized(spec: TensorSpec, t: torch.Tensor) -> frozenset[int]:
    """Return the dimensions in whose sizes a tensor differs from what is expected; none if it differs in type or rank,
    too."""
    if type(t) is not spec.cls:
        return frozenset()
    with torch._C.DisableTorchFunctionSubclass():
        if t.dtype is not spec.dtype or t.dim() != len(spec.sizes):
            return frozenset()
        sizes = tuple(t.shape)
    return frozenset([d for d, (want, got) in enumerate(zip(spec.sizes, sizes)) if want is not None and want != got])


def _mark(key: Any) -> Any:
    """Return the value by which a key is compared; no code of the program's runs."""
    return (type(key), key) if type(key) in BY_EQUALITY else id(key)


def _keys(note: Note, value: Any) -> str:
    if not isinstance(value, dict):
        return f"{note.path} is a {_name(type(value))}, expected a dict"
    now, before = {_mark(key): key for key in dict.keys(value)}, {_mark(key): key for key in note.value}
    gone = [key for mark, key in before.items() if mark not in now]
    new = [key for mark, key in now.items() if mark not in before]
    changes = [f"lost {_short(gone)}"] * bool(gone) + [f"gained {_short(new)}"] * bool(new)
    return f"the keys of {note.path} changed: {' and '.join(changes) or 'another order'}"


def _globals_state(note: Note, value: Any) -> str:
    state = note.value
    now = [
        ("grad mode", state.grad_enabled, torch.is_grad_enabled()),
        ("inference mode", state.inference_mode, torch.is_inference_mode_enabled()),
        ("default dtype", state.default_dtype, torch.get_default_dtype()),
        ("deterministic algorithms", state.deterministic, torch.are_deterministic_algorithms_enabled()),
        ("default device", state.default_device, default_device()),
        ("torch functions of subclasses", state.torch_functions, torch._C._is_torch_function_enabled()),
    ]
    for device, enabled, dtype in state.autocast:
        on = torch.is_autocast_enabled(device)
        now.append((f"autocast on {device}", dtype if enabled else False,
                    torch.get_autocast_dtype(device) if on else False))
    found = [f"{what}: expected {want}, got {got}" for what, want, got in now if want != got]
    return "; ".join(found) or "a torch function or dispatch mode is active"


def _shape(note: Note, value: Any) -> str:
    relation, symbols = note.value
    where = ", ".join(f"{name} from {path}" for name, path in symbols.items())
    return f"{relation} does not hold" + (f" ({where})" if where else "")


def _length(note: Note, value: Any) -> str:
    try:
        now = str(len(value))
    except TypeError:
        now = f"none (a {_name(type(value))})"
    return f"len({note.path}): expected {note.value}, got {now}"


def _say_tensor(spec: TensorSpec) -> str:
    sizes = ", ".join("any" if s is None else str(s) for s in spec.sizes)
    strides = "any" if spec.strides is None else ", ".join("any" if s is None else str(s) for s in spec.strides)
    grad = ", requires grad" if spec.requires_grad else ""
    return (f"is a {spec.cls.__name__} of {str(spec.dtype).removeprefix('torch.')} [{sizes}], strides [{strides}], on "
            f"{spec.device}{grad}")


def _say_state(state: Any) -> str:
    autocast = "".join(f", autocast on {device} to {dtype}" for device, enabled, dtype in state.autocast if enabled)
    device = "" if state.default_device is None else f", the default device is {state.default_device}"
    return (f"grad mode is {'on' if state.grad_enabled else 'off'}, inference mode is "
            f"{'on' if state.inference_mode else 'off'}, "
            f"the default dtype is "
            f"{state.default_dtype}{device}{autocast}{', deterministic algorithms' if state.deterministic else ''}")


def _listed(value: Any) -> str:
    return _short(", ".join(map(str, value)))


_SAY: dict[str, Callable[[Any], str]] = {
    "type": lambda v: f"is exactly a {getattr(v, '__qualname__', v)}",
    "id": lambda v: f"is the same object: {_short(v)}",
    "equals": lambda v: f"== {_short(_shown(v))}",
    "none": lambda v: "is None",
    "not_none": lambda v: "is not None",
    "len": lambda v: f"has {v} items",
    "keys": lambda v: f"has the keys {_listed(v)}",
    "contains": lambda v: f"contains {_short(v)}",
    "not_contains": lambda v: f"does not contain {_short(v)}",
    "bool": lambda v: f"is {'true' if v else 'false'}",
    "tensor": _say_tensor,
    "hasattr": lambda v: f"has an attribute {v!r} of its own",
    "not_hasattr": lambda v: f"has no attribute {v!r} of its own",
    "namespace": lambda v: f"binds as before {_listed(v)}",
    "same": lambda v: f"is the same object as {v}",
    "distinct": lambda v: f"different objects: {_listed(v)}",
    "globals_state": _say_state,
    "no_alias": lambda v: f"no shared memory: {_listed(v)}",
    "shape": lambda v: f"{v[0]}",
    "callable": lambda v: f"is such that {v}",
    "function": lambda v: "has its code and defaults",
}

_EXPLAIN: dict[str, Callable[[Note, Any], str]] = {
    "type": lambda note, value: f"{note.path} is a {_name(type(value))}, expected {note.value}",
    "id": lambda note, value: f"{note.path} is another object than {note.value}",
    "equals": lambda note, value: f"{note.path}: expected {_short(note.value)}, got {_short(value)}",
    "none": lambda note, value: f"{note.path}: expected None, got a {_name(type(value))}",
    "not_none": lambda note, value: f"{note.path} is None",
    "len": _length,
    "keys": _keys,
    "contains": lambda note, value: f"{_short(note.value)} is not in {note.path} any more",
    "not_contains": lambda note, value: f"{_short(note.value)} is in {note.path} now",
    "bool": lambda note, value: f"bool({note.path}): expected {note.value}, got {not note.value}",
    "tensor": _tensor,
    "hasattr": lambda note, value: f"{note.path} has no attribute {note.value!r} of its own any more",
    "not_hasattr": lambda note, value: f"{note.path} has an attribute {note.value!r} of its own now",
    "namespace": lambda note, value: f"one of the names {_short(', '.join(note.value))} in {note.path} was rebound",
    "same": lambda note, value: f"{note.path} and {note.value} are two objects now",
    "distinct": lambda note, value: f"two of {_short(', '.join(note.value))} are one object now",
    "globals_state": _globals_state,
    "no_alias": lambda note, value: f"two of {_short(', '.join(note.value))} share memory now",
    "shape": _shape,
    "function": lambda note, value: f"{note.value} has another code or other defaults",
    "callable": lambda note, value: f"{note.path}: it is false now that {note.value}",
}


def _changed_tensor(note: Note, value: Any) -> tuple[str, str]:
    if type(value) is not note.value.cls:
        return _name(note.value.cls), _name(type(value))
    with torch._C.DisableTorchFunctionSubclass():
        rows = _differences(note.value, value)
    return _both(rows)


def _both(rows: list[tuple[str, Any, Any]]) -> tuple[str, str]:
    old, new = ([f"{row[0]} {row[k]}" for row in rows] for k in (1, 2))
    return ", ".join(old), ", ".join(new)


def _changed_state(note: Note, value: Any) -> tuple[str, str]:
    found = re.findall(r"(?:^|; )(.*?): expected (.*?), got ([^;]*)", _globals_state(note, value))
    return _both(found)


_CHANGE: dict[str, Callable[[Note, Any], tuple[str, str]]] = {
    "tensor": _changed_tensor,
    "globals_state": _changed_state,
    "equals": lambda note, value: (_short(_shown(note.value)), _short(value)),
    "type": lambda note, value: (str(note.value), _name(type(value))),
    "none": lambda note, value: ("None", f"a {_name(type(value))}"),
    "not_none": lambda note, value: ("a value", "None"),
    "len": lambda note, value: (f"{note.value} items", f"{len(value)} items" if hasattr(value, "__len__") else "none"),
    "bool": lambda note, value: (str(note.value), str(not note.value)),
    "id": lambda note, value: (str(note.value), "another object"),
}
