"""Methods of iterators and generator objects."""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Iterator
from types import MethodDescriptorType, TracebackType, WrapperDescriptorType
from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .session import Session
from .sources import MISSING
from .tracing import trace


class _Indexed:
    def __getitem__(self, i: int) -> int:
        raise IndexError


_WHOLE = (t.Tuple, t.Set, t.Dict, t.DictView, t.Tensor, t.Const)
"""Trackers whose iteration runs no code of the program's."""


class _Hint:
    def __init__(self, hint: Any) -> None:
        self.hint = hint

    def __length_hint__(self) -> Any:
        return self.hint


class Iteration(Session):
    """The part of the session that advances iterators."""

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
        """next() of a value that is no tracked iterator: its class's method, or an error."""
        if self.lookup(x.pytype(), "__next__") is MISSING:
            self.raise_(TypeError(f"'{x.pytype().__name__}' object is not an iterator"))
        raise Unsupported(f"next of {x.describe()}")

    def by_index(self, x: t.Tracker) -> t.Tracker:
        """iter(x) of an object that has only `__getitem__`."""
        return t.Lazy(self._items_by_index(x), type(iter(_Indexed())))

    def _items_by_index(self, x: t.Tracker) -> Iterator[t.Tracker]:
        for i in itertools.count():
            v = self.none_if_raised((IndexError, StopIteration), self.call_special, x, "__getitem__", [t.Const(i)])
            if v is None:
                return
            yield v

    def each(self, x: t.Tracker) -> Iterator[t.Tracker]:
        """Yield the values of an iteration one at a time: each is used before the next is computed."""
        if isinstance(x, _WHOLE):
            yield from x.items_list(self)
            return
        it = x.iterate(self)
        while (v := it.next(self)) is not None:
            yield v

    def listed(self, x: t.Tracker) -> list[t.Tracker]:
        """Return all values that iteration gives, as CPython makes a list or a tuple of them."""
        return list(self.hinted(x)) if self.says_length(x) else x.items_list(self)

    def sequence(self, x: t.Tracker) -> list[t.Tracker]:
        """Return all values as CPython's `PySequence_Fast` does: the length hint of the iterator is asked for, not that
        of `x`."""
        return self.listed(x.iterate(self)) if isinstance(x, t.Object) else x.items_list(self)

    def hinted(self, x: t.Tracker) -> Iterator[t.Tracker]:
        """Yield the values for a container that grows: the length hint of `x` is asked for first."""
        if not self.says_length(x):
            yield from self.each(x)
            return
        it = x.iterate(self)
        self.ask_length(x)
        while (v := it.next(self)) is not None:
            yield v

    def says_length(self, x: t.Tracker) -> bool:
        """Return whether the length hint of `x` may run code of the program's."""
        return isinstance(x, t.Object) or isinstance(x, t.Tensor) and self.asks(x)

    def ask_length(self, x: t.Tracker) -> None:
        """Call `operator.length_hint(x)` for its effects. A TypeError means no hint."""
        for name in ("__len__", "__length_hint__"):
            raw = self.lookup(x.pytype(), name)
            if raw is MISSING or isinstance(raw, (WrapperDescriptorType, MethodDescriptorType)):
                continue
            try:
                if name == "__len__":
                    x.size(self)
                    return
                hint = self.call_special(x, name, [])
            except t.CapturedError as e:
                if not issubclass(e.tracker.pytype(), TypeError):
                    raise
                continue
            if not isinstance(hint, t.Const) or hint.value is not NotImplemented:
                self.folded(operator.length_hint, (_Hint(hint.real(self)),))

    # --- generators ---------------------------------------------------------------------------------------------------
    def generator_method(self, gen: t.Generator, name: str, args: list[t.Tracker]) -> t.Tracker:
        """Call a method of a generator object."""
        if name == "__iter__":
            return gen
        if name == "__next__" or name == "send" and len(args) == 1:
            out = gen.send(self, args[0] if args else None)
            return out if out is not None else self.stop(gen)
        if name == "close":
            return self.close(gen)
        if name == "throw" and args:
            out = self.throw(gen, self.thrown(args))
            return out if out is not None else self.stop(gen)
        raise Unsupported(f"method {name!r} of a generator")

    def stop(self, gen: t.Generator) -> Any:
        """Raise the StopIteration of a generator that returned, with its result the first time."""
        value = gen.result or t.NONE
        gen.result = None
        return self.fail(StopIteration, *([] if value is t.NONE else [value]), value=value)

    def thrown(self, args: list[t.Tracker]) -> t.Error:
        """Return the exception that `throw(*args)` names. An error in creating it is thrown in its place."""
        error, given, tb = [*args, t.NONE, t.NONE][:3]
        if tb is not t.NONE and not issubclass(tb.pytype(), TracebackType):
            self.raise_(TypeError("throw() third argument must be a traceback object"))
        if isinstance(error, t.Class) and issubclass(error.value, BaseException):
            made = self._normalised(error, given)
        elif not isinstance(error, t.Error):
            kind = error.pytype().__name__
            self.raise_(TypeError(f"exceptions must be classes or instances deriving from BaseException, not {kind}"))
        elif given is not t.NONE:
            self.raise_(TypeError("instance exception may not have a separate value"))
        else:
            made = error
        if tb is not t.NONE:
            made.set_field(self, "__traceback__", tb)
        return made

    def _normalised(self, kind: t.Class, given: t.Tracker) -> t.Error:
        if isinstance(given, t.Error) and issubclass(given.cls, kind.value):
            return given
        values = [] if given is t.NONE else given.open(self) if isinstance(given, t.Tuple) else [given]
        try:
            made = kind.call(self, values, {})
        except t.CapturedError as e:
            return e.tracker
        if isinstance(made, t.Error):
            return made
        text = f"calling {kind.value!r} should have returned an instance of BaseException, not {made.pytype().__name__}"
        return self.made_error(TypeError(text))

    def resume_generator(self, gen: t.Generator, value: t.Tracker | None,
                         error: t.Error | None = None) -> t.Tracker | None:
        """Run a generator to its next yield; return None when it returns. `error` is raised at its present
        instruction."""
        frame = gen.frame
        if gen.running:
            self.raise_(ValueError("generator already executing"))
        frame.direct = False
        outside = len(self.handled)
        if error is not None:
            self.chain(error, gen.handled[-1] if gen.handled else None)
        elif gen.started:
            frame.stack.append(value if value is not None else t.NONE)
        self.handled.extend(gen.handled)
        self.frames.append(frame)
        gen.running = gen.started = True
        try:
            out = frame.run() if error is None else frame.throw(error)
        except t.CapturedError as e:
            gen.running, gen.done, gen.result = False, True, None
            self.frames.pop()
            del self.handled[outside:]
            if issubclass(e.tracker.pytype(), StopIteration):
                raise t.CapturedError(self.escaped_stop(e.tracker)) from None
            raise
        gen.running = False
        self.frames.pop()
        gen.handled = self.handled[outside:]
        del self.handled[outside:]
        if not frame.yielded:
            gen.done = True
            gen.result = out
            return None
        return out

    def escaped_stop(self, error: t.Tracker) -> t.Error:
        """Return the RuntimeError that a StopIteration becomes when it leaves a generator."""
        made = t.Error(RuntimeError)
        made.init_args = [t.Const("generator raised StopIteration")]
        made.attrs.update({"__cause__": error, "__context__": error, "__suppress_context__": t.TRUE})
        return made

    def throw(self, gen: t.Generator, error: t.Error) -> t.Tracker | None:
        """generator.throw: the next value yielded, or None when it returns."""
        if gen.running:
            self.raise_(ValueError("generator already executing"))
        if gen.done or not gen.started:
            self.chain(error, None)
            if not gen.done:
                trace(gen.frame, error)
            gen.done = True
            raise t.CapturedError(error)
        inner = gen.delegate()
        if inner is None:
            return self.resume_generator(gen, None, error)
        if issubclass(error.cls, GeneratorExit):
            try:
                self.close_iterator(inner)
            except t.CapturedError as e:
                return self.resume_generator(gen, None, e.tracker)
            return self.resume_generator(gen, None, error)
        return self.throw_inside(gen, inner, error)

    def throw_inside(self, gen: t.Generator, inner: t.Tracker, error: t.Error) -> t.Tracker | None:
        """`throw` into the iterator that a generator delegates to."""
        try:
            gen.running = True
            if isinstance(inner, t.Generator):
                out = self.throw(inner, error)
                if out is None:
                    self.stop(inner)
                return out
            if self.has_attr(inner, "throw"):
                return inner.get(self, "throw").call(self, [error], {})
            failed = error
        except t.CapturedError as e:
            failed = e.tracker
        finally:
            gen.running = False
        if failed is not error and issubclass(failed.cls, StopIteration) and sys.version_info < (3, 12):
            gen.leave_delegate()
            return self.resume_generator(gen, failed.field("value"))
        return self.resume_generator(gen, None, failed)

    def close(self, gen: t.Generator) -> t.Tracker:
        """generator.close"""
        if gen.started and not gen.done:
            error = self.made(GeneratorExit())
            inner = gen.delegate()
            if inner is not None:
                try:
                    self.close_iterator(inner)
                except t.CapturedError as e:
                    error = e.tracker
            try:
                out = self.resume_generator(gen, None, error)  # type: ignore[arg-type]
            except t.CapturedError as e:
                if not issubclass(e.tracker.pytype(), (GeneratorExit, StopIteration)):
                    raise
                out = None
            if out is not None:
                self.raise_(RuntimeError("generator ignored GeneratorExit"))
        gen.done = True
        gen.result = None
        return t.NONE

    def close_iterator(self, it: t.Tracker) -> None:
        """Close the iterator that a generator delegates to, as closing the generator does."""
        if isinstance(it, t.Generator):
            self.close(it)
        elif isinstance(it, t.Object) and self.has_attr(it, "close"):
            it.get(self, "close").call(self, [], {})

    def send_into(self, it: t.Tracker, value: t.Tracker) -> tuple[t.Tracker | None, t.Tracker]:
        """Do one step of `yield from it`: (the yielded value or None, the result when it is over)."""
        if isinstance(it, t.Generator):
            out = it.send(self, value if it.started else None)
            result, it.result = (it.result or t.NONE, None) if out is None else (t.NONE, it.result)
            return out, result
        if isinstance(it, t.Object):
            try:
                if value is t.NONE:
                    return self.call_special(it, "__next__", []), t.NONE
                return it.get(self, "send").call(self, [value], {}), t.NONE
            except t.CapturedError as e:
                if not issubclass(e.tracker.pytype(), StopIteration):
                    raise
                return None, e.tracker.field("value")
        if value is not t.NONE:
            return self.no_send(it), t.NONE
        return it.next(self), t.NONE

    def no_send(self, it: t.Tracker) -> Any:
        return self.fail(AttributeError, t.Const(f"'{it.pytype().__name__}' object has no attribute 'send'"),
                         name=t.Const("send"), obj=it)
