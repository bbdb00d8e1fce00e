"""Metadata rows of the operators in autograd's formulas: gradients of activations, norms, losses, pooling and views.

PyTorch's own meta kernels of most of these are Python, and take seconds to import.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from framesmith.fake.decomposed import by_decomposition
from framesmith.fake.infer import RULES, Rule, rule
from framesmith.fake.layout import same_shape, suggested
from framesmith.fake.rules_pointwise import elementwise
from framesmith.fake.tensor import FakeTensor, dense, is_row_major

aten = torch.ops.aten


def _alike(*tensors: Any) -> bool:
    """Return whether tensors have the same floating-point dtype."""
    dtype = tensors[0].dtype
    return dtype.is_floating_point and all(type(t) is FakeTensor and t.dtype is dtype for t in tensors)


# -- activations: element-wise over the gradient and what the forward kept


def _pointwise(*operands: int) -> Rule:
    def row(*args: Any, **kwargs: Any) -> Any:
        used = [args[k] for k in operands]
        return elementwise(used, used[0].dtype) if _alike(*used) else NotImplemented

    return row


_ACTIVATIONS: dict[Rule, str] = {
    _pointwise(0, 1): "sigmoid tanh gelu hardswish hardsigmoid softplus hardtanh silu mish logit log_sigmoid",
    _pointwise(1, 0): "threshold leaky_relu",
    _pointwise(0, 5): "elu",
}
for _row, _names in _ACTIVATIONS.items():
    for _name in _names.split():
        RULES[getattr(aten, f"{_name}_backward").default] = _row


by_decomposition(
    "glu_backward _softmax_backward_data _log_softmax_backward_data slice_backward select_backward unfold_backward "
    "embedding_dense_backward"
)


@rule(aten.native_dropout_backward.default)
def native_dropout_backward(grad: FakeTensor, mask: FakeTensor, scale: float) -> Any:
    fits = _alike(grad) and is_row_major(grad) and is_row_major(mask) and same_shape(grad.shape, mask.shape)
    return dense(grad, tuple(grad.shape)) if fits else NotImplemented


# -- norms


@rule(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    grad: FakeTensor, x: FakeTensor, over: Any, mean: FakeTensor, rstd: FakeTensor, weight: Any, bias: Any, mask: Any
) -> Any:
    if not _alike(grad, x) or mask[1] and weight is None or mask[2] and bias is None:
        return NotImplemented
    return tuple([dense(t, tuple(t.shape)) if asked else None for t, asked in zip((x, weight, bias), mask)])


@rule(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    grad: FakeTensor, x: FakeTensor, weight: Any, mean: Any, var: Any, saved_mean: Any, saved_rstd: Any, train: bool,
    eps: float, mask: Any
) -> Any:
    if not _alike(grad, x) or x.dim() < 2 or (mask[1] or mask[2]) and weight is None:
        return NotImplemented
    shape = tuple(x.shape)
    first = suggested(x, shape) if mask[0] else None
    return first, *[dense(weight, shape[1:2]) if asked else None for asked in mask[1:]]


# -- losses


@rule(aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default, aten.huber_loss_backward.default)
def distance_backward(grad: FakeTensor, x: FakeTensor, target: FakeTensor, *args: Any) -> Any:
    return dense(x, tuple(x.shape)) if _alike(grad, x, target) and same_shape(x.shape, target.shape) else NotImplemented


@rule(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(grad: FakeTensor, x: FakeTensor, target: FakeTensor, *args: Any) -> Any:
    fits = _alike(grad, x) and target.dtype is torch.int64 and target.dim() == x.dim() - 1
    fits = fits and (x.dim() == 2 or x.dim() == 4 and is_row_major(x))
    return dense(x, tuple(x.shape)) if fits else NotImplemented


# -- pooling and resizing


@rule(aten.max_pool2d_with_indices_backward.default, aten.avg_pool2d_backward.default,
      aten._adaptive_avg_pool2d_backward.default)
def pool_backward(grad: FakeTensor, x: FakeTensor, *args: Any) -> Any:
    if not _alike(grad, x) or x.dim() != 4 or grad.dim() != 4:
        return NotImplemented
    return suggested(x, x.shape)


@rule(aten.upsample_nearest2d_backward.default)
def upsample_backward(grad: FakeTensor, output_size: Any, shape: Sequence[Any], *args: Any) -> Any:
    if not _alike(grad) or grad.dim() != 4:
        return NotImplemented
    return suggested(grad, shape)


@rule(aten._sparse_coo_tensor_with_dims_and_tensors.default)
def sparse_gradient(sparse: int, rest: int, size: Any, indices: FakeTensor, values: FakeTensor, **_: Any) -> Any:
    """Return a fake for a sparse tensor, with strides that are placeholders until it leaves the graph."""
    return dense(values, tuple(size))


@rule(aten._embedding_bag_backward.default)
def embedding_bag_backward(grad: FakeTensor, indices: FakeTensor, offsets: FakeTensor, bags: FakeTensor,
                           sizes: FakeTensor, maxima: FakeTensor, count: Any, scale: bool, mode: int, sparse: bool,
                           *args: Any) -> Any:
    return NotImplemented if sparse else dense(grad, (count, grad.shape[1]))
