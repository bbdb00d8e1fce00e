"""Runs a program compiled and plain, and compares all that Python sees: results, types, identities, changed arguments,
output, errors."""

from __future__ import annotations

import collections
import contextlib
import io
import types
from collections.abc import Callable
from typing import Any

import torch

import framesmith
from framesmith import _C
from framesmith.capture.entry import convert_frame
from framesmith.util.errors import FramesmithError

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def agree(fn: Any, whole: bool = True, make: Callable[[], tuple[Any, ...]] = tuple, others: Any = (),
          calls: int = 2) -> None:
    """The compiled `fn`, taken `whole` or broken into parts, does what plain `fn` does. `make()` gives fresh arguments
    after `x`; `others`: makers of other arguments for later calls (guards tell
    them apart)."""
    framesmith.reset()
    compiled = framesmith.compile(fn, backend="eager", fullgraph=whole, options={"suppress_errors": False})
    with torch.no_grad():
        for maker in [*[make] * calls, *others, make]:
            plain = outcome(fn, (X.clone(), *maker()))
            found = outcome(compiled, (X.clone(), *maker()))
            assert found == plain, difference(found, plain)
            if whole and plain[0] != "raised":
                assert _C.entries(fn.__code__), why_not(fn, (X.clone(), *maker()))
    framesmith.reset()


def why_not(fn: Any, args: tuple[Any, ...]) -> str:
    """Why nothing was compiled: capture says that the program raises."""
    try:
        convert_frame(fn.__code__, dict(zip(fn.__code__.co_varnames, args)), fn.__globals__, fn.__closure__)
    except FramesmithError as e:
        return str(e)
    return "nothing was compiled"


def difference(found: Any, plain: Any, path: str = "") -> str:
    """Where two results first differ."""
    if isinstance(found, (tuple, list)) and isinstance(plain, (tuple, list)) and len(found) == len(plain):
        for i, (a, b) in enumerate(zip(found, plain)):
            if a != b and path + str(i) != "0":
                return difference(a, b, f"{path}[{i}]")
    return f"at {path}: {found!r} in place of {plain!r}"[:600]


def outcome(fn: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call returned or raised, what it printed, and its arguments after it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            result = ("returned", fn(*args))
        except FramesmithError:
            raise
        except Exception as e:  # whatever the program raises is compared
            result = ("raised", (type(e), e.args))
    return result[0], seen((result[1], args), {}), out.getvalue()


_ATOMS = (int, float, complex, str, bytes, bool, type(None), type, types.FunctionType, types.BuiltinFunctionType,
          types.ModuleType,
          range, torch.dtype, torch.device, type(...), type(NotImplemented))
_HOLDERS = (list, tuple, dict, set, frozenset, collections.deque)


def seen(v: Any, memo: dict[int, Any]) -> Any:
    """A plain value that is equal for values that Python cannot tell apart; objects met again are numbered, so that
    sharing shows."""
    if isinstance(v, (types.FunctionType, type)):
        return (type(v).__name__, v.__qualname__)
    if type(v) in _ATOMS:
        return (type(v).__name__, repr(v))
    if id(v) in memo:
        return ("again", memo[id(v)][0])
    if not (type(v) is tuple or type(v) is frozenset):
        memo[id(v)] = (len(memo), v)
    return (type(v).__name__, *_parts(v, memo))


def _parts(v: Any, memo: dict[int, Any]) -> list[Any]:
    if isinstance(v, torch.Tensor):
        return [v.dtype, tuple(v.shape), [round(float(e), 4) for e in v.reshape(-1).tolist()]]
    parts: list[Any] = []
    if isinstance(v, dict):
        kind = collections.OrderedDict if isinstance(v, collections.OrderedDict) else dict
        parts = [(seen(k, memo), seen(dict.__getitem__(v, k), memo)) for k in list(kind.keys(v))]
    elif isinstance(v, _HOLDERS):
        parts = [seen(e, memo) for e in list(v)]
    elif isinstance(v, BaseException):
        parts = [seen(v.args, memo)]
    elif hasattr(v, "__next__") or isinstance(v, (type({}.keys()), type({}.values()), type({}.items()))):
        parts = [seen(e, memo) for e in v]
    else:
        parts = [*_extra(v, memo)]
    if hasattr(v, "__dict__") and not isinstance(v, type):
        parts.append([(k, seen(e, memo)) for k, e in vars(v).items()])
    for slot in getattr(type(v), "__slots__", ()):
        if isinstance(slot, str) and hasattr(v, slot) and slot not in ("__dict__", "__weakref__"):
            parts.append((slot, seen(getattr(v, slot), memo)))
    return parts


def _extra(v: Any, memo: dict[int, Any]) -> list[Any]:
    for base in (int, float, str, bytes, bytearray, slice):
        if isinstance(v, base):
            return [repr(v)]
    if hasattr(v, "dtype") and hasattr(v, "tolist"):
        return [str(v.dtype), v.tolist()]
    return []
