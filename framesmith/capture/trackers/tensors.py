"""Tensors and symbolic numbers.  Every operation runs for real on fakes, under the recorder."""

from __future__ import annotations

import types
from typing import Any

import torch

from framesmith.util.errors import DataDependent, Unsupported

from ..sources import DictAttr, Source
from .base import Tracker

_METHOD_TYPES = (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)

_REFUSED = {
    "numpy": "NumPy arrays are not captured yet",
    "tolist": "Python values of a tensor's data",
    "backward": "the backward pass is run outside of captured code",
    "data_ptr": "the address of a tensor",
    "register_hook": "hooks on tensors are not captured yet",
    "register_post_accumulate_grad_hook": "hooks on tensors are not captured yet",
    "untyped_storage": "the storage of a tensor",
    "storage": "the storage of a tensor",
    "share_memory_": "the storage of a tensor",
    "__array__": "NumPy arrays are not captured yet",
    "__dlpack__": "exchange of a tensor's memory",
    "requires_grad_": "requires_grad is changed",
}


class Tensor(Tracker):
    """A tensor: a fake in the recorder; `value` is the real one if it is an input."""

    __slots__ = ("attrs", "fake", "pyclass", "value")

    def __init__(self, fake: Any, *, value: Any = None, source: Source | None = None, pyclass: type = torch.Tensor) -> None:
        self.fake = fake
        self.value = value
        self.source = source
        self.pyclass = pyclass
        self.attrs: dict[str, Tracker] | None = None

    def pytype(self) -> type:
        return self.pyclass

    def real(self, cx: Any) -> Any:
        return self.fake

    def describe(self) -> str:
        return f"tensor {self.source}" if self.source is not None else "a tensor"

    def identity(self) -> Any:
        return self.fake

    def key(self, cx: Any) -> Any:
        return self

    def get(self, cx: Any, name: str) -> Tracker:
        if self.attrs is not None and name in self.attrs:
            return self.attrs[name]
        raw = getattr(self.pyclass, name, None)
        if isinstance(raw, _METHOD_TYPES):
            return TensorMethod(self, name)
        if name == "__class__":
            return cx.made(self.pyclass)
        if name == "grad":
            if self.value is not None and self.value.grad is not None:
                raise Unsupported("reading .grad of a tensor")
            return cx.made(None)
        if raw is None and name not in ("grad_fn", "_grad", "_base", "name"):
            own = {} if self.value is None else self.value.__dict__
            if name in own and self.source is not None:
                return cx.wrap(own[name], DictAttr(self.source, name))
            return cx.no_attribute(self, name)
        return cx.torch_call(getattr, [self, cx.made(name)], {})

    def set(self, cx: Any, name: str, value: Tracker) -> None:
        if name in ("data", "grad", "requires_grad") or self.value is not None:
            super().set(cx, name, value)
        if self.attrs is None:
            self.attrs = {}
        self.attrs[name] = value

    def item(self, cx: Any, key: Tracker) -> Tracker:
        return cx.torch_call(_getitem, [self, key], {})

    def set_item(self, cx: Any, key: Tracker, value: Tracker) -> None:
        cx.torch_call(_setitem, [self, key, value], {})

    def truth(self, cx: Any) -> bool:
        raise DataDependent("truth of a tensor's data")

    def size(self, cx: Any) -> Any:
        if self.fake.dim() == 0:
            cx.raise_(TypeError("len() of a 0-d tensor"))
        return self.fake.shape[0]

    def iterate(self, cx: Any) -> Tracker:
        if self.fake.dim() == 0:
            cx.raise_(TypeError("iteration over a 0-d tensor"))
        return cx.iterator(cx.torch_call(torch.unbind, [self], {}).items)

    def builtin_method(self, cx: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        return TensorMethod(self, name).call(cx, args, kwargs)


def _getitem(x: Any, key: Any) -> Any:
    return x[key]


def _setitem(x: Any, key: Any, value: Any) -> None:
    x[key] = value


class TensorMethod(Tracker):
    """A bound method of a tensor."""

    __slots__ = ("name", "obj")

    def __init__(self, obj: Tensor, name: str) -> None:
        self.source = None
        self.obj = obj
        self.name = name

    def pytype(self) -> type:
        return types.BuiltinMethodType

    def call(self, cx: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        name = self.name
        refused = _REFUSED.get(name)
        if refused is not None and not (name == "requires_grad_" and cx.same_grad_flag(self.obj, args, kwargs)):
            raise Unsupported(f"Tensor.{name}: {refused}")
        return cx.tensor_method(self.obj, name, args, kwargs)

    def truth(self, cx: Any) -> bool:
        return True


class Sym(Tracker):
    """A SymInt, SymFloat or SymBool; Python operators on it run for real."""

    __slots__ = ("value",)

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.value = value
        self.source = source

    def pytype(self) -> type:
        return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(self.value)]

    def real(self, cx: Any) -> Any:
        return self.value

    def truth(self, cx: Any) -> bool:
        return bool(self.value)

    def get(self, cx: Any, name: str) -> Tracker:
        return cx.fold(getattr, (self.value, name))

    def key(self, cx: Any) -> Any:
        return int(self.value)
