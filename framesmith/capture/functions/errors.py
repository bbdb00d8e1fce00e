"""Methods of exceptions; exception groups; functions of `sys` about the exception being handled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..class_making import builtin_part
from ..errors import CARRIED
from ..registry import calls, method
from ..standins import Placeholder
from ..trackers import Args, Kwargs


# --- made and initialised ---------------------------------------------------------------------------------------------
@method(t.Error, "__new__")
def new_error(tracer: Any, cls: type, args: Args) -> t.Error:
    """`cls.__new__(cls, *args)` of a builtin `__new__`."""
    if issubclass(cls, BaseExceptionGroup):
        return _new_group(tracer, cls, args)
    if cls is OSError and len(args) > 1 and args[0].constant:
        cls = type(OSError(args[0].value, ""))  # type: ignore[attr-defined]
    error = t.Error(cls)
    error.init_args = list(args)
    if issubclass(cls, OSError):
        _keep_fields(tracer, error, args, {})
    return error


def _new_group(tracer: Any, cls: type, args: Args) -> t.Error:
    if len(args) != 2:
        tracer.raise_(TypeError(f"BaseExceptionGroup.__new__() takes exactly 2 arguments ({len(args)} given)"))
    message, given = args
    if not issubclass(message.pytype(), str):
        tracer.raise_(TypeError(f"argument 1 must be str, not {message.pytype().__name__}"))
    if not isinstance(given, t.Sequence):
        tracer.raise_(TypeError("second argument (exceptions) must be a sequence"))
    members = given.open(tracer)  # type: ignore[attr-defined]
    if not members:
        tracer.raise_(ValueError("second argument (exceptions) must be a non-empty sequence"))
    plain = True
    for i, member in enumerate(members):
        if not isinstance(member, t.Error):
            tracer.raise_(ValueError(f"Item {i} of second argument (exceptions) is not an exception"))
        plain = plain and issubclass(member.pytype(), Exception)
    if cls is BaseExceptionGroup and plain:
        cls = ExceptionGroup
    elif not plain and issubclass(cls, Exception):
        name = cls.__name__
        tracer.raise_(TypeError(f"Cannot nest BaseExceptions in "
                                f"{'an ExceptionGroup' if cls is ExceptionGroup else repr(name)}"))
    error = t.Error(cls)
    error.init_args = list(args)
    error.attrs["message"] = message
    error.attrs["exceptions"] = t.Tuple(list(members))
    return error


def _keep_fields(tracer: Any, error: t.Error, args: Args, kwargs: Kwargs) -> None:
    """Set the fields that C sets from the arguments in addition to `args`, as read from a real exception of the builtin
    kind made of stand-ins."""
    base = builtin_part(error.cls)
    names = [name for kind, names in CARRIED if issubclass(base, kind) for name in names]
    if not names and not kwargs:
        return
    stands: dict[int, t.Tracker] = {}
    held = []

    def stand(x: t.Tracker) -> Any:
        read = type(x) is t.Const or issubclass(base, (UnicodeError, SyntaxError))
        held.append(x.real(tracer) if read else Placeholder())
        stands[id(held[-1])] = x
        return held[-1]

    def found(value: Any) -> t.Tracker:
        if type(value) is tuple:
            return t.Tuple(list(map(found, value)))
        return stands[id(value)] if id(value) in stands else tracer.made(value)

    plain = Exception if issubclass(base, BaseExceptionGroup) else base
    named = type(error.cls.__name__, (plain,), {})
    real = tracer.folded(named, tuple(map(stand, args)), {k: stand(v) for k, v in kwargs.items()})
    for name in names:
        if getattr(real, name) is not None:
            error.attrs[name] = found(getattr(real, name))
    if len(real.args) < len(args):
        error.attrs["args"] = found(real.args)


@method(t.Error, "__init__")
def _init(tracer: Any, self: t.Error, *args: t.Tracker, **kwargs: t.Tracker) -> t.Tracker:
    if self.value is not None:
        raise Unsupported("__init__ of an exception that was made outside")
    self.attrs.pop("args", None)
    if list(args) != self.init_args:
        self.attrs["args"] = t.Tuple(list(args))
    _keep_fields(tracer, self, list(args), kwargs)
    return t.NONE


# --- text -------------------------------------------------------------------------------------------------------------
@method(t.Error, "__str__")
def _str(tracer: Any, self: t.Error) -> t.Tracker:
    args = self.args(tracer)
    if issubclass(self.cls, KeyError) and len(args) == 1:
        return tracer.text(args[0], "__repr__")
    if issubclass(self.cls, ImportError) and self.value is None:
        message = self.field("msg")
        if message.constant and isinstance(message.value, str):  # type: ignore[attr-defined]
            return message
    if issubclass(self.cls, BaseExceptionGroup):
        n = len(self.get(tracer, "exceptions").open(tracer))  # type: ignore[attr-defined]
        return t.Const(f"{self.get(tracer, 'message').real(tracer)} ({n} sub-exception{'s' if n > 1 else ''})")
    if issubclass(self.cls, (OSError, SyntaxError, UnicodeError)) and len(args) > 1:
        return _folded_text(tracer, self)
    if not args:
        return t.Const("")
    return tracer.text(args[0]) if len(args) == 1 else tracer.text(t.Tuple(args))


def _folded_text(tracer: Any, self: t.Error) -> t.Tracker:
    base = next(c for c in self.cls.__mro__ if c.__module__ == "builtins")
    real = tuple(a.real(tracer) for a in (self.init_args if self.value is None else self.args(tracer)) or ())
    return tracer.fold(str, (tracer.folded(base, real),))


@method(t.Error, "__repr__")
def _repr(tracer: Any, self: t.Error) -> t.Tracker:
    args = self.args(tracer)
    inside = (f"({tracer.text(args[0], '__repr__').real(tracer)})" if len(args) == 1
              else tracer.text(t.Tuple(args), "__repr__").real(tracer))
    return t.Const(self.cls.__name__ + inside)


# --- notes, tracebacks ------------------------------------------------------------------------------------------------
@method(t.Error, "add_note")
def _add_note(tracer: Any, self: t.Error, note: t.Tracker) -> t.Tracker:
    if not issubclass(note.pytype(), str):
        tracer.raise_(TypeError(f"note must be a str, not '{note.pytype().__name__}'"))
    notes = self.own_attr(tracer, "__notes__")
    if notes is None:
        notes = t.List([])
        self.set(tracer, "__notes__", notes)
    if not isinstance(notes, t.List):
        tracer.raise_(TypeError("Cannot add note: __notes__ is not a list"))
    return notes.builtin_method(tracer, "append", [note], {})  # type: ignore[union-attr]


@method(t.Error, "with_traceback")
def _with_traceback(tracer: Any, self: t.Error, tb: t.Tracker) -> t.Tracker:
    self.set(tracer, "__traceback__", tb)
    return self


# --- groups -----------------------------------------------------------------------------------------------------------
Matcher = Callable[[t.Tracker], bool]


def members(tracer: Any, group: t.Tracker) -> list[t.Tracker]:
    """Return the exceptions of a group."""
    return group.get(tracer, "exceptions").open(tracer)  # type: ignore[attr-defined]


def is_group(error: t.Tracker) -> bool:
    return issubclass(error.pytype(), BaseExceptionGroup)


def matcher(tracer: Any, want: t.Tracker) -> Matcher:
    """Return the test that `split` and `subgroup` take: a class, a tuple of classes, or a predicate."""
    if isinstance(want, t.Class) and issubclass(want.value, BaseException):
        return lambda e: issubclass(e.pytype(), want.value)
    if isinstance(want, t.Tuple) and all(isinstance(c, t.Class) for c in want.open(tracer)):
        kinds = tuple(c.value for c in want.open(tracer))  # type: ignore[attr-defined]
        return lambda e: issubclass(e.pytype(), kinds)
    if isinstance(want, (t.Function, t.Method)):
        return lambda e: want.call(tracer, [e], {}).truth(tracer)
    return tracer.raise_(TypeError("expected a function, exception type or tuple of exception types"))


def split(tracer: Any, group: t.Tracker, fits: Matcher, rest_too: bool = True) -> tuple[t.Tracker, t.Tracker]:
    """(the part of a group that fits, the rest), with its nesting kept; None where there is none."""
    if fits(group):
        return group, t.NONE
    if not is_group(group):
        return t.NONE, group
    parts: tuple[Args, Args] = ([], [])
    for member in members(tracer, group):
        for out, part in zip(parts, split(tracer, member, fits, rest_too)):
            if part is not t.NONE:
                out.append(part)
    match, rest = (derived(tracer, group, part) for part in (parts[0], parts[1] if rest_too else []))
    return match, rest


def derived(tracer: Any, group: t.Tracker, part: Args) -> t.Tracker:
    """Return a group of `part` with the metadata of `group`."""
    if not part:
        return t.NONE
    new = group.get(tracer, "derive").call(tracer, [t.List(part)], {})
    for name in ("__traceback__", "__context__", "__cause__"):
        if isinstance(group, t.Error) and name in group.attrs:
            new.attrs[name] = group.attrs[name]  # type: ignore[attr-defined]
    notes = group.own_attr(tracer, "__notes__")  # type: ignore[attr-defined]
    if notes is not None:
        new.set(tracer, "__notes__", t.List(notes.items_list(tracer)))
    return new


@method(t.Error, "derive")
def _derive(tracer: Any, self: t.Error, part: t.Tracker) -> t.Tracker:
    return _new_group(tracer, BaseExceptionGroup, [self.get(tracer, "message"), part])


@method(t.Error, "split")
def _split(tracer: Any, self: t.Error, want: t.Tracker) -> t.Tracker:
    return t.Tuple(list(split(tracer, self, matcher(tracer, want))))


@method(t.Error, "subgroup")
def _subgroup(tracer: Any, self: t.Error, want: t.Tracker) -> t.Tracker:
    return split(tracer, self, matcher(tracer, want), rest_too=False)[0]


def prep_reraise(tracer: Any, original: t.Tracker, raised: Args) -> t.Tracker:
    """Return the exception that an `except*` statement raises: the exceptions raised in its clauses, and the part that
    no clause took."""
    raised = [e for e in raised if e is not t.NONE]
    if not raised:
        return t.NONE
    if not is_group(original):
        return raised[0]
    again = [e for e in raised if _same_metadata(e, original)]
    new = [e for e in raised if not _same_metadata(e, original)]
    kept = {id(leaf) for e in again for leaf in _leaves(tracer, e)}
    projection = split(tracer, original, lambda e: id(e) in kept)[0] if kept else t.NONE
    if not new:
        return projection
    if projection is not t.NONE:
        new.append(projection)
    return new[0] if len(new) == 1 else _new_group(tracer, BaseExceptionGroup, [t.Const(""), t.List(new)])


def _leaves(tracer: Any, error: t.Tracker) -> Args:
    return [leaf for e in members(tracer, error) for leaf in _leaves(tracer, e)] if is_group(error) else [error]


def _same_metadata(a: t.Tracker, b: t.Tracker) -> bool:
    if not is_group(a) or not isinstance(a, t.Error) or not isinstance(b, t.Error):
        return False
    return all(a.attrs.get(n) is b.attrs.get(n) for n in ("__traceback__", "__cause__", "__context__"))


# --- sys --------------------------------------------------------------------------------------------------------------
@calls(sys.exc_info)
def _exc_info(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    now = tracer.handling()
    if now is t.NONE:
        return t.Tuple([t.NONE, t.NONE, t.NONE])
    return t.Tuple([tracer.made(now.pytype()), now, traceback_of(now)])


if hasattr(sys, "exception"):
    @calls(sys.exception)
    def _exception(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        return tracer.handling()


def traceback_of(error: t.Tracker) -> t.Tracker:
    """Return the traceback that a handler sees."""
    if isinstance(error, t.Error) and error.value is None:
        return error.attrs.get("__traceback__", t.NONE)
    raise Unsupported("the traceback of an exception that was made outside")
