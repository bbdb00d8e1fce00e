"""Calls of torch functions: run on fakes, or by the `__torch_function__` that the program gives a tensor's class.

PyTorch itself decides which class is asked, about which function, with which types and arguments: the function is
called for real on fakes whose classes, for that call, are related as the program's are and inline what these define.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import BuiltinFunctionType, FunctionType, MethodWrapperType
from typing import Any, cast

import torch

from framesmith.fake import FakeTensor
from framesmith.fake.ragged_attention import INSTEAD
from framesmith.fake.wrappers import is_distributed, wrappers_among
from framesmith.util.errors import FramesmithError, Unsupported

from . import data
from . import trackers as t
from .call_log import CallEvent, state_of_call
from .distributed_tensors import Making, computed
from .modes import under_functions
from .overrides import (
    converted,
    has_function,
    is_class_of_programs,
    is_followed,
    overridden,
    own_function,
    tensors_among,
)
from .run_time_indices import OBSERVERS, selected
from .session import Session
from .symbolic_arithmetic import given, taken
from .thread_state import read_state
from .trackers import Args, Kwargs
from .trackers.tensors import get_item, set_item
from .wrapper_derivatives import differentiated
from .wrapper_tensors import needs_derivative, prepare_nested

_SUBSCRIPTED = ("__getitem__", "__setitem__")
_SUBSCRIPTS = {get_item: operator.getitem, set_item: operator.setitem}


def _decided(value: Any) -> Any:
    return bool(value) if type(value) is torch.SymBool else value


class TorchFunctions(Session):
    """The part of the session that calls torch functions."""

    def __init__(self) -> None:
        self.state = read_state()
        self.functions = self.state.torch_functions
        """Torch functions call the `__torch_function__` of subclasses at this point of the program."""
        self.fake_classes: dict[type, type] = {torch.Tensor: FakeTensor}
        self.questions: list[_Question] = []

    def asks(self, *values: t.Tracker) -> bool:
        """Return whether a torch function that reads `values` calls a `__torch_function__` of the program's."""
        return self.functions and any(own_function(x.pyclass) for x in tensors_among(values, self))

    @contextmanager
    def without_functions(self) -> Iterator[None]:
        """Follow the program as under `torch._C.DisableTorchFunctionSubclass`."""
        before, self.functions = self.functions, False
        try:
            yield
        finally:
            self.functions = before

    def torch_function(self, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        """Call a torch function as the program does, by the `__torch_function__` of its arguments' classes if they have
        one."""
        if not self.asks(*args, *kwargs.values()):
            return self.torch_call(fn, args, kwargs)
        if isinstance(fn, FunctionType) and fn not in _SUBSCRIPTS:
            return self.inline(self.made(fn), args, kwargs)
        if self.transformed or self.modes.functions:
            raise Unsupported("tensors of a class with a __torch_function__ in a function transform or mode")
        real, named = [taken(self, a) for a in args], {k: taken(self, v) for k, v in kwargs.items()}
        known = {id(r): a for r, a in zip([*real, *named.values()], [*args, *kwargs.values()])}
        tensors = tensors_among([*args, *kwargs.values()])
        fakes = [(x.fake, self.fake_class(x.pyclass)) for x in tensors if has_function(x.pyclass)]
        self.questions.append(_Question(known, fakes))
        try:
            with self.questions[-1], torch._C._EnableTorchFunction():
                return self.recorded(_SUBSCRIPTS.get(fn, fn), real, named)
        finally:
            self.questions.pop()

    def torch_call(self, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        """Run `fn` on fakes under the recorder."""
        try:
            changed, real, named = given(self, fn, args, kwargs)
        except Unsupported:
            out = overridden(self, fn, args, kwargs)
            if out is None:
                raise
            return out
        if self.asks(*args, *kwargs.values()):
            raise Unsupported(f"{getattr(fn, '__name__', fn)} of a tensor of a class with a __torch_function__")
        return converted(self, fn, args, kwargs, self.recorded(changed, real, named))

    def recorded(self, fn: Any, real: list[Any], named: dict[str, Any]) -> t.Tracker:
        """Call `fn` on fakes, and make the tracker of what it gives."""
        if named.get("requires_grad"):
            raise Unsupported(f"{getattr(fn, '__name__', fn)} makes a leaf that requires grad")
        if isinstance(fn, BuiltinFunctionType):  # C takes no symbols for bools
            real, named = [_decided(x) for x in real], {name: _decided(x) for name, x in named.items()}
        self.recorder.stack = self.user_stack()
        nodes, state = len(self.recorder.graph.nodes), state_of_call(self)
        before = self.mark()
        if before is not None and named.get("out") is not None:
            self.refuse_out(real, named)
        try:
            if getattr(fn, "__module__", None) == "torch.nested":
                prepare_nested(self.recorder)
            own = list(wrappers_among([getattr(fn, "__self__", None), *real, *named.values()]))
            asked = self.functions and own
            fn = INSTEAD.get(fn, fn) if asked else fn
            with under_functions(self.modes.functions), torch._C._EnableTorchFunction() if asked else nullcontext():
                if type(fn) is Making or any(map(is_distributed, map(type, own))):
                    return self.made(computed(self, fn, real, named))
                if own and needs_derivative(self, own, [*real, *named.values()]):
                    return self.made(differentiated(self, fn, real, named))
                out = fn(*real, **named)
        except (FramesmithError, RecursionError, MemoryError, t.CapturedError):
            raise
        except Exception as e:
            if _is_own_fault(e):
                raise Unsupported(f"{getattr(fn, '__name__', fn)} cannot be recorded ({type(e).__name__}: {e})") from e
            return self.raise_(e)  # type: ignore[no-any-return]
        if type(out) is _Answer:
            return out.tracker
        self.dtypes.note()
        self.seeds.note()
        if before is not None and not self.transformed:
            self.follow(*before)
        self.nodes_made += len(self.recorder.graph.nodes) - nodes
        self.log.append(CallEvent(fn, real, named, out, self.recorder.stack, self.user_place(), state))
        return self.made(out)

    def tensor_method(self, obj: t.Tensor, name: str, args: Args, kwargs: Kwargs) -> t.Tracker:
        """Call a method of torch.Tensor."""
        if type(obj) is t.WrapperTensor and name not in _SUBSCRIPTED:
            return self.torch_call(getattr(obj.fake, name), args, kwargs)
        if name in OBSERVERS:
            self.seen_as_copy(obj.fake)
        if name == "tolist":
            if args or kwargs or (listed := data.listed(self, obj)) is None:
                raise Unsupported("Tensor.tolist: Python values of a tensor's data")
            return listed
        if name == "select" and len(args) == 2 and (key := selected(self, obj, *args)) is not None:
            return obj.item(self, key)
        if name == "__getitem__" and len(args) == 1:
            return obj.item(self, *args)
        if name == "__setitem__" and len(args) == 2:
            obj.set_item(self, *args)
            return t.NONE
        if name in ("__repr__", "__str__"):
            return data.shown(self, obj, name)
        if name == "__format__":
            return data.formatted(self, obj, args[0].real(self))
        if name == "storage_offset":
            self.guard_owners(obj.fake, torch.Tensor.storage_offset)
        if name == "is_pinned" and not args and not kwargs:
            return t.boolean(any(self.guard_owners(obj.fake, torch.Tensor.is_pinned)))  # what a graph computes never is
        if name == "item" and not args and not kwargs and (found := data.number(self, obj)) is not None:
            return found
        return converted(self, None, [obj, *args], kwargs, self.torch_call(getattr(obj.fake, name), args, kwargs))

    def accessor(self, fn: MethodWrapperType, args: Args) -> t.Tracker:
        """Call `torch.Tensor.name.__get__`, or its like."""
        if self.asks(*args):
            return self.torch_function(fn, args, {})
        x, descriptor = args[0], cast(Any, fn.__self__)
        name = getattr(descriptor, "fget", descriptor).__name__
        if not isinstance(x, t.Tensor) or fn.__name__ not in ("__get__", "__set__", "__delete__"):
            raise Unsupported(f"{fn.__name__} of Tensor.{name}, for {x.describe()}")
        if fn.__name__ == "__get__":
            return x.by_torch(self, name, descriptor)
        x.put(self, name, args[1] if fn.__name__ == "__set__" else t.DELETED)
        return t.NONE

    # --- tensors of subclasses ----------------------------------------------------------------------------------------
    def as_subclass(self, x: t.Tracker, cls: Any) -> t.Tracker:
        """Make the tracker of `x.as_subclass(cls)`."""
        known = cls is torch.Tensor or is_class_of_programs(cls) and is_followed(cls)
        if not known or not isinstance(x, t.Tensor):
            raise Unsupported(f"{x.describe()} as a {cls.__name__}")
        with self.without_functions():
            made = self.torch_call(torch.ops.aten.alias.default, [x], {})
        made.pyclass = cls  # type: ignore[attr-defined]
        return made

    def convert(self, out: t.Tracker, cls: type) -> t.Tracker:
        """Convert the result of a function to `cls`, as torch.Tensor's `__torch_function__` does."""
        kind = out.pytype()
        if cls is torch.Tensor:
            return out
        if isinstance(out, t.Tensor):
            return out if issubclass(kind, cls) else self.as_subclass(out, cls)
        if not issubclass(kind, (tuple, list)) or kind is torch.Size:
            return out
        items = [self.convert(x, cls) for x in out.items_list(self)]
        if kind is list:
            return t.List(items)
        if kind is tuple or hasattr(kind, "n_sequence_fields"):
            return t.Tuple(items, cls=kind)
        return self.made(kind).call(self, [t.Iter(items)], {})

    def fake_class(self, cls: type) -> type:
        """Make the class of fakes that stands for a class of tensors in calls that ask it."""
        found = self.fake_classes.get(cls)
        if found is None:
            bases = tuple(self.fake_class(base) for base in cls.__bases__ if issubclass(base, torch.Tensor))

            def ask(stand: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return self.follow_function(cls, func, types, args, kwargs)

            def dispatch(stand: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                """Record a function that calls no `__torch_function__`."""
                with self.questions[-1].as_plain_fakes(), torch._C.DisableTorchFunctionSubclass():
                    return FakeTensor.__torch_dispatch__(func, types, args, kwargs)

            hook: Any = classmethod(ask) if has_function(cls) else torch._C._disabled_torch_function_impl
            space = {"__torch_function__": hook, "__torch_dispatch__": classmethod(dispatch)}
            names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
            found = self.fake_classes[cls] = type(cls.__name__, bases, {**space, **names})
        return found

    def follow_function(self, cls: type, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Inline the class's `__torch_function__`; PyTorch calls this with fakes, and gets the answer."""
        classes = {stand: cls for cls, stand in self.fake_classes.items()}
        question = self.questions[-1]
        with question.as_plain_fakes(), torch._C.DisableTorchFunctionSubclass():
            told = [self.made(func), t.Tuple([self.made(classes[k]) for k in types]),
                    t.Tuple([question.tracker(self, a) for a in args])]
            if kwargs is not None:
                told.append(t.Dict({k: question.tracker(self, v) for k, v in kwargs.items()}))
            try:
                out = self.class_attr(self.made(cls), "__torch_function__").call(self, told, {})
            except t.CapturedError as e:
                raise (_CapturedTypeError(e.tracker) if issubclass(e.tracker.pytype(), TypeError) else e) from None
            except TypeError as e:  # PyTorch's operators take no notice of it
                raise Unsupported(f"the __torch_function__ of {cls.__name__} is not followed (TypeError: {e})") from e
        return NotImplemented if isinstance(out, t.Const) and out.value is NotImplemented else _Answer(out)


_OWN = __file__.rsplit("/", 2)[0]
_FAULTS = (AssertionError, AttributeError, KeyError, NameError, TypeError)
_NO_DATA = "data is not allocated yet"
"""PyTorch's message where C++ reads the elements of a fake tensor."""


def _is_own_fault(error: Exception) -> bool:
    """Return whether an error in a call on fakes is a failure of recording, not the error that eager would raise."""
    if _NO_DATA in str(error):
        return True
    if not isinstance(error, _FAULTS) or error.__traceback__ is None:
        return False
    tb = error.__traceback__
    while tb.tb_next is not None:
        tb = tb.tb_next
    code = tb.tb_frame.f_code
    return tb is not error.__traceback__ and code.co_filename.startswith(_OWN) and code.co_name != "true_error"


class _Question:
    """One call of a torch function: the trackers of its arguments, and the fakes that have other classes within it."""

    def __init__(self, known: dict[int, t.Tracker], fakes: list[tuple[FakeTensor, type]]) -> None:
        self.known = known
        self.fakes = fakes

    def tracker(self, tracer: Any, value: Any) -> t.Tracker:
        """Find the tracker of an argument that PyTorch hands over."""
        found = self.known.get(id(value))
        return found if found is not None else tracer.made(value)

    def __enter__(self) -> None:
        for fake, stand in self.fakes:
            fake.__class__ = stand  # type: ignore[assignment]

    def __exit__(self, *exc: object) -> None:
        for fake, _ in self.fakes:
            fake.__class__ = FakeTensor

    @contextmanager
    def as_plain_fakes(self) -> Iterator[None]:
        """Make them plain fakes within the block."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()


class _Answer:
    """The result of a `__torch_function__`, on its way through PyTorch."""

    __slots__ = ("tracker",)

    def __init__(self, tracker: t.Tracker) -> None:
        self.tracker = tracker


class _CapturedTypeError(t.CapturedError, TypeError):
    """A TypeError of the program's, for which PyTorch's operators return NotImplemented."""
