"""Tensors of classes that wrap other tensors: the fake is a tensor of the class, over fakes."""

from __future__ import annotations

from typing import Any

from framesmith.fake.tensor import FakeTensor
from framesmith.fake.wrappers import is_wrapper
from framesmith.symbolic.node import SYMBOLIC
from framesmith.util.errors import DataDependent, Unsupported

from ..sources import MISSING, DictAttr, Source
from .base import Tracker
from .tensors import ATTRIBUTES, METHOD_TYPES, Tensor, TensorMethod, is_users

_KNOWN = frozenset(("requires_grad", "is_leaf", "grad_fn", "grad"))


class WrapperTensor(Tensor):
    """See the module. Functions of torch run on it for real, and so does what torch's own classes define; methods of
    the program's classes are inlined."""

    __slots__ = ()

    def __init__(self, fake: Any, *, value: Any = None, source: Source | None = None) -> None:
        super().__init__(fake, value=value, source=source)

    def pytype(self) -> type:
        return type(self.fake)

    def get(self, tracer: Any, name: str) -> Tracker:
        cls = self.pytype()
        raw = tracer.lookup(cls, name)
        if is_users(raw):
            return self.by_users(tracer, name, raw)
        if name == "__class__":
            return tracer.made(cls)
        if name in _KNOWN:
            return ATTRIBUTES[name](self, tracer)
        if isinstance(raw, (classmethod, staticmethod)):
            return tracer.bound_special(self, name, raw)
        if isinstance(getattr(cls, name, None), METHOD_TYPES):
            return TensorMethod(self, name)
        own = vars(self.fake).get(name, MISSING)
        if own is MISSING:
            return tracer.torch_call(getattr, [self, tracer.made(name)], {})
        if isinstance(own, FakeTensor) or is_wrapper(type(own)) or type(own) in SYMBOLIC:  # type: ignore[arg-type]
            return tracer.made(own)
        if self.source is not None and name in vars(self.value):
            return tracer.wrap(vars(self.value)[name], DictAttr(self.source, name))
        if own is None or type(own) in (int, float, bool, str) or not hasattr(own, "__dict__") and not isinstance(
                own, (list, dict, set)):
            return tracer.made(own)
        raise Unsupported(f"the attribute {name} of a computed {cls.__name__}")

    def set(self, tracer: Any, name: str, value: Tracker) -> None:
        raise Unsupported(f"the attribute {name} of a {self.pytype().__name__} is set")

    def delete(self, tracer: Any, name: str) -> None:
        raise Unsupported(f"the attribute {name} of a {self.pytype().__name__} is deleted")

    def known(self, tracer: Any) -> Any:
        return None

    assumed = known

    def truth(self, tracer: Any) -> bool:
        raise DataDependent(f"truth of the data of a {self.pytype().__name__}")


