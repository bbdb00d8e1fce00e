"""Tensors and symbolic numbers.  Every operation runs for real on fakes, under the recorder."""

from __future__ import annotations

import types
from typing import Any

import torch

from framesmith.fake import known_value
from framesmith.fake.draws import decided
from framesmith.fake.size_elements import size_in
from framesmith.fake.tensor import Alias
from framesmith.util.errors import DataDependent, Unsupported

from ..sources import MISSING, Applied, Attr, DictAttr, Source
from .base import Tracker, always
from .constants import FALSE, NONE
from .iterators import Iter
from .objects import DELETED
from .rounds import FilledList, over_slices

METHOD_TYPES = (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)

_REFUSED = {
    "numpy": "NumPy arrays are not captured yet",
    "data_ptr": "the address of a tensor",
    "__hash__": "the address of a tensor",
    "register_post_accumulate_grad_hook": "hooks on tensors are not captured yet",
    "untyped_storage": "the storage of a tensor",
    "storage": "the storage of a tensor",
    "share_memory_": "the storage of a tensor",
    "__array__": "NumPy arrays are not captured yet",
    "__dlpack__": "exchange of a tensor's memory",
    "requires_grad_": "requires_grad is changed",
    "_is_view": "the base of a view",
    "__reduce_ex__": "pickling of a tensor",
    "__deepcopy__": "copying of a tensor by its protocol",
    "set_": "the storage of a tensor",
    "pin_memory": "pinned memory",
    "record_stream": "streams of a device",
}


_BY_ROW = frozenset(("numpy", "as_subclass", "backward", "register_hook", "retain_grad"))
"""Methods that have a handler."""

_NUMBERS = frozenset(("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__"))
"""Methods that return the data as Python values: folded where it is constant."""


