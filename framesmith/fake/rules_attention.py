"""Metadata rows of attention: of the operator whole on a CUDA device, and of the fused kernels that it becomes under
autograd."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake.infer import rule
from framesmith.fake.layout import preserved_strides
from framesmith.fake.tensor import CPU, FakeTensor, dense, new_fake
from framesmith.util.precision import HALF

aten = torch.ops.aten
_CUDA = torch._C.DispatchKey.CUDA
# the values of `_fused_sdp_choice`
MATH, FLASH, EFFICIENT, CUDNN = 0, 1, 2, 3
_BLOCK = 32  # logarithms of sums are padded to a multiple, in the efficient kernel


def choice(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: Any, gqa: bool) -> int:
    """Return the kernel that eager chooses, by its own function, from metadata. A build without CUDA cannot decide:
    half precision then means flash, and rows of a mask with gaps mean none of the fused kernels."""
    given = (query, key, value, mask, dropout, causal)
    if torch.cuda.is_available():
        return aten._fused_sdp_choice.default._op_dk(_CUDA, *given, scale=scale, enable_gqa=gqa)
    if query.dim() != 4 or mask is not None and mask.stride(-1) != 1:
        return MATH
    return FLASH if query.dtype in HALF and mask is None else EFFICIENT if query.dtype is not torch.float64 else MATH


def laid_out_as(q: FakeTensor, shape: tuple) -> FakeTensor:
    """Return a fake of `shape` with the layout of results of flash and cuDNN: in the order of the query's
    dimensions."""
    like = dense(q, shape) if tuple(q.shape) != shape else q
    return new_fake(shape, preserved_strides(like), q.dtype, q.device)


def heads_inside(x: FakeTensor, shape: tuple) -> FakeTensor:
    """(batch, heads, rows, width) in memory ordered (batch, rows, heads, width)."""
    batch, heads, rows, width = shape
    return new_fake(shape, (rows * heads * width, width, heads * width, 1), x.dtype, x.device)


def result(kind: int, query: FakeTensor, shape: tuple) -> FakeTensor:
    """Return the attention's result by the kernel that computes it."""
    if kind in (FLASH, CUDNN):
        return laid_out_as(query, shape)
    return heads_inside(query, shape) if kind == EFFICIENT else dense(query, shape)


def _shape(query: FakeTensor, value: FakeTensor) -> tuple:
    return (*query.shape[:-1], value.shape[-1])


@rule(aten._scaled_dot_product_flash_attention.default)
def flash(q: FakeTensor, k: FakeTensor, v: FakeTensor, dropout: float = 0.0, *args: Any, **kwargs: Any) -> Any:
    """Return also the generator's state, as two numbers."""
    sums = dense(q, tuple(q.shape[:3]), torch.float32)
    state, unused = dense(q, (2,), torch.uint64), dense(q, (), torch.uint64)
    return laid_out_as(q, _shape(q, v)), sums, None, None, q.shape[2], k.shape[2], state, unused, dense(
        q, (0,), q.dtype)


@rule(aten._scaled_dot_product_efficient_attention.default)
def efficient(q: FakeTensor, k: FakeTensor, v: FakeTensor, bias: Any, sums: bool, dropout: float = 0.0, *args: Any,
              **kwargs: Any) -> Any:
    rows = (q.shape[2] + _BLOCK - 1) // _BLOCK * _BLOCK if sums else 0
    kept = dense(q, (*q.shape[:2], rows), torch.float32)
    seed, offset = new_fake((), (), torch.int64, CPU), new_fake((), (), torch.int64, CPU)
    return heads_inside(q, _shape(q, v)), kept, seed, offset


@rule(aten._scaled_dot_product_cudnn_attention.default)
def cudnn(q: FakeTensor, k: FakeTensor, v: FakeTensor, bias: Any, sums: bool, *args: Any, **kwargs: Any) -> Any:
    kept = dense(q, (*q.shape[:3], 1), torch.float32)
    number = dense(q, (), torch.int64)
    return laid_out_as(q, _shape(q, v)), kept, None, None, q.shape[2], k.shape[2], number, dense(
        q, (), torch.int64), None


@rule(aten._scaled_dot_product_flash_attention_backward.default,
      aten._scaled_dot_product_cudnn_attention_backward.default)
def flash_backward(grad: FakeTensor, q: FakeTensor, k: FakeTensor, v: FakeTensor, *args: Any, **kwargs: Any) -> Any:
    return tuple([laid_out_as(t, tuple(t.shape)) for t in (q, k, v)])


@rule(aten._scaled_dot_product_efficient_attention_backward.default)
def efficient_backward(
    grad: FakeTensor, q: FakeTensor, k: FakeTensor, v: FakeTensor, bias: Any, out: Any, sums: Any, seed: Any,
    offset: Any, dropout: float,
    mask: Any, *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    grads = [heads_inside(t, tuple(t.shape)) if asked else None for t, asked in zip((q, k, v), mask)]
    return *grads, dense(bias, tuple(bias.shape), bias.dtype) if mask[3] else None


@rule(aten._scaled_dot_product_flash_attention_for_cpu.default)
def cpu(q: FakeTensor, *args: Any, **kwargs: Any) -> Any:
    batch, heads, rows, _ = q.shape
    dtype = torch.float32 if q.dtype in HALF else q.dtype
    return laid_out_as(q, tuple(q.shape)), new_fake((batch, heads, rows), (rows * heads, 1, heads), dtype, q.device)


@rule(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def cpu_backward(grad: FakeTensor, q: FakeTensor, k: FakeTensor, v: FakeTensor, *args: Any, **kwargs: Any) -> Any:
    return tuple([heads_inside(t, tuple(t.shape)) for t in (q, k, v)])
