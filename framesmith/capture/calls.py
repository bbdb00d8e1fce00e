"""Calls: of Python functions (inlined), of builtins (handled, folded or refused), of classes (instantiated)."""

from __future__ import annotations

import collections
import enum
import functools
import types
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType
from typing import Any

import torch
from torch import nn

from framesmith.fake.wrappers import is_distributed, is_wrapper
from framesmith.symbolic.node import FUNCTIONS, computed, specialised
from framesmith.util.errors import FramesmithError, Unsupported

from . import trackers as t
from .binding import bind
from .break_points import choose_stop
from .bytecode import decoded
from .class_making import builtin_part
from .frame import Frame
from .overrides import is_overridable
from .policy import pure_method, refused_function, runs_whole
from .registry import (
    BUILTIN_KINDS,
    BY_NAME,
    CALLS,
    CODES,
    CONSTANT_METHODS,
    EAGER_MODULES,
    FOLDED,
    OPAQUE,
    PLAIN,
    named,
)
from .session import Session
from .settings import read_setting, reads_setting
from .sources import MISSING
from .surroundings import Answer
from .values import CONSTANT_TYPES, ONE_OF_A_KIND
from .wrong_calls import FAILURES, TAKES, explain, fits

_GENERATOR = 0x20
_ABSTRACT = 1 << 20
_COROUTINE = 0x80 | 0x200 | 0x100
MAX_DEPTH = 150


_CALL_OF_MODULE = nn.Module.__call__

_COMPARISONS = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"})


