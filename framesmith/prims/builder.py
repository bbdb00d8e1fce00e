"""Construction of graphs of prims: a `Value` represents a node, a `Builder` adds nodes, merging equal ones and dropping
no-ops.

Decompositions are written over these two:  `b.where(x > 0, x, b.expm1(x))`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from framesmith.graph.nodes import insert_call
from framesmith.prims.core import Prim, Size, Spec, size_of, table
from framesmith.prims.draws import STATE
from framesmith.prims.promotion import coerce, floating, result_dtype
from framesmith.prims.simplify import SIMPLIFY
from framesmith.util.precision import compute_dtype

# results of these share their first argument's memory in eager
ALIASES = frozenset({"reshape", "permute", "expand", "slice", "select", "diagonal", "unfold", "as_strided"})


def _operator(prim: str) -> Callable[[Value, Any], Value]:
    return lambda x, y: getattr(x.b, prim)(x, y)


def _turned(prim: str) -> Callable[[Value, Any], Value]:
    return lambda x, y: getattr(x.b, prim)(y, x)


class Value:
    """A node of the graph being built. Operators are the prims of that name: no type promotion, implicit broadcast."""

    __slots__ = ("args", "b", "node", "prim", "root", "spec")

    def __init__(self, b: Builder, node: fx.Node, spec: Spec, prim: str = "", args: tuple[Any, ...] = ()) -> None:
        self.b = b
        self.node = node
        self.spec = spec
        self.prim = prim
        self.args = args
        self.root: Value = args[0].root if prim in ALIASES else self

    @property
    def shape(self) -> tuple[Size, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.spec.dtype

    @property
    def device(self) -> torch.device:
        return self.spec.device

    @property
    def ndim(self) -> int:
        return len(self.spec.shape)

    __add__, __sub__, __mul__, __truediv__ = map(_operator, ("add", "sub", "mul", "div"))
    __radd__, __rsub__, __rmul__, __rtruediv__ = map(_turned, ("add", "sub", "mul", "div"))
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("lt", "le", "gt", "ge"))
    __and__, __or__ = map(_operator, ("bitwise_and", "bitwise_or"))

    def __neg__(self) -> Value:
        return self.b.neg(self)

    def __invert__(self) -> Value:
        return self.b.bitwise_not(self)

    def __repr__(self) -> str:
        return f"{self.node.name}: {self.spec}"


class Opaque:
    """A node that is neither tensor nor integer; only extern calls may take it."""

    __slots__ = ("node",)

    def __init__(self, node: fx.Node) -> None:
        self.node = node


def _key(arg: Any) -> Any:
    kind = type(arg)
    if kind is float:
        return arg.hex()  # tells 0.0 from -0.0, and finds NaN again
    return arg if kind is Value or kind is tuple else (kind, arg)


def _raw(arg: Any) -> Any:
    """Return the argument in the graph's form: nodes in place of values."""
    if isinstance(arg, (Value, Opaque)):
        return arg.node
    if isinstance(arg, (tuple, list)):
        return tuple([_raw(item) for item in arg])
    return arg


