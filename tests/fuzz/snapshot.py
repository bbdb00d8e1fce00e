"""Values as plain data that can be compared later: structure, types, numbers, and which objects are the same."""

from __future__ import annotations

import collections
import functools
import math
import re
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

_ATOMS = (int, bool, str, bytes, type(None), torch.dtype, torch.device, type(Ellipsis), range)
_VIEW = re.compile(r"Output \d+ of \w+")
"""How autograd names a view in a message: by the function that made it, or that makes it from its base."""
LIMIT = 12
"""Values that are drawn from an iterator."""


OBJECTS = 5000
"""Objects that a program may have, and elements that one may have."""


class TooLarge(Exception):
    """The program has grown too much to be compared."""


class Numbers:
    """Numbers for objects, in the order in which they are met."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.keep: list[Any] = []

    def of(self, value: Any) -> tuple[int, bool]:
        """(the object's number, whether it is new)"""
        known = self.seen.get(id(value))
        if known is not None:
            return known, False
        self.keep.append(value)
        self.seen[id(value)] = number = len(self.seen)
        if number > OBJECTS or isinstance(value, (list, dict, set)) and len(value) > OBJECTS:
            raise TooLarge(f"more than {OBJECTS} objects")
        return number, True

    def storage(self, value: torch.Tensor) -> int:
        return self.storages.setdefault(value.untyped_storage()._cdata, len(self.storages))


def freeze(value: Any, numbers: Numbers | None = None) -> Any:
    """The value as nested tuples. An object that is met again is its number; iterators are drawn from."""
    numbers = numbers or Numbers()
    kind = type(value)
    if kind in _ATOMS:
        return kind.__name__, value
    if kind is float:
        return "float", value
    if kind is tuple:
        return "tuple", *[freeze(v, numbers) for v in value]
    number, new = numbers.of(value)
    if not new:
        return "again", number
    row = next(row for test, row in _ROWS if test(value))
    return row(value, numbers, number)


def _tensor(x: torch.Tensor, numbers: Numbers, number: int) -> Any:
    head = (type(x).__name__, number, x.dtype, tuple(x.shape), x.stride(), x.requires_grad, numbers.storage(x),
            x.storage_offset())
    return "tensor", head, x.detach().clone()


def _items(kind: str, values: Iterable[Any], numbers: Numbers, number: int) -> Any:
    return kind, number, *[freeze(v, numbers) for v in values]


def _dict(x: dict[Any, Any], numbers: Numbers, number: int) -> Any:
    return _items(type(x).__name__, list(x.items()), numbers, number)


def _set(x: Any, numbers: Numbers, number: int) -> Any:
    return _items(type(x).__name__, sorted(x, key=repr), numbers, number)


def _function(x: types.FunctionType, numbers: Numbers, number: int) -> Any:
    cells = [_cell(c, numbers) for c in x.__closure__ or ()]
    return "function", x.__qualname__, number, freeze(x.__defaults__, numbers), freeze(x.__kwdefaults__,
                                                                                       numbers), *cells


def _cell(x: types.CellType, numbers: Numbers) -> Any:
    number, new = numbers.of(x)
    if not new:
        return "again", number
    try:
        return "cell", number, freeze(x.cell_contents, numbers)
    except ValueError:
        return "cell", number


def _error(x: BaseException, numbers: Numbers, number: int) -> Any:
    names = (type(x).__qualname__, type(x.__cause__).__name__, type(x.__context__).__name__, x.__suppress_context__)
    args = [_VIEW.sub("Output of a view", arg) if isinstance(arg, str) else arg for arg in x.args]
    return "exception", names, freeze(tuple(args), numbers), freeze(vars(x), numbers)


def _iterator(x: Any, numbers: Numbers, number: int) -> Any:
    """What is left of an iterator, and how it ends."""
    out = []
    try:
        for _, v in zip(range(LIMIT), x):
            out.append(freeze(v, numbers))
    except Exception as e:
        out.append(("raises", type(e).__name__, str(e)))
    return type(x).__name__, number, *out


def _class(x: type, numbers: Numbers, number: int) -> Any:
    own = [(k, v) for k,
           v in vars(x).items() if not k.startswith("__") and not callable(v)
           and type(v) in (int, float, str, list, dict)]
    return "class", x.__qualname__, *[freeze(pair, numbers) for pair in own]


def _object(x: Any, numbers: Numbers, number: int) -> Any:
    slots = [s for cls in type(x).__mro__
             for s in vars(cls).get("__slots__", ()) if s not in ("__dict__", "__weakref__")]
    state = [(s, getattr(x, s)) for s in slots if hasattr(x, s)] + list(getattr(x, "__dict__", {}).items())
    return "object", type(x).__qualname__, number, *[freeze(pair, numbers) for pair in state]


_ROWS: list[tuple[Callable[[Any], bool], Callable[[Any, Numbers, int], Any]]] = [
    (lambda x: isinstance(x, torch.Tensor), _tensor),
    (lambda x: isinstance(x, list), lambda x, s, n: _items(type(x).__name__, x, s, n)),
    (lambda x: isinstance(x, dict), _dict),
    (lambda x: isinstance(x, collections.deque), lambda x, s, n: (x.maxlen, *_items("deque", x, s, n))),
    (lambda x: isinstance(x, functools.partial), lambda x, s, n: _items("partial", [x.func, x.args, x.keywords], s, n)),
    (lambda x: isinstance(x, (set, frozenset)), _set),
    (lambda x: isinstance(x, types.FunctionType), _function),
    (lambda x: isinstance(x, types.MethodType), lambda x, s,
     n: ("method", n, freeze(x.__func__, s), freeze(x.__self__, s))),
    (lambda x: isinstance(x, BaseException), _error),
    (lambda x: isinstance(x, type), _class),
    (lambda x: isinstance(x, tuple), lambda x, s, n: _items(type(x).__name__, x, s, n)),
    (lambda x: type(x).__module__ in ("builtins", "itertools") and hasattr(x, "__next__"), _iterator),
    (lambda x: type(x).__module__ in ("builtins", "functools")
     or not (hasattr(x, "__dict__") or hasattr(type(x), "__slots__")),
     lambda x, s, n: (type(x).__name__, getattr(x, "__name__", ""), n)),
    (lambda x: True, _object),
]


def difference(a: Any, b: Any, tolerance: float = 0.0, path: str = "") -> str:
    """Where and how two frozen values differ; empty if they do not. `tolerance`: roundings that a number may be off
    by."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return "" if _same_data(a, b, tolerance) else f"{path}: {a.tolist()} became {b.tolist()}"
    if type(a) is tuple and type(b) is tuple:
        if len(a) != len(b):
            return f"{path}: {_short(a)} became {_short(b)}"
        return next(filter(None, (difference(x, y, tolerance, f"{path}.{i}") for i, (x, y) in enumerate(zip(a, b)))),
                    "")
    if type(a) is float and type(b) is float:
        same = a == b and math.copysign(1, a) == math.copysign(1, b) or a != a and b != b
        off = tolerance * torch.finfo(torch.float32).eps  # where it comes from is not known: perhaps from a tensor
        return "" if same or tolerance and math.isclose(a, b, rel_tol=off, abs_tol=off) else f"{path}: {a} became {b}"
    return "" if type(a) is type(b) and a == b else f"{path}: {_short(a)} became {_short(b)}"


def _same_data(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if torch.equal(a, b) or bool(((a == b) | (a != a) & (b != b)).all()):
        return True
    if not tolerance or not a.is_floating_point():
        return False
    finite = a[a.isfinite()].abs()
    off = tolerance * torch.finfo(a.dtype).eps
    # what a number was computed of may be as large as its neighbours
    return torch.allclose(a, b, rtol=off, atol=off * max(1.0, float(finite.max()) if finite.numel() else 0.0),
                          equal_nan=True)


def _short(x: Any) -> str:
    text = repr(x)
    return text if len(text) < 300 else text[:297] + "..."
