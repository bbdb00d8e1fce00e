"""Recording of copies, casts and fills."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake.handlers import composite, functional, handles, keep_apart, positional, store, view
from framesmith.fake.layout import same_shape, suggested_format, surely_same_strides
from framesmith.fake.recording import Recording
from framesmith.fake.tensor import FakeTensor, dense, is_differentiable
from framesmith.prims.promotion import result_dtype
from framesmith.util.errors import DataDependent, Unsupported

aten = torch.ops.aten


@handles(aten.lift_fresh.default, aten.lift.default, aten.lift_fresh_copy.default)
def lift_fresh(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record a tensor that the program makes from Python data: a new one at each call of the graph."""
    source = args[0]
    if isinstance(source, FakeTensor):
        return source
    constant = rec.constant(source)
    return constant if source.dim() == 0 else functional(rec, aten.clone.default, (constant,), {})


@handles(aten.to.dtype)
def to_dtype(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    given = positional(func, args, kwargs)
    left_out: tuple[Any, ...] = (False, False, None)
    source, dtype, _, copied, memory_format = (*given, *left_out[len(given) - 2 :])
    if not isinstance(source, FakeTensor):
        return composite(rec, func, args, kwargs)
    if dtype is source.dtype and not copied and memory_format in (None, torch.preserve_format,
                                                                  suggested_format(source)):
        return source
    options = {"dtype": dtype} if memory_format is None else {"dtype": dtype, "memory_format": memory_format}
    return functional(rec, aten._to_copy.default, (source,), options)


@handles(aten.to.device)
def to_device(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record a transfer to a device, which the program may name without an index."""
    rec.on_current_device |= torch.device(positional(func, args, kwargs)[1]).type == "cuda"
    return composite(rec, func, args, kwargs)


@handles(aten._to_copy.default)
def to_copy(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record a cast, also of a Python number, which a function transform has cast itself."""
    if type(args[0]) in (bool, int, float):
        args = (rec.number(args[0], _NATURAL[type(args[0])]),)
    return functional(rec, func, args, kwargs)


_NATURAL = {bool: torch.bool, int: torch.int64, float: torch.float64}


@handles(aten.copy_.default)
def copy_(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Write another tensor, or a view of the same memory that does not overlap the target."""
    target, source = args[0], args[1]
    if isinstance(source, FakeTensor):
        keep_apart(func, args, kwargs, target, [source])
    return _copied(rec, target, source)


def _copied(rec: Recording, target: FakeTensor, source: Any) -> FakeTensor:
    """Write the source itself if it is not expanded, cast or re-laid out, and no history continues; else a copy."""
    if not isinstance(source, FakeTensor):
        source = rec.constant(source)
    if source.device != target.device:
        source = functional(rec, aten._to_copy.default, (source,), {"device": target.device})
    same = source.dtype == target.dtype and same_shape(source.shape, target.shape)
    same = same and surely_same_strides(source, target)
    same = same and not (rec.keeps_history and rec.keeps_history(target))
    value = source if same else functional(rec, aten.copy.default, (target, source), {})
    store(rec, target, value, aten.copy_.default, (target, source), {})
    return target


@handles(aten.fill_.Tensor, aten.fill_.Scalar, aten.zero_.default)
def fill_(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Write `full` of the target's metadata: its old value is not read."""
    target = args[0]
    value = args[1] if len(args) > 1 else 0
    if isinstance(value, torch.Tensor):
        if isinstance(value, FakeTensor):
            if rec.keeps_history and rec.keeps_history(value) and not is_differentiable(target.dtype):
                raise Unsupported("integers are filled with a number that requires grad, as eager says of them then",
                                  hint="fill them with number.detach()")
            return _copied(rec, target, value)  # read before anything is written
        value = value.item()
    val = dense(target, tuple(target.shape))
    options = {"dtype": target.dtype, "device": target.device}
    node = rec.emit(aten.full.default, (list(target.shape), value), val, options)
    store(rec, target, rec.own(val, node), func, args, kwargs)
    return target


@handles(aten.fill_diagonal_.default)
def fill_diagonal_(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    target, value = args[0], args[1]
    if target.dim() != 2 or len(args) > 2:
        raise DataDependent("fill_diagonal_ of more than two dimensions or with wrap")
    diagonal = view(rec, aten.diagonal.default, (target,), {})
    fill_(rec, aten.fill_.Scalar, (diagonal, value), {})
    return target


@handles(aten._efficientzerotensor.default)
def zero_tensor(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record the missing tangent of forward-mode differentiation as plain zeros, since nothing but torch may see a
    tensor without memory."""
    options = {"dtype": kwargs.get("dtype") or torch.get_default_dtype(), "device": kwargs.get("device")}
    return functional(rec, aten.full.default, (list(args[0]), 0), options)


@handles(aten.cat.default)
def cat(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Omit tensors of shape [0], which eager ignores except for their gradients. A single remaining tensor is
    copied."""
    tensors, dim = (*positional(func, args, kwargs), 0)[:2]
    if len(tensors) > 1 and not all(isinstance(t, FakeTensor) for t in tensors):
        tensors = [t if isinstance(t, FakeTensor) else rec.constant(t) for t in tensors]
    kept = [t for t in tensors if not (t.dim() == 1 and type(t.shape[0]) is int and t.shape[0] == 0)
            or t.requires_grad or rec.keeps_history and rec.keeps_history(t)]
    if not kept or len(kept) == len(tensors):
        return functional(rec, func, (list(tensors), dim), {})
    dtype = result_dtype(*tensors)
    kept = [t if t.dtype is dtype else functional(rec, aten._to_copy.default, (t,), {"dtype": dtype}) for t in kept]
    if len(kept) == 1:
        kept[0].size(dim)  # a wrong dimension is an error all the same
        return functional(rec, aten.clone.default, (kept[0],), {"memory_format": torch.contiguous_format})
    return functional(rec, func, (kept, dim), {})