class Builder:
    """Adds nodes to `graph`. Every prim is a method; `out` and `source` are the spec(s) and the node of the ATen call
    being replaced, `number` the place of that node in its graph."""

    def __init__(self, graph: fx.Graph, rounding: bool = False) -> None:
        self.graph = graph
        self.rounding = rounding
        self.stack: Any = ()
        self.origin, self.number = "", -1
        self.out: Any = None
        self.source: fx.Node | None = None
        self._known: dict[Any, Any] = {}
        self._state: Value | None = None

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...

    def node(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], val: Any) -> fx.Node:
        """Add a raw node with its metadata."""
        node = insert_call(self.graph, target, args, kwargs)
        node.meta.update(val=val, stack=self.stack, origin=self.origin, number=self.number)
        return node

    def emit(self, prim: Prim, args: tuple[Any, ...]) -> Any:
        """Return the value of a prim on these arguments: an equal existing node, or a simpler one by a rule, or a new
        one."""
        key = (prim, *map(_key, args))
        known = self._known.get(key)
        if known is not None:
            return known
        rule = SIMPLIFY.get(prim.name)
        value = rule(self, *args) if rule is not None else None
        if value is None:
            value = self.emit_new(prim, args)
        self._known[key] = value
        return value

    def emit_new(self, prim: Prim, args: tuple[Any, ...]) -> Any:
        """Emit a call as `emit` does, but always with a node of its own."""
        spec = prim.meta(*args)
        node = self.node(prim, tuple([_raw(arg) for arg in args]), {}, spec)
        return self._unpack(node, spec) if prim.outputs > 1 else Value(self, node, spec, prim.name, args)

    def fresh(self, x: Value) -> Value:
        """Return a copy that shares memory with nothing, not even with an equal copy."""
        return self.emit_new(table["copy"], (x,))

    def _unpack(self, node: fx.Node, specs: Any) -> tuple[Any, ...]:
        return tuple([self._wrap(self.node(operator.getitem, (node, i), {}, spec), spec) for i,
                      spec in enumerate(specs)])

    def _wrap(self, node: fx.Node, spec: Any) -> Any:
        if isinstance(spec, (tuple, list)):
            return self._unpack(node, spec)
        return Value(self, node, spec) if isinstance(spec, Spec) else Opaque(node)

    def extern(self, target: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None, *, val: Any) -> Any:
        """Add a call that is not decomposed; `val` is its Spec, or a tuple of them for several results."""
        raw = {name: _raw(arg) for name, arg in kwargs.items()} if kwargs else {}
        return self._wrap(self.node(target, tuple([_raw(arg) for arg in args]), raw, val), val)

    # -- draws ---------------------------------------------------------------------------------------------------------

    def draw(self, device: torch.device, count: Size) -> tuple[Value, Size]:
        """Return seed and offset of the device's generator (a tensor of two int64), and the offset of this draw from
        that; advance the generator by `count`. Draws with only kernels between them share one state."""
        state = self._state
        if state is None or state.device != device:
            state = self._state = self.extern(STATE, (device, 0), val=Spec((2,), torch.int64, device, (1,)))
        shift = state.node.args[1]
        state.node.args = device, size_of(shift + count)
        return state, shift

    def interrupt_draws(self) -> None:
        """Note that an operator draws by itself: later draws start from its final state of the generator."""
        self._state = None

    # -- types --------------------------------------------------------------------------------------------------------

    def cast(self, operand: Any, dtype: torch.dtype) -> Any:
        """Cast a tensor or Python number to a dtype."""
        return self.convert(operand, dtype) if type(operand) is Value else coerce(operand, dtype)

    def promote(self, *operands: Any) -> list[Any]:
        """Cast the operands to their common dtype."""
        dtype = result_dtype(*operands)
        return [self.cast(operand, dtype) for operand in operands]

    def promote_float(self, *operands: Any) -> list[Any]:
        """Cast the operands to their common floating-point dtype."""
        dtype = floating(result_dtype(*operands))
        return [self.cast(operand, dtype) for operand in operands]

    def factors(self, dtype: torch.dtype, x: Any, y: Any) -> tuple[Any, Any]:
        """Cast the operands of a product or quotient to `dtype`. A scalar operand of eager's kernels has their compute
        dtype: then both are cast to that."""
        wide = compute_dtype(dtype)
        if (wide is not dtype and type(x) is Value and x.ndim and not getattr(y, "shape", ())
            and getattr(y, "dtype", None) is not dtype):
            return self.convert(self.convert(x, dtype), wide), self.cast(y, wide)
        return self.cast(x, dtype), self.cast(y, dtype)

    def over(self, x: Value, number: Any) -> Value:
        """Divide `x` by a number as eager's kernels do: GPU kernels multiply by the reciprocal, in their compute
        dtype."""
        if type(number) is not float or x.device.type == "cpu" or compute_dtype(x.dtype) is not x.dtype:
            return self.div(x, number)
        return self.mul(x, torch.tensor(number, dtype=x.dtype).reciprocal().item())

    def wide(self, x: Value) -> Value:
        """Cast a float tensor to the compute dtype of eager's kernels."""
        return self.convert(x, compute_dtype(x.dtype))

    def halfway(self, x: Value, dtype: torch.dtype) -> Value:
        """Round a wide value that eager stores in `dtype` inside an operator, if results are rounded."""
        return self.wide(self.convert(x, dtype)) if self.rounding else x

    def tensor(self, operand: Any, like: Value) -> Value:
        """Return a number as a 0-dim tensor of `like`'s dtype; a tensor unchanged."""
        if type(operand) is Value:
            return operand
        return self.full((), coerce(operand, like.dtype), like.dtype, like.device)

    # -- shapes -------------------------------------------------------------------------------------------------------

    def unsqueeze(self, x: Value, dim: int) -> Value:
        """Insert a dim of size 1 at `dim` (non-negative)."""
        return self.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))

    def transpose(self, x: Value, first: int, second: int) -> Value:
        """Exchange two dims."""
        dims = list(range(x.ndim))
        dims[first], dims[second] = dims[second], dims[first]
        return self.permute(x, tuple(dims))

    def along(self, vector: Value, dim: int, ndim: int) -> Value:
        """Reshape a 1-d tensor to broadcast along one dim of `ndim`."""
        return self.reshape(vector, (*[1] * dim, vector.shape[0], *[1] * (ndim - dim - 1)))


def _method(prim: Prim) -> Callable[..., Any]:
    def method(self: Builder, *args: Any) -> Any:
        return self.emit(prim, args)

    method.__name__ = prim.name
    method.__doc__ = prim.doc
    return method


for _prim in table.values():
    setattr(Builder, _prim.name, _method(_prim))
