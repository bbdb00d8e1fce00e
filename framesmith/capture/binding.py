"""Arguments of a call to the parameters of a Python function."""

from __future__ import annotations

import weakref
from types import CodeType
from typing import Any

from . import trackers as t

VARARGS = 0x04
VARKEYWORDS = 0x08


class Signature:
    """What binding needs to know of a code object."""

    __slots__ = ("all_names", "index", "kwonly", "n_args", "n_kwonly", "n_posonly", "n_slots", "varargs", "varkw")

    def __init__(self, code: CodeType, n_slots: int) -> None:
        self.n_args = code.co_argcount
        self.n_posonly = code.co_posonlyargcount
        self.n_kwonly = code.co_kwonlyargcount
        names = code.co_varnames
        self.all_names = names
        n = self.n_args + self.n_kwonly
        self.index = {name: i for i, name in enumerate(names[:n]) if i >= self.n_posonly}
        self.varargs = n if code.co_flags & VARARGS else -1
        self.varkw = n + (1 if code.co_flags & VARARGS else 0) if code.co_flags & VARKEYWORDS else -1
        self.n_slots = n_slots


_cache: dict[int, tuple[weakref.ref[CodeType], Signature]] = {}


def signature(code: CodeType, n_slots: int) -> Signature:
    """The signature of `code`, kept while it lives."""
    hit = _cache.get(id(code))
    if hit is not None:
        return hit[1]
    key = id(code)
    sig = Signature(code, n_slots)
    _cache[key] = (weakref.ref(code, lambda _: _cache.pop(key, None)), sig)
    return sig


def bind(cx: Any, fn: t.Function, args: list[t.Tracker], kwargs: dict[str, t.Tracker], n_slots: int) -> list[t.Tracker | None]:
    """The fast slots of a new frame of `fn`; raises TypeError in the captured program when the call does not fit."""
    sig = signature(fn.code, n_slots)
    slots: list[t.Tracker | None] = [None] * sig.n_slots
    n = sig.n_args
    given = len(args)
    if given <= n:
        slots[:given] = args
    else:
        slots[:n] = args[:n]
        if sig.varargs < 0:
            cx.raise_(TypeError(f"{fn.qualname}() takes {n} positional arguments but {given} were given"))
    if sig.varargs >= 0:
        slots[sig.varargs] = t.Tuple(args[n:])
    extra: dict[Any, t.Tracker] = {}
    if kwargs:
        index = sig.index
        for name, value in kwargs.items():
            i = index.get(name)
            if i is None:
                if sig.varkw < 0:
                    cx.raise_(TypeError(f"{fn.qualname}() got an unexpected keyword argument '{name}'"))
                extra[name] = value
            elif slots[i] is not None:
                cx.raise_(TypeError(f"{fn.qualname}() got multiple values for argument '{name}'"))
            else:
                slots[i] = value
    if sig.varkw >= 0:
        slots[sig.varkw] = t.Dict(extra)
    if given < n:
        _fill_defaults(cx, fn, sig, slots, given)
    if sig.n_kwonly:
        _fill_kwonly(cx, fn, sig, slots)
    return slots


def _fill_defaults(cx: Any, fn: t.Function, sig: Signature, slots: list[t.Tracker | None], given: int) -> None:
    defaults = fn.defaults or []
    first = sig.n_args - len(defaults)
    missing = []
    for i in range(given, sig.n_args):
        if slots[i] is None:
            if i < first:
                missing.append(sig.all_names[i])
            else:
                slots[i] = defaults[i - first]
    if missing:
        names = " and ".join(repr(m) for m in missing)
        plural = "s" if len(missing) > 1 else ""
        cx.raise_(TypeError(f"{fn.qualname}() missing {len(missing)} required positional argument{plural}: {names}"))


def _fill_kwonly(cx: Any, fn: t.Function, sig: Signature, slots: list[t.Tracker | None]) -> None:
    for i in range(sig.n_args, sig.n_args + sig.n_kwonly):
        if slots[i] is None:
            default = (fn.kwdefaults or {}).get(sig.all_names[i])
            if default is None:
                cx.raise_(TypeError(f"{fn.qualname}() missing 1 required keyword-only argument: '{sig.all_names[i]}'"))
            slots[i] = default
