"""Methods of strings and patterns with arguments that are not constants."""

from __future__ import annotations

import re
from typing import Any

from .. import trackers as t
from ..polyfills import functions as py
from ..registry import CONSTANT_METHODS, calls
from ..trackers import Args, Kwargs


@calls(str.format)
def _format(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return formatted(tracer, args[0], args[1:], kwargs)


def formatted(tracer: Any, self: t.Tracker, args: Args, kwargs: Kwargs) -> t.Tracker:
    """str.format; the text of a value that is no constant is computed when CPython reaches it."""
    return tracer.fold(lambda text, *a: text.format(*a, **{k: tracer.shown(v) for k, v in kwargs.items()}),
                   (self.real(tracer), *[tracer.shown(a) for a in args]))


def format_mapped(tracer: Any, self: t.Tracker, mapping: t.Tracker) -> t.Tracker:
    """str.format_map"""
    return tracer.fold(str.format_map, (self.real(tracer), tracer.shown(mapping)))


def substituted(tracer: Any, pattern: t.Tracker, args: Args, kwargs: Kwargs, fn: Any) -> t.Tracker | None:
    """pattern.sub or subn with a function, which is inlined; None if the replacement is text."""
    given = dict(zip(("repl", "string", "count"), args), **kwargs)
    if "repl" not in given or given["repl"].constant:
        return None
    return tracer.made(fn).call(tracer, [pattern], given)


def _compiled(fn: Any, whole: Any) -> None:
    """re.sub and re.subn"""

    @calls(whole)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        given = dict(zip(("pattern", "repl", "string", "count", "flags"), args), **kwargs)
        flags = given.pop("flags", t.Const(0))
        if given["repl"].constant:
            return tracer.fold_call(whole, args, kwargs)
        pattern = tracer.fold_call(re.compile, [given.pop("pattern"), flags], {})
        return tracer.made(fn).call(tracer, [pattern], given)


_compiled(py.sub, re.sub)
_compiled(py.subn, re.subn)


def found(tracer: Any, self: t.Tracker, args: Args, kwargs: Kwargs) -> t.Tracker:
    """pattern.finditer"""
    matches = tracer.folded(lambda *a, **k: list(self.real(tracer).finditer(*a, **k)),
                            tuple([a.real(tracer) for a in args]),
                        {k: v.real(tracer) for k, v in kwargs.items()})
    return t.Lazy(map(t.Const, matches), _MATCHES)


_MATCHES = type(re.finditer("", ""))


@calls(re.finditer)
def _finditer(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return found(tracer, tracer.fold_call(re.compile, [args[0], *args[2:]], kwargs), args[1:2], {})


CONSTANT_METHODS.update({
    (re.Pattern, "finditer"): found,
    (str, "format"): formatted,
    (str, "format_map"): lambda tracer, self, args, kwargs: format_mapped(tracer, self, *args),
    (re.Pattern, "sub"): lambda tracer, self, args, kwargs: substituted(tracer, self, args, kwargs, py.sub),
    (re.Pattern, "subn"): lambda tracer, self, args, kwargs: substituted(tracer, self, args, kwargs, py.subn),
})
