"""`__torch_function__`: the classes of tensors that have one, and calls of torch functions on other objects that do."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch.overrides import get_default_nowrap_functions, get_testing_overrides

from framesmith.util.errors import Unsupported

from . import trackers as t
from .trackers import Args, Kwargs


def overriding(tracer: Any, args: Args) -> Args:
    """Return the arguments, also within lists and tuples, whose classes override torch functions; subclasses before
    their bases."""
    found: Args = []
    for x in args if tracer.functions else ():
        if isinstance(x, t.Sequence) and x._items is not None:
            found.extend(y for y in overriding(tracer, x.items) if y not in found)
        elif isinstance(x, t.Object) and _hook(tracer, x) is not None and all(x.cls is not y.pytype() for y in found):
            at = next((i for i, y in enumerate(found) if issubclass(x.cls, y.pytype())), len(found))
            found.insert(at, x)
    return found


def _hook(tracer: Any, x: t.Object) -> Any:
    raw = tracer.lookup(x.cls, "__torch_function__")
    return raw.__func__ if isinstance(raw, classmethod) and isinstance(raw.__func__, FunctionType) else None


def overridden(tracer: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker | None:
    """Call the arguments' own `__torch_function__` for a call of `fn`, and return its result; None if none has one."""
    found = overriding(tracer, [*args, *kwargs.values()])
    if not found:
        return None
    if getattr(fn, "__module__", None) in (operator.add.__module__, "builtins"):
        raise Unsupported("an operator between a tensor and an object with __torch_function__")
    kinds = t.Tuple([tracer.made(x.pytype()) for x in found])
    for x in found:
        assert isinstance(x, t.Object)
        call = t.Method(tracer.class_function(_hook(tracer, x)), tracer.made(x.cls))
        out = call.call(tracer, [tracer.made(fn), kinds, t.Tuple(args), t.Dict(dict(kwargs))], {})
        if not (isinstance(out, t.Const) and out.value is NotImplemented):
            return out
    raise Unsupported(f"no __torch_function__ takes {getattr(fn, '__name__', fn)}")


def is_class_of_programs(cls: type) -> bool:
    """Return whether a class of tensors is not torch's own."""
    return cls not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def is_followed(cls: type) -> bool:
    """Return whether capture supports a class of tensors: it has no `__torch_dispatch__` nor protocols of Python's."""
    bases = [base for base in cls.__mro__[:cls.__mro__.index(torch.Tensor)] if base is not torch.nn.Parameter]
    asked: Any = [base.__dict__["__torch_function__"] for base in bases if "__torch_function__" in vars(base)]
    return type(cls) in _PLAIN_METAS and all(_HOOKS.isdisjoint(vars(base)) for base in bases) and all(
        raw is _DISABLED or isinstance(raw, classmethod) and isinstance(raw.__func__, FunctionType) for raw in asked)


def has_function(cls: type) -> bool:
    """Tell whether torch functions on tensors of the class call its `__torch_function__`, if only torch.Tensor's."""
    return cls is not torch.Tensor and getattr(cls, "__torch_function__", None) is not _DISABLED


def converts(cls: type) -> bool:
    """Return whether results of torch functions on tensors of the class are of the class: torch.Tensor's own
    `__torch_function__` does it."""
    mine, own = (getattr(getattr(k, "__torch_function__", None), "__func__", None) for k in (cls, torch.Tensor))
    return cls is not torch.Tensor and mine is own


def own_function(cls: type) -> bool:
    """Tell whether torch functions on tensors of the class call a `__torch_function__` of the program's."""
    return cls is not torch.Tensor and has_function(cls) and not converts(cls)


@functools.cache
def _overridable() -> frozenset[Any]:
    return frozenset(get_testing_overrides())


def is_overridable(fn: Any) -> bool:
    """Tell whether a torch function calls the `__torch_function__` of its arguments."""
    try:
        return fn in _overridable()
    except TypeError:
        return False


def converted(tracer: Any, fn: Any, args: Args, kwargs: Kwargs, out: t.Tracker) -> t.Tracker:
    """Convert `out`, which `fn` gave for tensors as they are, as torch.Tensor's `__torch_function__` does."""
    given = list(tensors_among([*args, *kwargs.values()]))
    kinds = {x.pyclass for x in given if converts(x.pyclass)} if tracer.functions else ()
    if not kinds or fn is getattr and args[1].real(tracer) in NOT_WRAPPED:
        return out
    cls = max(kinds, key=lambda kind: len(kind.__mro__))
    if not all(issubclass(cls, kind) for kind in kinds):
        raise Unsupported(f"{getattr(fn, '__name__', fn)} of tensors of classes of which none is a subclass of the "
                          "others")
    for x in tensors_among([out]):
        if not issubclass(x.pyclass, cls):
            if x.source is not None or any(x is y for y in given):
                raise Unsupported(f"a {x.pyclass.__name__} that becomes a {cls.__name__}")
            x.pyclass = cls
    return out


def tensors_among(values: Iterable[t.Tracker], tracer: Any = None) -> Iterator[t.Tensor]:
    """Yield the tensors among `values` and within sequences: those that were read, or for a `tracer` all."""
    for x in values:
        if isinstance(x, t.Sequence) and (tracer is not None or x._items is not None):
            known = tracer is None or isinstance(x, t.FilledList)
            yield from tensors_among(x.items if known else x.open(tracer), tracer)
        elif isinstance(x, t.Tensor):
            yield x


_DISABLED = torch._C._disabled_torch_function_impl
_PLAIN_METAS = (type(torch.Tensor), type(torch.nn.Parameter), type(torch.nn.Buffer))
_HOOKS = frozenset((
    "__torch_dispatch__", "__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__slots__",
    "__del__", "__iter__", "__len__", "__bool__", "__getitem__", "__setitem__", "__hash__", "__eq__",
))
"""The methods that a class must not define if its tensors are to be followed."""
NOT_WRAPPED = {f.__self__.__name__ for f in get_default_nowrap_functions()}  # type: ignore[attr-defined]


def as_class(x: torch.Tensor, cls: type, grad: bool = True) -> Any:
    """Make an instance of `cls` over the memory of `x`, in a grad mode."""
    with torch.set_grad_enabled(grad), torch._C.DisableTorchFunctionSubclass():
        return x.as_subclass(cls)


def set_attribute(x: torch.Tensor, name: str, *value: Any) -> None:
    """Set an attribute of a tensor, or delete it if no value is given; no `__torch_function__` is called."""
    with torch._C.DisableTorchFunctionSubclass():
        setattr(x, name, *value) if value else delattr(x, name)


def plain_inputs(inputs: tuple[Any, ...], places: tuple[int, ...]) -> tuple[Any, ...]:
    """Replace those inputs of a graph by plain tensors that are of classes with a `__torch_function__`, at `places`."""
    return tuple([as_class(x, torch.Tensor) if k in places else x for k, x in enumerate(inputs)])
