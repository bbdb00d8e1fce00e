"""Metadata rows of the matrix products, convolutions, normalisations, pooling, attention, embeddings and recurrent
layers."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake.infer import DOUBTED, RULES, Rule, doubted, rule
from framesmith.fake.layout import (
    broadcast,
    channels_last_strides,
    in_channels_last_order,
    is_channels_last,
    must_equal,
    must_match,
    preserved_strides,
    same_shape,
    suggested,
)
from framesmith.fake.rules_attention import choice, result
from framesmith.fake.tensor import FakeTensor, contiguous_strides, dense, is_row_major, new_fake
from framesmith.fake.windows import for_each_dim, window_count
from framesmith.symbolic.layout import strides_in_order
from framesmith.util.precision import compute_dtype

aten = torch.ops.aten


@rule(aten.linear.default)
def linear(x: FakeTensor, weight: FakeTensor, bias: FakeTensor | None = None) -> Any:
    rows, columns = x.shape, weight.shape
    if (not rows or len(columns) not in (1, 2) or x.dtype is not weight.dtype
            or not must_equal(rows[-1], columns[-1])):
        return NotImplemented
    if len(columns) == 1:
        return dense(x, rows[:-1]) if bias is None and len(rows) > 1 else NotImplemented
    if bias is not None and (bias.dtype is not x.dtype or not same_shape(bias.shape, columns[:1])):
        return NotImplemented
    return dense(x, (*rows[:-1], columns[0]))


def _products(rank: int) -> tuple[Rule, Rule]:
    """Register rows of a product of matrices, or of batches of them, and of one with an addend."""

    def product(a: FakeTensor, b: FakeTensor) -> Any:
        if a.dim() != rank or b.dim() != rank or a.dtype is not b.dtype:
            return NotImplemented
        left, right = a.shape, b.shape
        if not must_equal(left[-1], right[-2]) or not must_match(left[:-2], right[:-2]):
            return NotImplemented
        return dense(a, (*left[:-1], right[-1]))

    def added(bias: FakeTensor, a: FakeTensor, b: FakeTensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
        out = product(a, b)
        if out is NotImplemented or bias.dtype is not a.dtype:
            return NotImplemented
        return out if same_shape(broadcast(bias.shape, out.shape) or (), out.shape) else NotImplemented

    return product, added


RULES[aten.mm.default], RULES[aten.addmm.default] = _products(2)
RULES[aten.bmm.default], RULES[aten.baddbmm.default] = _products(3)


def _grouped(x: FakeTensor, weights: FakeTensor, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Return the result of rows of a matrix times the matrices of their groups: its rows are aligned to 16 bytes."""
    if x.dim() != 2 or weights.dim() != 3 or x.dtype is not weights.dtype or x.shape[1] != weights.shape[1]:
        return NotImplemented
    if offs is None or bias is not None or out_dtype is not None or x.device.type != "cpu":
        return NotImplemented
    whole = 16 // x.dtype.itemsize
    wide = (weights.shape[2] + whole - 1) // whole * whole
    return new_fake((x.shape[0], weights.shape[2]), (wide, 1), x.dtype, x.device)


if hasattr(aten, "_grouped_mm"):
    RULES[aten._grouped_mm.default] = _grouped


@rule(aten.matmul.default)
def matmul(a: FakeTensor, b: FakeTensor) -> Any:
    """matmul; a matrix by a batch is eager's transposed product, whose strides are unusual at sizes of 1."""
    m, n = a.dim(), b.dim()
    if a.dtype is not b.dtype or m == 0 or n == 0 or m == 2 < n and (a.shape[0] < 2 or b.shape[-1] < 2):
        return NotImplemented
    left, right = a.shape, b.shape
    if not must_equal(left[-1], right[-2 if n > 1 else 0]):
        return NotImplemented
    batch = broadcast(left[:-2], right[:-2])
    if batch is None:
        return NotImplemented
    return dense(a, (*batch, *left[-2:-1], *(right[-1:] if n > 1 else ())))


@rule(aten.embedding.default)
def embedding(weight: FakeTensor, index: FakeTensor, *args: Any) -> Any:
    if weight.dim() != 2 or index.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    return dense(weight, (*index.shape, weight.shape[1]))


