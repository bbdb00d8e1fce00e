"""The pointwise prims: those of `SCALAR_OPS`, copies, conversions and choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.prims.core import ExternCall, Size, Spec, define
from framesmith.prims.registry import overload
from framesmith.prims.scalars import SCALAR_OPS, ScalarOp
from framesmith.util.errors import VerifyError

aten = torch.ops.aten


def broadcast_shapes(first: tuple[Size, ...], second: tuple[Size, ...]) -> tuple[Size, ...]:
    """Return the common shape of two broadcast operands. Sizes agree if they are the same int or the same `Expr`."""
    if first == second:
        return first
    if len(first) < len(second):
        first, second = second, first
    lead = len(first) - len(second)
    out = list(first)
    for position, size in enumerate(second, lead):
        if size == 1 or size == out[position]:
            continue
        if out[position] != 1:
            raise VerifyError(f"shapes {first} and {second} do not broadcast")
        out[position] = size
    return tuple(out)


def pointwise_spec(*args: Any) -> Spec:
    """Return the spec of a pointwise result: broadcast shape; dtype of the tensors; device of the first tensor with
    dimensions, else of the first."""
    lead = None
    shape: tuple[Size, ...] = ()
    for arg in args:
        other = getattr(arg, "shape", None)
        if other is None:
            continue
        if lead is None:
            lead, shape = arg, other
            continue
        if arg.dtype is not lead.dtype:
            raise VerifyError(f"pointwise operands of {lead.dtype} and {arg.dtype}")
        if shape != other:
            shape = broadcast_shapes(shape, other)
            if not lead.shape:
                lead = arg
    if lead is None:
        raise VerifyError("a pointwise prim wants at least one tensor")
    return Spec(shape, lead.dtype, lead.device)


def _unary_spec(x: Any) -> Spec:
    return Spec(x.shape, x.dtype, x.device)


def _bool_spec(*args: Any) -> Spec:
    spec = pointwise_spec(*args)
    spec.dtype = torch.bool
    return spec


def _where_spec(condition: Any, x: Any, y: Any) -> Spec:
    if condition.dtype is not torch.bool:
        raise VerifyError(f"where on a condition of {condition.dtype}")
    if not hasattr(x, "shape") and not hasattr(y, "shape"):
        raise VerifyError("where wants a tensor among its branches")
    spec = pointwise_spec(x, y)
    spec.shape = broadcast_shapes(spec.shape, condition.shape)
    if condition.shape:
        spec.device = condition.device
    return spec


def _convert_spec(x: Any, dtype: torch.dtype) -> Spec:
    return Spec(x.shape, dtype, x.device)


def _as_tensor(value: Any, like: torch.Tensor) -> torch.Tensor:
    """Return a scalar operand as a 0-dim tensor that does not take part in type promotion."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=like.dtype, device=like.device)


def _on_tensors(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap a torch function that requires tensors in both places."""

    def call(x: Any, y: Any) -> torch.Tensor:
        like = x if isinstance(x, torch.Tensor) else y
        return function(_as_tensor(x, like), _as_tensor(y, like))

    return call


def _where(condition: torch.Tensor, x: Any, y: Any) -> torch.Tensor:
    like = x if isinstance(x, torch.Tensor) else y
    return torch.where(condition, _as_tensor(x, like), _as_tensor(y, like))


def _tensors_only(op: torch._ops.OpOverload) -> Callable[..., ExternCall | None]:
    """Return the ATen overload of a prim whose operands are all tensors."""

    def extern(*args: Any) -> ExternCall | None:
        return (op, args) if all(hasattr(arg, "shape") for arg in args) else None

    return extern


def _overload(op: ScalarOp) -> Callable[..., ExternCall | None] | None:
    func = overload(op.extern or f"{op.name}.{'default' if op.arity == 1 else 'Tensor'}")
    return None if func is None else _tensors_only(func)


_SPECS = {("same", 1): _unary_spec, ("same", 2): pointwise_spec, ("bool", 1): _bool_spec, ("bool", 2): _bool_spec}
_OPERANDS = {1: "(x)", 2: "(x, y)"}


for _op in SCALAR_OPS.values():
    if _op.is_prim:
        define(_op.name, "pointwise", _op.eager if _op.arity == 1 else _on_tensors(_op.eager),
               _SPECS[_op.result, _op.arity], extern=_overload(_op),
               doc=_op.name + _OPERANDS[_op.arity] + (" -> bool" if _op.result == "bool" else ""))
_CLONE = _tensors_only(aten.clone.default)
define("copy", "pointwise", torch.clone, _unary_spec, extern=_CLONE, doc="copy(x): a value that aliases nothing")
define("rounded", "pointwise", torch.clone, _unary_spec, extern=_CLONE,
       doc="rounded(x): the nearest numbers of a 16-bit float dtype, where computation goes on in float32")
define("where", "pointwise", _where, _where_spec, extern=_tensors_only(aten.where.self),
       doc="where(condition: bool, x, y)")
define("convert", "pointwise", lambda x, dtype: x.to(dtype, copy=True), _convert_spec, extern=aten.to.dtype,
       doc="convert(x, dtype): C's value conversion; to bool: x != 0")
define("bitcast", "pointwise", lambda x, dtype: x.contiguous().view(dtype).clone(), _convert_spec,
       doc="bitcast(x, dtype): the same bits read as another dtype of equal size")
