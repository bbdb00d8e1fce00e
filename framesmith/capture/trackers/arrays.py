"""NumPy arrays, and computed NumPy scalars: a tensor in the recorder with NumPy's interface."""

from __future__ import annotations

import sys
from typing import Any

from framesmith.util.errors import DataDependent, Unsupported

from ..sources import Source
from .base import Bound, Holder, Tracker
from .constants import Const
from .iterators import Iter
from .sequences import Tuple
from .tensors import Tensor

DTYPES = frozenset(("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64",
                    "complex128"))
"""Names of the dtypes that NumPy and torch have in common."""


class Array(Holder):
    """An `ndarray` over the memory of `tensor`; `scalar`: a NumPy scalar, which is its value alone. `value`: the real
    array of an input."""

    __slots__ = ("scalar", "tensor", "value")

    def __init__(self, tensor: Tensor, *, scalar: bool = False, value: Any = None,
                 source: Source | None = None) -> None:
        self.tensor = tensor
        self.scalar = scalar
        self.value = value
        self.source = source

    @property
    def dtype(self) -> Any:
        return sys.modules["numpy"].dtype(str(self.tensor.fake.dtype)[6:])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.fake.shape)

    def pytype(self) -> type:
        return self.dtype.type if self.scalar else sys.modules["numpy"].ndarray

    def describe(self) -> str:
        return f"NumPy {'scalar' if self.scalar else 'array'}{f' {self.source}' if self.source is not None else ''}"

    def get(self, tracer: Any, name: str) -> Tracker:
        row = _ATTRIBUTES.get(name)
        if row is not None:
            return row(self, tracer)
        if tracer.methods(Array, name) is None:
            raise Unsupported(f"attribute {name!r} of a {self.describe()}", hint="use torch's function")
        return Bound(self, name)

    def truth(self, tracer: Any) -> bool:
        raise DataDependent(f"truth of a {self.describe()}", hint="numpy.where chooses without a branch")

    def size(self, tracer: Any) -> int:
        if not self.shape:
            raise Unsupported("len of a NumPy scalar")
        return self.shape[0]

    def iterate(self, tracer: Any) -> Tracker:
        return Iter([self.item(tracer, Const(i)) for i in range(self.size(tracer))])

    def key(self, tracer: Any) -> Any:
        raise Unsupported(f"a {self.describe()} as a key")


def _bytes(x: Array) -> int:
    return int(x.dtype.itemsize)


_ATTRIBUTES = {
    "shape": lambda x, tracer: Tuple([Const(n) for n in x.shape]),
    "ndim": lambda x, tracer: Const(len(x.shape)),
    "size": lambda x, tracer: Const(x.tensor.fake.numel()),
    "dtype": lambda x, tracer: Const(x.dtype),
    "itemsize": lambda x, tracer: Const(_bytes(x)),
    "nbytes": lambda x, tracer: Const(_bytes(x) * x.tensor.fake.numel()),
    "strides": lambda x, tracer: Tuple([Const(n * _bytes(x)) for n in x.tensor.fake.stride()]),
    "T": lambda x, tracer: x.get(tracer, "transpose").call(tracer, [], {}),
    "__class__": lambda x, tracer: tracer.made(x.pytype()),
}
