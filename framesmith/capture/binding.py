"""Arguments of a call to the parameters of a Python function."""

from __future__ import annotations

from types import CodeType
from typing import Any

from . import trackers as t
from .code_cache import kept_with_code
from .standins import stand_in_function

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


signature = kept_with_code(Signature)
"""The signature of a code object, kept while it lives."""


def bind(tracer: Any, fn: t.Function, args: list[t.Tracker], kwargs: dict[str, t.Tracker],
         n_slots: int) -> list[t.Tracker | None]:
    """Return the fast slots of a new frame of `fn`; raises TypeError in the captured program when the call does not
    fit."""
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
    fits = given <= n or sig.varargs >= 0
    if kwargs:
        fits &= _place_keywords(sig, slots, kwargs, extra)
    if sig.varkw >= 0:
        slots[sig.varkw] = t.Dict(extra)
    if given < n:
        _fill_defaults(sig, fn, slots, given)
    if sig.n_kwonly:
        _fill_kwonly(sig, fn, slots)
    if not fits or None in slots[:n + sig.n_kwonly]:
        _refuse(tracer, fn, args, kwargs)
    return slots


def _place_keywords(sig: Signature, slots: list[t.Tracker | None], kwargs: dict[str, t.Tracker],
                    extra: dict[Any, t.Tracker]) -> bool:
    """Put keyword arguments into their slots, and those without a slot into `extra`. Return False if one does not
    fit."""
    fits = True
    for name, value in kwargs.items():
        i = sig.index.get(name)
        if i is None:
            fits &= sig.varkw >= 0 and isinstance(name, str)
            extra[name] = value
        else:
            fits &= slots[i] is None
            slots[i] = value
    return fits


def _fill_defaults(sig: Signature, fn: t.Function, slots: list[t.Tracker | None], given: int) -> None:
    defaults = fn.defaults or []
    first = sig.n_args - len(defaults)
    for i in range(max(given, first), sig.n_args):
        if slots[i] is None:
            slots[i] = defaults[i - first]


def _fill_kwonly(sig: Signature, fn: t.Function, slots: list[t.Tracker | None]) -> None:
    for i in range(sig.n_args, sig.n_args + sig.n_kwonly):
        if slots[i] is None:
            slots[i] = (fn.kwdefaults or {}).get(sig.all_names[i])


def _refuse(tracer: Any, fn: t.Function, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> None:
    """Raise CPython's TypeError for a call that does not fit: a function of the same parameters is called, and does not
    run."""
    like = stand_in_function(fn.code, {}, fn.name, fn.qualname)
    like.__defaults__ = (None,) * len(fn.defaults or ())
    like.__kwdefaults__ = dict.fromkeys(fn.kwdefaults or ())
    tracer.folded(like, (None,) * len(args), dict.fromkeys(kwargs))