@rule(aten._embedding_bag_forward_only.default, aten._embedding_bag.default)
def embedding_bag(weight: FakeTensor, index: FakeTensor, offsets: FakeTensor, *args: Any) -> Any:
    """Only the first result is visible to a program; the others' sizes are the kernel's, on the CPU those for a plain
    sum."""
    given: tuple = (*args, *(False, 0, False, None, False, -1)[len(args) :])
    mode, last, padding = given[1], given[4], given[5]
    if weight.dim() != 2 or index.dim() != 1 or offsets.dim() != 1 or not weight.dtype.is_floating_point:
        return NotImplemented
    bags = offsets.shape[0] - 1 if last else offsets.shape[0]
    quick = (mode == 0 and padding < 0 and weight.dtype is not torch.float64 and is_row_major(weight)
             and is_row_major(index))
    counted = offsets.shape[0] if mode == 0 else bags
    sizes: tuple = ((0 if quick else index.shape[0],), (counted,),
                    (counted, weight.shape[1]) if mode == 2 else (counted,))
    if weight.device.type == "cuda":
        sizes = ((index.shape[0],), (offsets.shape[0],), (bags, weight.shape[1]) if mode == 2 else (0,))
    helpers = [new_fake(n, contiguous_strides(n), offsets.dtype, weight.device) for n in sizes]
    return (dense(weight, (bags, weight.shape[1])), *helpers)


@rule(aten.rms_norm.default)
def rms_norm(x: FakeTensor, over: Any, weight: Any = None, *args: Any, **kwargs: Any) -> Any:
    """rms_norm; eager computes it in the memory format that `x` suggests."""
    if layer_norm(x, over, weight) is NotImplemented or weight is not None and weight.dtype is not x.dtype:
        return NotImplemented
    return suggested(x, x.shape)


@rule(aten.layer_norm.default)
def layer_norm(x: FakeTensor, over: Any, weight: Any = None, *args: Any, **kwargs: Any) -> Any:
    shape = tuple(over)
    fits = x.dtype.is_floating_point and 0 < len(shape) <= x.dim() and must_match(x.shape[x.dim() - len(shape) :],
                                                                                  shape)
    dtypes = x.dtype, compute_dtype(x.dtype)
    if weight is not None and (not same_shape(weight.shape, shape) or weight.dtype not in dtypes):
        return NotImplemented
    return dense(x, tuple(x.shape)) if fits else NotImplemented


