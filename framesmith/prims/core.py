"""The definition of a prim: a name, a kind, an eager reference implementation and a metadata rule.

Conventions that every prim keeps, and that every consumer may rely on:

* tensor arguments come first, static attributes (dims, shapes, dtypes, scalars) after them, all positional;
* dims are non-negative ints; a tuple of dims is sorted and free of repeats; sizes are ints or `Expr`;
* pointwise prims broadcast implicitly and want equal dtypes among their tensors; a scalar operand is a Python
  number (or an integer `Expr`) of the tensors' own category, so `add(int tensor, 2.5)` never occurs;
* prims are functional: no argument is written to and results are new values;
* a result never depends on the strides of an argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith.symbolic.expr import Expr
from framesmith.symbolic.layout import contiguous_strides as contiguous_strides
from framesmith.symbolic.node import expr_of
from framesmith.util.serialize import serializable

Size = Any  # an int, or an Expr where it is symbolic
KINDS = ("pointwise", "reduction", "scan", "view", "index", "factory")


# the dtypes of prims; a call that takes or gives another (complex, quantised, 8-bit float) stays an extern call
DTYPES = frozenset(
    getattr(torch, name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
)


def size_of(value: Any) -> Size:
    """Return a size in the form of graphs of prims: a Python int if it is known, else an `Expr`."""
    if type(value) is int:
        return value
    expr = value if isinstance(value, Expr) else expr_of(value)
    return expr.const if expr.is_const else expr


def size_as_made(value: Any) -> Size:
    """Return a size as `size_of` does, in the symbols that it was made of, whatever these are known to equal."""
    return size_of(value.node.value if isinstance(value, torch.SymInt) else value)


def numel(shape: Sequence[Size]) -> Size:
    """Return the number of elements of a shape."""
    return size_of(math.prod(shape))


class Spec:
    """Shape, dtype and device of a value; `stride` is None where the layout is free to choose.

    Nodes that replace a recorded ATen node carry the strides eager would have given.
    """

    __slots__ = ("device", "dtype", "shape", "stride")

    def __init__(self, shape: tuple[Size, ...], dtype: torch.dtype, device: torch.device,
                 stride: tuple[Size, ...] | None = None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.stride = stride

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Size:
        return numel(self.shape)

    def same(self, other: Spec) -> bool:
        """Return whether shape, dtype and device are equal, for any strides."""
        return self.shape == other.shape and self.dtype is other.dtype and self.device == other.device

    @staticmethod
    def dense(shape: tuple[Size, ...], dtype: torch.dtype, device: torch.device) -> Spec:
        """Return the spec of a tensor in row-major order."""
        return Spec(shape, dtype, device, contiguous_strides(shape))

    @staticmethod
    def of(tensor: Any, size: Callable[[Any], Size] = size_of) -> Spec:
        """Return the spec of a tensor, real or fake."""
        return Spec(tuple(map(size, tensor.shape)), tensor.dtype, tensor.device, tuple(map(size, tensor.stride())))

    def __repr__(self) -> str:
        text = f"{str(self.dtype).removeprefix('torch.')}[{', '.join(map(str, self.shape))}]"
        if self.stride is not None:
            text += f"({', '.join(map(str, self.stride))})"
        return text if self.device.type == "cpu" else f"{text}@{self.device}"


ExternCall = tuple[torch._ops.OpOverload, tuple[Any, ...]]


class Prim:
    """One primitive. Calling it runs the eager reference; `meta` maps argument specs to the result's spec(s)."""

    def __init__(self, name: str, kind: str, eager: Callable[..., Any], meta: Callable[..., Any], *, outputs: int = 1,
                 extern: Callable[..., ExternCall | None] | None = None, doc: str = "") -> None:
        self.name = self.__name__ = self.__qualname__ = name
        self.__module__ = "framesmith.prims"
        self.kind = kind
        self.eager = eager
        self.meta = meta
        self.outputs = outputs
        self.extern = extern
        self.doc = doc

    def __call__(self, *args: Any) -> Any:
        return self.eager(*args)

    def __repr__(self) -> str:
        return f"prims.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _lookup, (self.name,)


table: dict[str, Prim] = {}


@serializable
def _lookup(name: str) -> Prim:
    return table[name]


def define(name: str, kind: str, eager: Callable[..., Any], meta: Callable[..., Any], *, outputs: int = 1,
           extern: torch._ops.OpOverload | Callable[..., ExternCall | None] | None = None, doc: str = "") -> Prim:
    """Add one row to the table. `extern(*args)` names an ATen call equal to the prim, for a consumer without a row; an
    overload is called with the prim's own arguments."""
    assert kind in KINDS and name not in table, name
    call = (lambda *args: (extern, args)) if isinstance(extern, torch._ops.OpOverload) else extern
    prim = table[name] = Prim(name, kind, eager, meta, outputs=outputs, extern=call, doc=doc)
    return prim
