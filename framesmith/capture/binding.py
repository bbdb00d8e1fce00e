"""Arguments of a call to the parameters of a Python function."""

from __future__ import annotations

import weakref
from types import CodeType
from typing import Any

from . import trackers as t

VARARGS = 0x04
VARKEYWORDS = 0x08


class Signature:
    """The parameters of a code object, as binding needs them."""

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


def bind(tracer: Any, fn: t.Function, args: list[t.Tracker], kwargs: dict[str, t.Tracker],
         n_slots: int) -> list[t.Tracker | None]:
    """The fast slots of a new frame of `fn`; raises TypeError in the captured program when the call does not fit."""
    sig = signature(fn.code, n_slots)
    slots: list[t.Tracker | None] = [None] * sig.n_slots
    n = sig.n_args
    given = len(args)
    if given <= n:
        slots[:given] = args
    else:
        slots[:n] = args[:n]
    if sig.varargs >= 0:
        slots[sig.varargs] = t.Tuple(args[n:])
    extra: dict[Any, t.Tracker] = {}
    if kwargs:
        _place_keywords(tracer, fn, sig, slots, kwargs, extra)
    if sig.varkw >= 0:
        slots[sig.varkw] = t.Dict(extra)
    if given > n and sig.varargs < 0:
        _too_many(tracer, fn, sig, slots, given)
    if given < n:
        _fill_defaults(tracer, fn, sig, slots, given)
    if sig.n_kwonly:
        _fill_kwonly(tracer, fn, sig, slots)
    return slots


def _place_keywords(tracer: Any, fn: t.Function, sig: Signature, slots: list[t.Tracker | None],
                    kwargs: dict[str, t.Tracker],
                    extra: dict[Any, t.Tracker]) -> None:
    index = sig.index
    for name, value in kwargs.items():
        if not isinstance(name, str):
            tracer.raise_(TypeError("keywords must be strings"))
        i = index.get(name)
        if i is None:
            if sig.varkw < 0:
                _unexpected(tracer, fn, sig, kwargs, name)
            extra[name] = value
        elif slots[i] is not None:
            tracer.raise_(TypeError(f"{fn.qualname}() got multiple values for argument '{name}'"))
        else:
            slots[i] = value


def _unexpected(tracer: Any, fn: t.Function, sig: Signature, kwargs: dict[str, t.Tracker], name: str) -> None:
    only = [n for n in sig.all_names[:sig.n_posonly] if n in kwargs]
    if only:
        tracer.raise_(TypeError(f"{fn.qualname}() got some positional-only arguments passed as keyword arguments: "
                                f"'{', '.join(only)}'"))
    tracer.raise_(TypeError(f"{fn.qualname}() got an unexpected keyword argument '{name}'"))


def _too_many(tracer: Any, fn: t.Function, sig: Signature, slots: list[t.Tracker | None], given: int) -> None:
    n = sig.n_args
    n_defaults = len(fn.defaults or ())
    takes = f"from {n - n_defaults} to {n}" if n_defaults else str(n)
    only = sum(v is not None for v in slots[n:n + sig.n_kwonly])
    keywords = f" positional argument{_s(given)} (and {only} keyword-only argument{_s(only)})" if only else ""
    verb = "was" if given == 1 and not only else "were"
    plural = "s" if n_defaults or n != 1 else ""
    tracer.raise_(TypeError(f"{fn.qualname}() takes {takes} positional argument{plural} but {given}{keywords} {verb} "
                            "given"))


def _s(n: int) -> str:
    return "" if n == 1 else "s"


def _fill_defaults(tracer: Any, fn: t.Function, sig: Signature, slots: list[t.Tracker | None], given: int) -> None:
    defaults = fn.defaults or []
    first = sig.n_args - len(defaults)
    missing = [sig.all_names[i] for i in range(given, first) if slots[i] is None]
    if missing:
        _missing(tracer, fn, "positional", missing)
    for i in range(max(given, first), sig.n_args):
        if slots[i] is None:
            slots[i] = defaults[i - first]


def _fill_kwonly(tracer: Any, fn: t.Function, sig: Signature, slots: list[t.Tracker | None]) -> None:
    missing = []
    for i in range(sig.n_args, sig.n_args + sig.n_kwonly):
        if slots[i] is None:
            slots[i] = (fn.kwdefaults or {}).get(sig.all_names[i])
            if slots[i] is None:
                missing.append(sig.all_names[i])
    if missing:
        _missing(tracer, fn, "keyword-only", missing)


def _missing(tracer: Any, fn: t.Function, kind: str, names: list[str]) -> None:
    quoted = [repr(n) for n in names]
    last = quoted.pop()
    listed = last if not quoted else f"{quoted[0]} and {last}" if len(quoted) == 1 else (f"{', '.join(quoted)}, and "
                                                                                         f"{last}")
    n = len(names)
    tracer.raise_(TypeError(f"{fn.qualname}() missing {n} required {kind} argument{_s(n)}: {listed}"))