class Tensor(Tracker):
    """A tensor: a fake in the recorder; `value` is the real one if it is an input."""

    __slots__ = ("attrs", "fake", "pyclass", "source", "value")

    def __init__(self, fake: Any, *, value: Any = None, source: Source | None = None,
                 pyclass: type = torch.Tensor) -> None:
        self.fake = fake
        self.value = value
        self.source = source
        self.pyclass = pyclass
        self.attrs: dict[str, Tracker] | None = None

    def pytype(self) -> type:
        return self.pyclass

    def real(self, tracer: Any) -> Any:
        return self.fake

    def describe(self) -> str:
        return f"tensor {self.source}" if self.source is not None else "a tensor"

    def identity(self) -> Any:
        return self.fake

    def key(self, tracer: Any) -> Any:
        if self.source is not None:
            tracer.keyed[id(self)] = self
        return self

    def get(self, tracer: Any, name: str) -> Tracker:
        raw = tracer.lookup(self.pyclass, name)
        if is_users(raw):
            return self.by_users(tracer, name, raw)
        if is_accessor(raw) and tracer.asks(self):
            return tracer.torch_function(raw.__get__, [self], {})
        return self.by_torch(tracer, name, raw)

    def by_torch(self, tracer: Any, name: str, raw: Any) -> Tracker:
        """Read an attribute without code of the program's; `raw`: what the class has."""
        attrs = self.attrs
        if attrs is not None and name in attrs and attrs[name] is not DELETED:
            return attrs[name]
        if name == "_base":
            tracer.seen_as_copy(self.fake)
        if isinstance(raw, classmethod):
            return tracer.bound_special(self, name, raw)
        if raw is not MISSING and not hasattr(type(raw), "__get__"):
            found = self.entry(tracer, name)
            return found if found is not None else tracer.class_value(self.pyclass, name, raw)
        raw = None if raw is MISSING else getattr(torch.Tensor if is_accessor(raw) else self.pyclass, name)
        if isinstance(raw, METHOD_TYPES):
            return TensorMethod(self, name)
        row = ATTRIBUTES.get(name)
        if row is not None:
            return row(self, tracer)
        if raw is None and name not in ("grad_fn", "_grad", "name"):
            return self.own(tracer, name)
        return tracer.torch_call(getattr, [self, tracer.made(name)], {})

    def by_users(self, tracer: Any, name: str, raw: Any) -> Tracker:
        """Return an attribute that the program has added to the class."""
        if not isinstance(raw, (types.FunctionType, property, classmethod, staticmethod)):
            raise Unsupported(f"Tensor.{name}, which was replaced")
        return tracer.bound_special(self, name, raw)

    def own(self, tracer: Any, name: str) -> Tracker:
        """Return an entry of the instance dict."""
        found = self.entry(tracer, name)
        return found if found is not None else tracer.no_attribute(self, name)

    def entry(self, tracer: Any, name: str) -> Tracker | None:
        """Find an entry of the instance dict, or None."""
        if self.attrs is not None and name in self.attrs:
            return self.attrs[name] if self.attrs[name] is not DELETED else None
        if self.value is not None and self.source is not None:
            if name in self.value.__dict__:
                return tracer.wrap(self.value.__dict__[name], DictAttr(self.source, name))
            tracer.guard(self.source, "not_hasattr", name)
        return None

    def set(self, tracer: Any, name: str, value: Tracker) -> None:
        raw = tracer.lookup(self.pyclass, name)
        if is_users(raw) and isinstance(raw, property):
            tracer.call_property(raw, "fset", [self, value])
        elif is_accessor(raw) and tracer.asks(self, value):
            tracer.torch_function(raw.__set__, [self, value], {})
        else:
            self.put(tracer, name, value)

    def put(self, tracer: Any, name: str, value: Tracker) -> None:
        """Set an attribute, or for DELETED delete it, without code of the program's."""
        raw = getattr(torch.Tensor, name, None)
        value = NONE if value is DELETED and name == "grad" else value
        if name == "requires_grad" and tracer.same_grad_flag(self, [value], {}):
            return
        if name == "data" and isinstance(value, Tensor) and value.fake is self.fake:
            return  # Module.to(...) where nothing is to be converted
        if hasattr(type(raw), "__set__") and not (name == "grad" and self.takes_grad(value)):
            super().set(tracer, name, value) if value is not DELETED else super().delete(tracer, name)
        if value is DELETED:
            self.get(tracer, name)
        self.note(tracer, name, value)

    def takes_grad(self, value: Tracker) -> bool:
        """Return whether `value` may be the gradient of this tensor without an error."""
        mine, other = self.fake, value.fake if isinstance(value, Tensor) else None
        fits = other is not None and (other.shape, other.dtype, other.device) == (mine.shape, mine.dtype, mine.device)
        return self.value is not None and self.value.is_leaf and (value is NONE or fits)

    def delete(self, tracer: Any, name: str) -> None:
        raw = tracer.lookup(self.pyclass, name)
        if is_accessor(raw) and tracer.asks(self):
            tracer.torch_function(raw.__delete__, [self], {})
            return
        self.put(tracer, name, DELETED)

    def note(self, tracer: Any, name: str, value: Any) -> None:
        if self.attrs is None:
            self.attrs = {}
        self.attrs[name] = value
        tracer.mutates(self)

    def known(self, tracer: Any) -> Any:
        """Return the real tensor of this value if it depends on constants alone, else None."""
        tracer.data_asked += 1
        return known_value(tracer.recorder, self.fake)

    def assumed(self, tracer: Any) -> Any:
        """Return the same, also if it depends on small inputs, whose contents are then guarded."""
        tracer.data_asked += 1
        return known_value(tracer.recorder, self.fake, assuming=True)

    def item(self, tracer: Any, key: Tracker) -> Tracker:
        tracer.operated(self, "getitem")
        if tracer.counters and (part := tracer.counting[-1].slices.read(self, key)) is not None:
            return part  # type: ignore[no-any-return]
        if type(key) is FilledList:
            key = key.numbers(tracer, int)
        return tracer.torch_function(get_item, [self, key], {})

    def set_item(self, tracer: Any, key: Tracker, value: Tracker) -> None:
        tracer.operated(self, "setitem")
        if tracer.counters and not tracer.asks(self) and tracer.counting[-1].slices.write(self, key, value):
            return
        tracer.torch_function(set_item, [self, key, value], {})

    def truth(self, tracer: Any) -> bool:
        if tracer.asks(self):
            said = tracer.torch_function(torch.Tensor.__bool__, [self], {})
            if said.pytype() is not bool:
                tracer.raise_(TypeError(f"__bool__ should return bool, returned {said.pytype().__name__}"))
            return said.truth(tracer)
        known = self.assumed(tracer)
        if known is None and (whatever := decided(tracer.recorder, self.fake)) is not None:
            return whatever
        if known is None:
            raise DataDependent("truth of a tensor's data", hint="torch.where chooses between tensors without a branch")
        return tracer.folded(bool, (known,))

    def size(self, tracer: Any) -> Any:
        if tracer.asks(self):
            return tracer.index(tracer.torch_function(torch.Tensor.__len__, [self], {}))
        if self.fake.dim() == 0:
            tracer.raise_(TypeError("len() of a 0-d tensor"))
        return self.fake.shape[0]

    def iterate(self, tracer: Any) -> Tracker:
        if tracer.asks(self):
            return tracer.torch_function(torch.Tensor.__iter__, [self], {})
        if self.fake.dim() == 0:
            tracer.raise_(TypeError("iteration over a 0-d tensor"))
        if isinstance(self.fake.shape[0], torch.SymInt):
            return over_slices(self)
        return Iter(tracer.torch_call(torch.unbind, [self], {}).items)

    def builtin_method(self, tracer: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        if name == "__init__" and not args and not kwargs:
            return NONE
        return TensorMethod(self, name).call(tracer, args, kwargs)


def is_users(raw: Any) -> bool:
    """Return whether an attribute of a tensor's class is a function, or wraps one, that is not torch's own."""
    fn = raw.fget if isinstance(raw, property) else getattr(raw, "__func__", raw)
    return isinstance(fn, types.FunctionType) and not str(fn.__globals__.get("__name__")).startswith("torch.")


def is_accessor(raw: Any) -> bool:
    """Return whether an attribute of a tensor's class is a computed attribute of torch's."""
    if isinstance(raw, property):
        return not is_users(raw)
    return isinstance(raw, types.GetSetDescriptorType) and raw.__objclass__ is torch._C.TensorBase


def get_item(x: Any, key: Any) -> Any:
    return x[key]


def set_item(x: Any, key: Any, value: Any) -> None:
    # `x[key] = value` asks whether a first size of the value is 1
    if not isinstance(value, torch.Tensor) or not value.dim() or type(value.shape[0]) is int:
        x[key] = value
    elif isinstance(key, torch.Tensor):
        x.index_put_((key,), value)
    elif all(type(k) in _OF_VIEWS for k in (key if type(key) is tuple else (key,))) and (
            value.dim() <= (view := x[key]).dim()):
        view.copy_(value)
    else:
        x[key] = value


_OF_VIEWS = frozenset({int, torch.SymInt, slice, type(...), type(None)})
"""Types of indices that give a view."""


def _grad(self: Tensor, tracer: Any) -> Tracker:
    _refuse_retained(self)
    if self.value is None:
        return NONE
    if self.source is None or self.pyclass in (torch.Tensor, torch.nn.Parameter):
        return tracer.wrap(self.value.grad, None if self.source is None else Attr(self.source, "grad"))
    return tracer.wrap(self.value.grad, Applied(self.source, grad_of, "{}.grad"))


def _retains_grad(self: Tensor, tracer: Any) -> Tracker:
    _refuse_retained(self)
    return FALSE


def _refuse_retained(x: Tensor) -> None:
    """Refuse a question that `retain_grad` decides: no guard tells whether an earlier call of it has kept a gradient.
    """
    if x.value is not None and not x.value.is_leaf:
        raise Unsupported("the kept gradient of a tensor that is not a leaf")


def grad_of(x: torch.Tensor) -> torch.Tensor | None:
    """Read `x.grad`, without calling a `__torch_function__`."""
    with torch._C.DisableTorchFunctionSubclass():
        return x.grad


def _data(self: Tensor, tracer: Any) -> Tracker:
    """Return another tensor of the same memory, without history, with a version counter of its own."""
    found = tracer.torch_call(getattr, [self, tracer.made("data")], {})
    if tracer.transformed:
        return found
    source = self.fake._alias
    if found.fake._alias is source:  # grad mode is off, and the graph has no node for it
        found.fake._alias = Alias(source.storage, source.node, found.fake, source, torch.ops.aten.detach.default)
        found.fake._alias.version = source.version
    found.fake._alias.uncounted = True
    return found


def _requires_grad(self: Tensor, tracer: Any) -> Tracker:
    tracer.seen_as_view(self.fake)
    if not tracer.differentiable or tracer.transformed:
        return tracer.torch_call(getattr, [self, tracer.made("requires_grad")], {})
    return tracer.made(self.value is not None and self.value.requires_grad or tracer.wants_grad(self.fake))


def _is_leaf(self: Tensor, tracer: Any) -> Tracker:
    if self.value is not None and self.value.requires_grad:
        return tracer.made(self.value.is_leaf)
    return tracer.made(not tracer.wants_grad(self.fake))


def _grad_fn(self: Tensor, tracer: Any) -> Tracker:
    if not _is_leaf(self, tracer).real(tracer):
        raise Unsupported("the autograd node of a tensor")
    return NONE


def _refuse(reason: str) -> Any:
    def row(self: Tensor, tracer: Any) -> Tracker:
        raise Unsupported(reason)

    return row


ATTRIBUTES = {
    "__class__": lambda self, tracer: tracer.made(self.pyclass),
    "data": _data,
    "grad": _grad,
    "requires_grad": _requires_grad,
    "is_leaf": _is_leaf,
    "grad_fn": _grad_fn,
    "retains_grad": _retains_grad,
    "_version": _refuse("the version counter of a tensor"),
    "_base": _refuse("the base of a view"),
    "__dict__": _refuse("the instance dict of a tensor"),
    "_cdata": _refuse("the address of a tensor"),
}


class TensorMethod(Tracker):
    """A bound method of a tensor."""

    __slots__ = ("name", "obj")
    cls = types.BuiltinMethodType
    truth = always

    def __init__(self, obj: Tensor, name: str) -> None:
        self.obj = obj
        self.name = name

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        name = self.name
        tracer.data_asked += name in _NUMBERS
        if name != "as_subclass" and tracer.asks(self.obj, *args, *kwargs.values()):
            return tracer.torch_function(getattr(torch.Tensor, name), [self.obj, *args], kwargs)
        if name == "item" and not args and not kwargs and (
                size := size_in(tracer.recorder, self.obj.fake)) is not None:
            return tracer.made(size)
        if name == "tolist" and not args and not kwargs and (slices := tracer.listed_slices(self.obj)) is not None:
            return slices
        if name in _NUMBERS and (known := self.obj.known(tracer) if name == "item"
                                 else self.obj.assumed(tracer)) is not None:
            return tracer.made(tracer.folded(getattr(known, name), tuple([a.real(tracer) for a in args])))
        row = tracer.methods(Tensor, name) if name in _BY_ROW else None
        if row is not None:
            return row(tracer, self.obj, *args, **kwargs)
        if name == "requires_grad_" and tracer.makes_leaf(self.obj, args, kwargs):
            return self.obj
        refused = _REFUSED.get(name)
        if refused is not None and not (name == "requires_grad_" and tracer.same_grad_flag(self.obj, args, kwargs)):
            raise Unsupported(f"Tensor.{name}: {refused}")
        return tracer.tensor_method(self.obj, name, args, kwargs)

    def get(self, tracer: Any, name: str) -> Tracker:
        if name == "__self__":
            return self.obj
        method = getattr(self.obj.fake, self.name)
        if name in ("__name__", "__qualname__", "__doc__", "__module__"):
            return tracer.fold(getattr, (method, name))
        if not hasattr(method, name):
            return tracer.no_attribute(self, name)
        return super().get(tracer, name)