@rule(aten.group_norm.default)
def group_norm(x: FakeTensor, groups: int, weight: Any = None, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
    if x.dim() < 2 or not x.dtype.is_floating_point or x.shape[1] % groups:
        return NotImplemented
    if any(t is not None and not same_shape(t.shape, x.shape[1:2]) for t in (weight, bias)):
        return DOUBTED
    return suggested(x, x.shape)


@rule(aten.batch_norm.default)
def batch_norm(x: FakeTensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool = True, *args: Any) -> Any:
    if (x.dim() < 2 or (mean is None or var is None) and not (training and mean is var)
        or any(t is not None and not same_shape(t.shape, x.shape[1:2]) for t in (weight, bias, mean, var))):
        return DOUBTED
    shape = tuple(x.shape)
    if x.device.type == "cpu" and x.dim() in (4, 5) and all(
            t is None or is_row_major(t) for t in (weight, bias, mean, var)):
        if is_row_major(x):  # it may be channels-last as well
            return dense(x, shape)
        inner = [0, *range(2, x.dim()), 1]
        sizes, strides = ([of[d] for d in inner] for of in (shape, x.stride()))
        if is_row_major(new_fake(tuple(sizes), tuple(strides), x.dtype, x.device)):
            return new_fake(shape, channels_last_strides(shape), x.dtype, x.device)
    return suggested(x, shape)


@rule(aten._native_batch_norm_legit_functional.default)
def batch_norm_training(x: FakeTensor, weight: Any, bias: Any, mean: Any, var: Any, *args: Any) -> Any:
    out = batch_norm(x, weight, bias, mean, var)
    if out is DOUBTED:
        return out
    channels = tuple(x.shape[1:2])
    statistics = next((t for t in (weight, bias, mean, var) if t is not None), x)
    saved = (dense(statistics, channels), dense(statistics, channels))
    return (out, *saved) if mean is None else (out, *saved, dense(mean, channels), dense(var, channels))


@rule(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(x: FakeTensor, weight: Any, bias: Any, mean: Any, var: Any, *args: Any) -> Any:
    out = batch_norm(x, weight, bias, mean, var)
    return out if out is DOUBTED else (out, dense(x, (0,)), dense(x, (0,)))


@rule(aten._native_batch_norm_legit.no_stats)
def batch_norm_without_statistics(x: FakeTensor, weight: Any, bias: Any, *args: Any) -> Any:
    return batch_norm_training(x, weight, bias, None, None)


def _fits(windows: list[list], rank: int) -> bool:
    """Return whether each has `rank` numbers, strides (the first) and dilations (the third) positive, the others not
    negative."""
    return all(len(w) == rank and all(n >= (k in (0, 2)) for n in w) for k, w in enumerate(windows))


def _convolved(x: FakeTensor, weight: FakeTensor, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any,
               transposed: bool = False, extra: Any = 0) -> Any:
    spatial = weight.dim() - 2
    if x.dim() != weight.dim() or x.dtype is not weight.dtype or spatial not in (1, 2, 3):
        return NotImplemented
    ins, outs = weight.shape[1] * groups, weight.shape[0]
    if transposed:
        ins, outs = outs, ins
    if x.shape[1] != ins or groups < 1 or weight.shape[0] % groups:
        return NotImplemented
    if bias is not None and (bias.dtype is not x.dtype or not same_shape(bias.shape, (outs,))):
        return NotImplemented
    windows = [for_each_dim(v, spatial) for v in (stride, padding, dilation, extra)]
    if not _fits(windows, spatial):
        return DOUBTED
    dims = zip(x.shape[2:], weight.shape[2:], *windows)
    if transposed:
        sizes = [(n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, d, e in dims]
    else:
        sizes = [window_count(n, k, s, p, d) for n, k, s, p, d, _ in dims]
    if any(n <= 0 for n in sizes):
        return DOUBTED
    shape = (x.shape[0], outs, *sizes)
    return new_fake(shape, convolution_strides(x, weight, shape), x.dtype, x.device)


def convolution_strides(x: FakeTensor, weight: FakeTensor, shape: tuple) -> tuple:
    """Return the strides of results of a convolution or its backward: channels-last if `x` or `weight` is, except for
    the plain kernel of three dimensions. In one dimension eager convolves images of height 1, and only the weight
    decides."""
    if len(shape) == 3:
        image = (*weight.shape[:2], 1, weight.shape[2])
        outer, inner, step = weight.stride()
        laid_out = outer, inner, weight.shape[2] * step, step
        if is_row_major(weight) or not in_channels_last_order(image, laid_out):
            return contiguous_strides(shape)
        n, c, _, w = channels_last_strides((*shape[:2], 1, shape[2]))
        return n, c, w
    if (is_channels_last(x) or is_channels_last(weight)) and not (len(shape) == 5 and x.dtype is torch.float64):
        return channels_last_strides(shape)
    return contiguous_strides(shape)


@rule(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
def conv(x: FakeTensor, weight: FakeTensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
         groups: Any = 1) -> Any:
    if x.dim() != weight.dim() - 1 or not x.dim():
        return _convolved(x, weight, bias, stride, padding, dilation, groups)
    batch = new_fake((1, *x.shape), (x.shape[0] * x.stride(0), *x.stride()), x.dtype, x.device)
    out = _convolved(batch, weight, bias, stride, padding, dilation, groups)
    return new_fake(out.shape[1:], out.stride()[1:], x.dtype, x.device) if isinstance(out, FakeTensor) else out


for _spatial, _op in enumerate((aten.conv1d, aten.conv2d, aten.conv3d), 1):
    doubted(_op.default, lambda x, weight, *_, rank=_spatial + 2, **__: weight.dim() != rank)


@rule(aten.convolution.default)
def convolution(x: FakeTensor, weight: FakeTensor, bias: Any, stride: Any, padding: Any, dilation: Any,
                transposed: bool, extra: Any, groups: Any) -> Any:
    return _convolved(x, weight, bias, stride, padding, dilation, groups, transposed, extra if transposed else 0)


@rule(aten.max_unpool2d.default)
def max_unpool2d(x: FakeTensor, indices: FakeTensor, output_size: Any) -> Any:
    if not is_channels_last(x) or not same_shape(x.shape, indices.shape) or len(output_size) != 2:
        return NotImplemented
    return suggested(x, (*x.shape[:2], *output_size)) if indices.dtype is torch.int64 else NotImplemented


def _pooled(x: FakeTensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
    if x.dim() not in (3, 4):
        return NotImplemented
    kernels = for_each_dim(kernel, 2)
    steps = for_each_dim(stride, 2) or kernels
    pads, gaps = for_each_dim(padding, 2), for_each_dim(dilation, 2)
    if not _fits([steps, pads, gaps, kernels], 2) or any(2 * p > k or not k for p, k in zip(pads, kernels)):
        return DOUBTED
    sizes = [window_count(n, k, s, p, d, ceil) for n, k, s, p, d in zip(x.shape[-2:], kernels, steps, pads, gaps)]
    if any(n <= 0 for n in sizes):
        return DOUBTED
    return suggested(x, (*x.shape[:-2], *sizes))


@rule(aten.max_pool2d.default)
def max_pool2d(x: FakeTensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
               ceil: bool = False) -> Any:
    return _pooled(x, kernel, stride, padding, dilation, ceil)


@rule(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(x: FakeTensor, *how: Any, **named: Any) -> Any:
    out = max_pool2d(x, *how, **named)
    return (out, new_fake(tuple(out.shape), out.stride(), torch.int64,
                          x.device)) if isinstance(out, FakeTensor) else out


@rule(aten.avg_pool2d.default)
def avg_pool2d(x: FakeTensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, *args: Any) -> Any:
    return _pooled(x, kernel, stride, padding, 1, ceil)


@rule(aten.adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(x: FakeTensor, size: Any) -> Any:
    if x.dim() not in (3, 4) or len(size) != 2:
        return NotImplemented
    return suggested(x, (*x.shape[:-2], *size))


@rule(aten.scaled_dot_product_attention.default)
def attention(query: FakeTensor, key: FakeTensor, value: FakeTensor, mask: Any = None, dropout: float = 0.0,
              causal: bool = False, *, scale: Any = None, enable_gqa: bool = False) -> Any:
    if query.dim() < 2 or not query.dtype is key.dtype is value.dtype or causal and mask is not None:
        return NotImplemented
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2] or value.dim() != query.dim():
        return NotImplemented
    shape = (*query.shape[:-1], value.shape[-1])
    if not enable_gqa and not same_shape(query.shape[:-2], key.shape[:-2]):
        return _broadcast_attention(query, key, value, mask)
    if query.device.type == "cuda":
        return result(choice(query, key, value, mask, dropout, causal, scale, enable_gqa), query, shape)
    if _flash(query, key, value, dropout, enable_gqa) and (mask is None or _flash_mask(query, key, mask)):
        return new_fake(shape, preserved_strides(query), query.dtype, query.device)
    return dense(query, shape)


def _broadcast_attention(query: FakeTensor, key: FakeTensor, value: FakeTensor, mask: Any) -> Any:
    """Return the result if batches or heads differ (heads share one key), which the kernel of plain products
    computes."""
    batch = broadcast(broadcast(query.shape[:-2], key.shape[:-2]) or (), value.shape[:-2])
    if batch is None or query.device.type != "cpu":
        return NotImplemented
    scores = (*batch, query.shape[-2], key.shape[-2])
    if mask is not None and not same_shape(broadcast(mask.shape, scores) or (), scores):
        return NotImplemented
    return dense(query, (*batch, query.shape[-2], value.shape[-1]))


def _flash(query: FakeTensor, key: FakeTensor, value: FakeTensor, dropout: float, gqa: bool) -> bool:
    """Return whether the CPU takes its fused kernel, whose result has the query's layout."""
    if query.dim() != 4 or dropout != 0.0 or not torch.backends.cuda.flash_sdp_enabled():
        return False
    if query.shape[-1] != value.shape[-1] or query.dtype not in (torch.float32, torch.float64, torch.bfloat16,
                                                                 torch.float16):
        return False
    return all(t.stride(-1) == 1 for t in (query, key, value))


def _flash_mask(query: FakeTensor, key: FakeTensor, mask: FakeTensor) -> bool:
    """Return whether the fused kernel accepts the mask: [queries, keys] or [batch, heads, queries, keys], where each
    may be 1."""
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return mask.dim() in (2, 4) and not mask.requires_grad and all(same_shape((n,), (full,)) or n == 1 for n,
                                                                   full in zip(mask.shape, sizes[-mask.dim():]))


@rule(aten.lstm.input)
def lstm(x: FakeTensor, state: Any, weights: Any, biases: bool, layers: int, *how: Any) -> Any:
    if x.dim() != 3 or len(state) != 2 or any(s.dim() != 3 for s in state):
        return NotImplemented
    hidden, cell = state
    if cell.shape[1] != hidden.shape[1]:
        return NotImplemented
    out = _recurrent_output(x, hidden, weights, *how)
    if out is NotImplemented:
        return out
    return out, dense(x, tuple(hidden.shape)), dense(x, tuple(cell.shape))


@rule(aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
def gru(x: FakeTensor, hidden: FakeTensor, weights: Any, biases: bool, layers: int, *how: Any) -> Any:
    if x.dim() != 3 or hidden.dim() != 3:
        return NotImplemented
    out = _recurrent_output(x, hidden, weights, *how)
    return out if out is NotImplemented else (out, dense(x, tuple(hidden.shape)))


def _recurrent_output(x: FakeTensor, hidden: FakeTensor, weights: Any, dropout: float, train: bool,
                      bidirectional: bool, batch_first: bool) -> Any:
    length, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    width = hidden.shape[2] * (2 if bidirectional else 1)
    if hidden.shape[1] != batch or weights[0].shape[1] != x.shape[2] or dropout and train:
        return NotImplemented
    shape = (batch, length, width) if batch_first else (length, batch, width)
    return new_fake(shape, strides_in_order(shape, (1, 0, 2) if batch_first else (0, 1, 2)), x.dtype, x.device)
