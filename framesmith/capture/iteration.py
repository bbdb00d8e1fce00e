"""Methods of iterators and generator objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .sources import MISSING


class Iteration:
    """The part of the session that advances iterators."""

    raise_: Callable[..., Any]
    fail: Callable[..., Any]
    made: Callable[..., t.Tracker]
    lookup: Callable[..., Any]
    resume_generator: Callable[..., t.Tracker | None]

    def iterator_method(self, it: t.Tracker, name: str, args: list[t.Tracker]) -> t.Tracker:
        """`__next__` and `__iter__` of an iterator."""
        if name == "__iter__":
            return it
        if name == "__next__":
            v = it.next(self)
            return v if v is not None else self.raise_(StopIteration())
        if name == "__length_hint__" and isinstance(it, t.Iter):
            return t.Const(len(it.rest(self)))
        raise Unsupported(f"method {name!r} of an iterator")

    def not_iterator(self, x: t.Tracker) -> Any:
        """next() of what has none of its own: its class's method, or an error."""
        if self.lookup(x.pytype(), "__next__") is MISSING:
            self.raise_(TypeError(f"'{x.pytype().__name__}' object is not an iterator"))
        raise Unsupported(f"next of {x.describe()}")

    def generator_method(self, gen: t.Generator, name: str, args: list[t.Tracker]) -> t.Tracker:
        """Methods of a generator object."""
        if name == "__iter__":
            return gen
        if name in ("__next__", "send"):
            out = gen.send(self, args[0] if args and gen.started else None)
            return out if out is not None else self.stop(gen)
        if name == "close":
            return self.close(gen)
        if name == "throw":
            error = args[0]
            if isinstance(error, t.Class):
                error = args[1] if len(args) > 1 and isinstance(args[1], t.Object) else error.call(self, [], {})
            return self.throw(gen, error)
        raise Unsupported(f"method {name!r} of a generator")

    def stop(self, gen: t.Generator) -> Any:
        """The StopIteration of a generator that returned."""
        value = gen.result or t.NONE
        return self.fail(StopIteration, *([] if value is t.NONE else [value]), value=value)

    def throw(self, gen: t.Generator, error: t.Tracker) -> t.Tracker:
        """generator.throw"""
        if not gen.started or gen.done:
            gen.done = True
            raise t.CapturedError(error)
        frame = gen.frame
        frame.stack.append(t.NONE)
        out = self._raise_in(gen, error)
        return out if out is not None else self.stop(gen)

    def _raise_in(self, gen: t.Generator, error: t.Tracker) -> t.Tracker | None:
        gen.frame.stack.pop()
        saved, gen.started = gen.started, False
        try:
            return self.resume_generator(gen, None, error)
        finally:
            gen.started = saved

    def close(self, gen: t.Generator) -> t.Tracker:
        """generator.close"""
        if gen.started and not gen.done:
            try:
                out = self._raise_in_closed(gen)
            except t.CapturedError as e:
                if not issubclass(e.tracker.pytype(), (GeneratorExit, StopIteration)):
                    raise
                out = None
            if out is not None:
                self.raise_(RuntimeError("generator ignored GeneratorExit"))
        gen.done = True
        return t.NONE

    def _raise_in_closed(self, gen: t.Generator) -> t.Tracker | None:
        gen.frame.stack.append(t.NONE)
        return self._raise_in(gen, self.made(GeneratorExit()))