class Calls(Session):
    """The part of the session that calls things."""

    # --- errors and folding -------------------------------------------------------------------------------------------
    def folded(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Run `fn` for real, specialising dynamic sizes; the captured program raises its exceptions."""
        if self.shapes.symbols or self.shapes.data:
            if len(args) == 1 and type(args[0]) in (torch.SymFloat, torch.SymInt) and fn in FUNCTIONS and (
                    found := computed(args[0], FUNCTIONS[fn])) is not None:
                return found
            args, kwargs = specialised(args), specialised(kwargs)
        try:
            result = fn(*args, **kwargs) if kwargs else fn(*args)
            self.surroundings.note_text(result)
            return result
        except (FramesmithError, t.CapturedError):
            raise
        except Warning as e:
            raise Unsupported("a call whose warning a filter turns into an error") from e
        except Exception as e:
            return self.raise_(e)

    def answer(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `fn` for real, and note that its result may differ in another process."""
        result = self.folded(fn, args, kwargs)
        self.surroundings.answers.append(Answer(fn, args, kwargs, result))
        return result

    def by_c(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a C function for real over trackers: the captured program raises the exceptions that it raises itself.
        Errors of capture in its callbacks are not the program's."""
        try:
            return fn(*args, **kwargs)
        except (FramesmithError, t.CapturedError):
            raise
        except Exception as e:
            if e.__traceback__ is not None and e.__traceback__.tb_next is not None:
                raise
            return self.raise_(e)

    def fold(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> t.Tracker:
        return self.made(self.folded(fn, args, kwargs))

    def fold_call(self, fn: Callable[..., Any], args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
        """Call a pure function on trackers."""
        real = tuple([a.real(self) for a in args])
        return self.made(self.folded(fn, real, {k: v.real(self) for k, v in kwargs.items()}))

    # --- rows ---------------------------------------------------------------------------------------------------------
    def by_row(self, row: Callable[..., t.Tracker], fn: Any, args: list[t.Tracker],
               kwargs: dict[str, t.Tracker]) -> t.Tracker:
        """Return the handler of a known callable."""
        if (type(fn) is BuiltinFunctionType or fn in TAKES) and not fits(fn, len(args) + len(kwargs), tuple(kwargs)):
            explain(self, fn, args, kwargs)
        try:
            out = row(self, args, kwargs)
            if type(out) is t.Lazy and (out.parts is None or out.made_by is not None):
                out.stop = choose_stop(self.frames, self.steps)
            return out
        except FAILURES as e:
            explain(self, fn, args, kwargs)
            raise Unsupported(f"a call of {getattr(fn, '__qualname__', fn)} with these arguments ({type(e).__name__}: "
                              f"{e})") from e

    # --- Python functions ---------------------------------------------------------------------------------------------
    def call_function(self, fn: t.Function, args: list[t.Tracker], kwargs: dict[str, t.Tracker],
                      direct: bool = False) -> t.Tracker:
        """Call a Python function: by its row, run whole on fakes if it is torch's own, else inlined.

        `direct`: the result is that of the caller's present instruction, so a break may resume inside.
        """
        value: Any = fn.value if fn.guard is None else None  # functions with rows are guarded by their identity
        if value is _CALL_OF_MODULE:
            _refuse_eager_module(args[0])
        if value is not None and value not in self.followed:
            row = CALLS.get(value) or BY_NAME.get(f"{value.__module__}.{value.__qualname__}")
            if row is not None and is_overridable(value) and self.asks(*args, *kwargs.values()):
                return self.inline(fn, args, kwargs, direct)
            if row is not None:
                return self.by_row(row, value, args, kwargs)
            row = CODES.get(id(fn.code))  # of all functions that one decorator makes
            if row is not None:
                return row(self, fn, args, kwargs)
            if value in FOLDED:
                return self.fold_call(value, args, kwargs)
            if args and _is_method_of(args[0], fn.name, value):
                return args[0].builtin_method(self, fn.name, args[1:], kwargs)
            if runs_whole(value):
                return self.torch_function(value, args, kwargs)
            reason = refused_function(value)
            if reason is not None and (original := hidden(value)) is not None:
                return self.made(original).call(self, args, kwargs)
            if reason is not None:
                raise Unsupported(reason)
            if getattr(torch.Tensor, fn.name, None) is not value:
                self.followed.add(value)
        elif value is None and (row := CODES.get(id(fn.code))) is not None:
            return row(self, fn, args, kwargs)
        return self.inline(fn, args, kwargs, direct)

    def inline(self, fn: t.Function, args: list[t.Tracker], kwargs: dict[str, t.Tracker],
               direct: bool = False) -> t.Tracker:
        """Run the body of `fn` in a frame of its own."""
        fn.open(self)
        code = fn.code
        dec = decoded(code)
        slots = bind(self, fn, args, kwargs, len(dec.localsplus))
        frames = self.frames
        frame = Frame(self, fn, dec, slots, direct)
        flags = code.co_flags
        if flags & (_GENERATOR | _COROUTINE):
            if flags & _COROUTINE:
                raise Unsupported(f"call of async function {fn.qualname}")
            gen = t.Generator(frame)
            if dec.handlers:
                self.cleaning.append((gen, choose_stop(frames, self.steps)))
            return gen
        if len(frames) >= MAX_DEPTH:
            raise Unsupported(f"calls nested deeper than {MAX_DEPTH}")
        return self.run_frame(frame)

    def run_frame(self, frame: Frame) -> t.Tracker:
        """Run a frame to its end. If capture refuses, the frames stay on the stack, to show the place."""
        self.frames.append(frame)
        try:
            result = frame.run()
        except t.CapturedError:
            self.frames.pop()
            raise
        self.frames.pop()
        return result  # type: ignore[no-any-return]

    def run_class_body(self, body: t.Function, space: t.Tracker) -> t.Tracker:
        """Run the function of a class statement: its names go to `space`."""
        body.open(self)
        dec = decoded(body.code)
        frame = Frame(self, body, dec, [None] * len(dec.localsplus), False)
        frame.space = space
        return self.run_frame(frame)

    def call_direct(self, fn: t.Tracker, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
        """Make a call whose result is that of the present instruction."""
        if type(fn) is t.Method:
            args = [fn.obj, *args]
            fn = fn.func
        if type(fn) is t.Function:
            return self.call_function(fn, args, kwargs, True)
        if isinstance(fn, t.Object):
            raw = self.lookup(fn.cls, "__call__")
            if isinstance(raw, FunctionType):
                f = self.class_function(raw)
                if type(f) is t.Function:
                    def follow() -> t.Tracker:
                        return self.call_function(f, [fn, *args], kwargs, True)

                    if type(fn) is t.Module and fn.value is not None and self.replays is not None:
                        return self.replays.call(self, fn, args, kwargs, follow)  # type: ignore[no-any-return]
                    return follow()
        return fn.call(self, args, kwargs)

    def call_special(self, obj: t.Tracker, name: str, args: list[t.Tracker],
                     kwargs: dict[str, t.Tracker] | None = None) -> t.Tracker:
        """Call a special method, looked up on the type."""
        kind = obj.pytype()
        raw = self.lookup(kind, name)
        kwargs = kwargs or {}
        if isinstance(raw, FunctionType):
            return self.class_function(raw).call(self, [obj, *args], kwargs)
        if raw is MISSING or raw is None:
            return self.raise_(
                TypeError(_SPECIAL_ERRORS.get(name, "'{}' object does not support {}").format(kind.__name__, name)))
        if isinstance(raw, (WrapperDescriptorType, MethodDescriptorType)):
            return obj.builtin_method(self, name, args, kwargs)
        return self.bound_special(obj, name, raw).call(self, args, kwargs)

    def bound_special(self, obj: t.Tracker, name: str, raw: Any) -> t.Tracker:
        """Return the function that the interpreter calls for a special method: `raw`, found in the class of `obj`,
        bound as a descriptor would be."""
        kind = obj.pytype()
        if isinstance(raw, FunctionType):
            return t.Method(self.class_function(raw), obj)
        if isinstance(raw, (WrapperDescriptorType, MethodDescriptorType)):
            return t.Bound(obj, name, raw)
        if isinstance(raw, classmethod):
            return t.Method(self.class_function(raw.__func__), self.made(kind))
        if isinstance(raw, staticmethod):
            return self.class_function(raw.__func__)
        if isinstance(raw, property):
            return self.call_property(raw, "fget", [obj])
        value = self.class_value(kind, name, raw)
        getter = getattr(type(raw), "__get__", None)
        if isinstance(getter, FunctionType):
            return self.call_special(value, "__get__", [obj, self.made(kind)])
        if getter is None or isinstance(raw, types.MethodType):
            return value
        if isinstance(raw, functools._lru_cache_wrapper):
            return t.Method(value, obj)
        raise Unsupported(f"{name} of {obj.describe()}, a {type(raw).__name__}")

    def has_attr(self, x: t.Tracker, name: str) -> bool:
        """hasattr(x, name)"""
        return self.none_if_raised(AttributeError, x.get, self, name) is not None

    def none_if_raised(self, kind: Any, ask: Callable[..., Any], *args: Any) -> Any:
        """Return `ask(*args)`, or None if it raises an exception of class `kind` in the captured program."""
        try:
            return ask(*args)
        except t.CapturedError as e:
            if not issubclass(e.tracker.pytype(), kind):
                raise
        return None

    def is_iterable(self, x: t.Tracker) -> bool:
        """Return whether iter(x) is supported."""
        kind = x.pytype()
        return self.lookup(kind, "__iter__") is not MISSING or self.lookup(kind, "__getitem__") is not MISSING

    # --- builtins -----------------------------------------------------------------------------------------------------
    def apply_row(self, obj: t.Tracker, name: str, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
        """Call a method of a builtin type by its row."""
        row = self.methods(type(obj), name)
        if row is None:
            raise Unsupported(f"method {name!r} of {obj.describe()}")
        try:
            out = row(self, obj, *args, **kwargs)
        except TypeError as e:
            if e.__traceback__ is not None and e.__traceback__.tb_next is not None:
                raise
            return self.raise_misfit(obj.pytype(), name, args, kwargs)
        return t.Const(NotImplemented) if out is None else out

    def raise_misfit(self, kind: type, name: str, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
        """Raise CPython's own error for a call of a builtin method with arguments of a wrong number or name."""
        self.folded(getattr(kind(), name), (None,) * len(args), dict.fromkeys(kwargs))
        raise Unsupported(f"method {name!r} of a {kind.__name__} with these arguments")

    def call_builtin(self, fn: Any, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
        """Call a callable written in C."""
        try:
            row = CALLS.get(fn)
        except TypeError:
            row = None
        if (is_overridable(fn) or runs_whole(fn)) and self.asks(*args, *kwargs.values()):
            return self.torch_function(fn, args, kwargs)
        if row is not None:
            return self.by_row(row, fn, args, kwargs)
        if isinstance(fn, (MethodDescriptorType, WrapperDescriptorType)) and args and (
                not runs_whole(fn) or _is_method_of(args[0], fn.__name__, fn)):
            return self.unbound(fn, args, kwargs)
        try:
            pure = fn in FOLDED
        except TypeError:
            pure = False
        if pure:
            return self.fold_call(fn, args, kwargs)
        if runs_whole(fn):
            return self.torch_function(fn, args, kwargs)
        if type(fn) is MethodWrapperType and t.is_accessor(fn.__self__) and not kwargs:
            return self.accessor(fn, args)
        if isinstance(fn, (BuiltinFunctionType, MethodWrapperType)):
            owner = getattr(fn, "__self__", None)
            out = self.constant_method(t.Const(owner), fn.__name__, args, kwargs)
            if out is not None:
                return out
            if pure_method(fn, owner):
                return self.fold_call(fn, args, kwargs)
        kind = BUILTIN_KINDS.get(type(fn).__name__)
        if kind is not None:
            return kind(self, fn, args, kwargs)
        if reads_setting(fn):
            return read_setting(self, fn, args, kwargs)
        name = getattr(fn, "__qualname__", repr(fn))
        raise Unsupported(f"call of builtin {getattr(fn, '__module__', None) or ''}.{name}")

    def constant_method(self, x: t.Const, name: str, args: list[t.Tracker],
                        kwargs: dict[str, t.Tracker]) -> t.Tracker | None:
        """Call a method of a constant that cannot be folded, by its row; return None if it has none."""
        row = CONSTANT_METHODS.get((x.pytype(), name))
        return None if row is None else row(self, x, args, kwargs)

    def unbound(self, fn: Any, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
        """`dict.get(d, key)`: a method of a builtin type with its object as the first argument."""
        obj = args[0]
        if isinstance(obj, t.Const) and fn.__name__ not in t.CHANGES:
            return self.fold_call(fn, args, kwargs)
        return self.call_raw(fn, obj, args[1:], kwargs)

    def call_raw(self, raw: Any, obj: t.Tracker, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
        """Return the method that `raw`, a descriptor of a builtin type, gives for `obj`, even if the object's own class
        overrides it."""
        owner, name = getattr(raw, "__objclass__", object), raw.__name__
        if owner is not object and isinstance(obj, t.Object) and obj.payload is None:
            row = OPAQUE.get((owner, name))
            if row is not None:
                out = row(self, obj, *args, **kwargs)
                return t.Const(NotImplemented) if out is None else out
            if name in _COMPARISONS and owner not in PLAIN:
                raise Unsupported(f"{owner.__name__}.{name} of {obj.describe()}")
        return obj.builtin_method(self, name, args, kwargs)

    def call_scripted(self, fn: Any, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
        """Call the Python function that a TorchScript function was compiled from; arguments annotated as float become
        floats."""
        known = named("torch.jit._state._jit_caching_layer") or {}
        original = next((f for f, name in list(known.items()) if name == fn.qualified_name
                         and isinstance(f, FunctionType)), None)
        if original is None:
            raise Unsupported(f"TorchScript function {fn.name}")
        floats = {name for name, hint in original.__annotations__.items() if hint is float or hint == "float"}
        names = original.__code__.co_varnames
        args = [_as_float(a) if name in floats else a for name, a in zip(names, args)]
        return self.inline(self.made(original), args,  # type: ignore[arg-type]
                           {k: _as_float(v) if k in floats else v for k, v in kwargs.items()})

    # --- classes ------------------------------------------------------------------------------------------------------
    def instantiate(self, klass: t.Class, args: list[t.Tracker], kwargs: dict[str, t.Tracker],
                    plain: bool = False) -> t.Tracker:
        """`cls(*args, **kwargs)`; `plain`: by type.__call__, not by the metaclass."""
        cls = klass.value
        row = CALLS.get(cls)
        if row is not None:
            return self.by_row(row, cls, args, kwargs)
        meta = self.lookup(type(cls), "__call__")
        if isinstance(meta, FunctionType) and not plain:
            if issubclass(cls, enum.Enum):
                return self.fold_call(cls, args, kwargs)
            if type(cls).__module__.startswith("torch"):
                raise Unsupported(f"instance of {cls.__name__}, whose metaclass makes it")
            return self.class_function(meta).call(self, [klass, *args], kwargs)
        if isinstance(meta, type):
            return self.made(meta).call(self, args, kwargs)
        if cls in ONE_OF_A_KIND:
            raise Unsupported(f"a new {cls.__name__}, which residual code could only share between calls")
        if cls.__module__ == "typing" and any(map(_holds_object, args)):
            raise Unsupported(f"a {cls.__name__} of an object")
        if cls in CONSTANT_TYPES or cls in FOLDED or cls.__module__ == "numpy" and hasattr(cls, "item"):
            return self.fold_call(cls, args, kwargs)
        if is_distributed(cls):
            raise Unsupported(f"a {cls.__name__} made of its parts")
        if is_wrapper(cls):
            return self.torch_call(cls, args, kwargs)  # type: ignore[attr-defined,no-any-return]
        new = self.lookup(cls, "__new__")
        if isinstance(new, (staticmethod, FunctionType)):
            obj = self.class_function(getattr(new, "__func__", new)).call(self, [klass, *args], kwargs)
            if cls not in obj.pytype().__mro__:
                return obj
        else:
            obj = self.new_instance(cls, args, kwargs)
        init = self.lookup(cls, "__init__")
        if not isinstance(init, WrapperDescriptorType):
            result = self.bound_special(obj, "__init__", init).call(self, args, kwargs)
            if result.pytype() is not type(None):
                self.raise_(TypeError(f"__init__() should return None, not '{result.pytype().__name__}'"))
        elif isinstance(obj, t.Error) or _initialises(obj) or init in _INITS:
            obj.builtin_method(self, "__init__", args, kwargs)
        return obj

    def takes_nothing(self, cls: type, name: str, excess: bool) -> None:
        """object.__new__ and object.__init__ refuse arguments, unless they are for the other of the two, which the
        class has replaced."""
        if not excess:
            return
        if cls in self.overlay or builtin_part(cls) is not object or self.lookup(cls, "__del__") is not MISSING:
            raise Unsupported(f"arguments of object.{name}, of which {cls.__qualname__} decides whether they are taken")
        self.folded(getattr(object, name), (cls if name == "__new__" else object.__new__(cls), None))

    def new_instance(self, cls: type, args: list[t.Tracker], kwargs: dict[str, t.Tracker] | None = None) -> t.Tracker:
        """`cls.__new__(cls)` of a builtin `__new__`."""
        if issubclass(cls, type):
            return CALLS[type.__new__](self, [self.made(cls), *args], kwargs or {})
        if self.lookup(cls, "__del__") is not MISSING:
            raise Unsupported(f"an instance of {cls.__qualname__}, whose __del__ runs when it dies")
        if cls.__flags__ & _ABSTRACT:
            self.folded(object.__new__, (cls,))
        if issubclass(cls, nn.Module):
            return t.Module(cls)
        if issubclass(cls, BaseException):
            return self.methods(t.Error, "__new__")(self, cls, args)
        if issubclass(cls, torch.Tensor):
            return CALLS[torch.Tensor.__new__](self, [self.made(cls), *args], kwargs or {})
        new = self.lookup(cls, "__new__")
        if builtin_part(cls) is object and (new is object.__new__ or isinstance(new, (staticmethod, FunctionType))):
            self.takes_nothing(cls, "__new__", bool(args or kwargs))
        obj = t.Object(cls)
        for base, make in _PAYLOADS:
            if issubclass(cls, base):
                obj.payload = make(self, args)
                return obj
        if cls.__flags__ & _ABSTRACT:
            self.folded(object.__new__, (cls,))
        if new is not object.__new__ and not isinstance(new, staticmethod) and PLAIN.isdisjoint(cls.__mro__):
            raise Unsupported(f"instance of {cls.__module__}.{cls.__qualname__}")
        return obj


def _is_method_of(x: t.Tracker, name: str, fn: Any) -> bool:
    """Tell whether `x` is a tensor, and `fn` the method of that name that torch.Tensor has."""
    return isinstance(x, t.Tensor) and getattr(torch.Tensor, name, None) is fn


def _holds_object(x: t.Tracker) -> bool:
    """Return whether a value is an instance of a class of the program's, or a tuple that holds one: no builtin value
    can stand for it."""
    return isinstance(x, t.Object) or isinstance(x, t.Tuple) and x._items is not None and any(map(_holds_object,
                                                                                                  x.items))


def _initialises(obj: t.Tracker) -> bool:
    """Return whether the builtin part of a new instance takes the arguments in `__init__`."""
    return isinstance(obj, t.Object) and obj.payload is not None and not isinstance(obj.payload, (t.Tuple, t.Const))


def hidden(fn: FunctionType) -> FunctionType | None:
    """Return torch's function inside the wrapper `fn` that hides it from torch.compile, if we may capture it: it has a
    row, or is an optimiser's."""
    original = getattr(fn, "_torchdynamo_orig_callable", None)
    if not isinstance(original, FunctionType):
        return None
    followed = original.__module__.startswith("torch.optim.") and original.__name__ != "step"
    return original if followed or original.__module__.startswith("torch.") and original in CALLS else None


_INITS = (types.SimpleNamespace.__init__,)


def _as_float(x: t.Tracker) -> t.Tracker:
    return t.Const(float(x.value)) if isinstance(x, t.Const) and type(x.value) is int else x


def _tuple_payload(tracer: Any, args: list[t.Tracker]) -> t.Tracker:
    return t.Tuple(args[0].items_list(tracer) if args else [])


_PAYLOADS: list[tuple[type, Callable[[Any, list[t.Tracker]], t.Tracker]]] = [
    (collections.OrderedDict, lambda tracer, a: t.Dict({}, cls=collections.OrderedDict)),
    (collections.defaultdict, lambda tracer, a: t.Dict({}, cls=collections.defaultdict)),
    (dict, lambda tracer, a: t.Dict({})),
    (list, lambda tracer, a: t.List([])),
    (frozenset, lambda tracer, a: t.Set.of(tracer, a[0].items_list(tracer) if a else [], frozenset)),
    (set, lambda tracer, a: t.Set(set())),
    (tuple, _tuple_payload),
    (str, lambda tracer, a: t.Const(str(*[x.real(tracer) for x in a]))),
    (int, lambda tracer, a: t.Const(int(*[x.real(tracer) for x in a]))),
    (float, lambda tracer, a: t.Const(float(*[x.real(tracer) for x in a]))),
]

_SPECIAL_ERRORS = {
    "__call__": "'{}' object is not callable",
    "__iter__": "'{}' object is not iterable",
    "__next__": "'{}' object is not an iterator",
    "__len__": "object of type '{}' has no len()",
    "__getitem__": "'{}' object is not subscriptable",
    "__setitem__": "'{}' object does not support item assignment",
    "__delitem__": "'{}' object doesn't support item deletion",
    "__enter__": "'{}' object does not support the context manager protocol",
    "__exit__": "'{}' object does not support the context manager protocol",
}


def _refuse_eager_module(module: t.Tracker) -> None:
    """No guard is needed: a graph break is right for any module."""
    if isinstance(module, t.Module) and module.value is not None:
        for ask in EAGER_MODULES:
            if (reason := ask(module.value)) is not None:
                raise Unsupported(f"call of a {type(module.value).__qualname__}: {reason}")
