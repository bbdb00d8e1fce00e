"""Normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from framesmith.onnx.emitter import Emitter, NoForm, Value, dtype_of, rank, shape_of
from framesmith.onnx.table import aten, row

norm = partial(row, "norms")


@norm(aten._native_batch_norm_legit_no_training.default)
def _batch_norm(m: Emitter, x: Value, weight: Any, bias: Any, mean: Value, var: Value, momentum: float,
                eps: float) -> Any:
    channels, dtype = [m.size(x, 1)], dtype_of(x)
    made = m("BatchNormalization", x, m.full(channels, 1, dtype) if weight is None else weight,
             m.full(channels, 0, dtype) if bias is None else bias, mean, var, epsilon=float(eps))
    return made, None, None


def _over_last(m: Emitter, x: Value, shape: Sequence[Any], weight: Any, bias: Any, eps: float, outputs: int) -> Any:
    scale = m.full(list(shape), 1, dtype_of(x)) if weight is None else weight
    return m("LayerNormalization", x, scale, *([] if bias is None else [bias]), axis=rank(x) - len(shape),
             epsilon=float(eps), outputs=outputs)


@norm(aten.layer_norm.default)
def _layer_norm(m: Emitter, x: Value, shape: Sequence[Any], weight: Any = None, bias: Any = None, eps: float = 1e-5,
                cudnn_enable: bool = True) -> Value:
    return _over_last(m, x, shape, weight, bias, eps, 1)  # type: ignore[no-any-return]


@norm(aten.native_layer_norm.default)
def _native_layer_norm(m: Emitter, x: Value, shape: Sequence[Any], weight: Any, bias: Any, eps: float) -> Any:
    return _over_last(m, x, shape, weight, bias, eps, 3)


@norm(aten.rms_norm.default)
def _rms_norm(m: Emitter, x: Value, shape: Sequence[Any], weight: Any = None, eps: float | None = None) -> Value:
    eps = torch.finfo(dtype_of(x)).eps if eps is None else eps
    if m.opset >= 23:
        return m("RMSNormalization", x, m.full(list(shape), 1, dtype_of(x)) if weight is None else weight,
                 axis=rank(x) - len(shape), epsilon=float(eps))
    over = m.ints(range(-len(shape), 0))
    mean = m("ReduceMean", m("Mul", x, x), over, keepdims=1)
    made = m("Div", x, m("Sqrt", m("Add", mean, m.constant(eps, dtype_of(x)))))
    return made if weight is None else m("Mul", made, weight)


def _grouped(m: Emitter, x: Value, weight: Any, bias: Any, groups: int, eps: float) -> Value:
    if m.opset >= 21 and weight is not None and bias is not None:
        return m("GroupNormalization", x, weight, bias, num_groups=groups, epsilon=float(eps))
    dtype = dtype_of(x)
    if 0 in shape_of(x):
        return m("Identity", x)
    flat = m("Reshape", x, m.ints([0, groups, -1]))
    made = m("InstanceNormalization", flat, m.constant([1.0] * groups, dtype), m.constant([0.0] * groups, dtype),
             epsilon=float(eps))
    made = m.like(made, x)
    channels = m.ints([-1, *[1] * (rank(x) - 2)])
    for op, scale in (("Mul", weight), ("Add", bias)):
        made = made if scale is None else m(op, made, m("Reshape", scale, channels))
    return made


@norm(aten.group_norm.default)
def _group_norm(m: Emitter, x: Value, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
                cudnn_enabled: bool = True) -> Value:
    return _grouped(m, x, weight, bias, groups, eps)


@norm(aten.native_group_norm.default)
def _native_group_norm(m: Emitter, x: Value, weight: Any, bias: Any, batch: Any, channels: Any, area: Any, groups: int,
                       eps: float) -> Any:
    if 0 in shape_of(x):
        raise NoForm("the moments of no elements")
    made = _grouped(m, x, weight, bias, groups, eps)
    flat = m("Reshape", x, m.ints([0, groups, -1]))
    mean = m("ReduceMean", flat, m.ints([2]), keepdims=1)
    off = m("Sub", flat, mean)
    spread = m("ReduceMean", m("Mul", off, off), m.ints([2]), keepdims=0)
    scale = m("Reciprocal", m("Sqrt", m("Add", spread, m.constant(eps, dtype_of(x)))))
    return made, m.squeeze(mean, 2), scale


@norm(aten._native_batch_norm_legit.no_stats)
def _batch_norm_of_batch(m: Emitter, x: Value, weight: Any, bias: Any, training: bool, momentum: float,
                         eps: float) -> Any:
    over = [d for d in range(rank(x)) if d != 1]
    mean = m("ReduceMean", x, m.ints(over), keepdims=1)
    off = m("Sub", x, mean)
    spread = m("ReduceMean", m("Mul", off, off), m.ints(over), keepdims=1)
    scale = m("Reciprocal", m("Sqrt", m("Add", spread, m.constant(eps, dtype_of(x)))))
    made, channels = m("Mul", off, scale), m.ints([-1, *[1] * (rank(x) - 2)])
    for op, factor in (("Mul", weight), ("Add", bias)):
        made = made if factor is None else m(op, made, m("Reshape", factor, channels))
    return made, m.squeeze(mean, *over), m.squeeze(scale, *over)


@norm(aten._weight_norm_interface.default)
def _weight_norm(m: Emitter, direction: Value, size: Value, dim: int = 0) -> Any:
    over = [d for d in range(rank(direction)) if d != dim % rank(direction)]
    length = m("ReduceL2", direction, m.ints(over), keepdims=1)
    return m("Mul", direction, m("Div", size, length)), length
