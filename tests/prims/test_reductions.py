"""Reductions, softmax, norms and losses against eager."""

from __future__ import annotations

import math

import pytest
import torch

from tests.prims.harness import check

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int32, torch.bool])
def test_sums_and_extremes(dtype: torch.dtype) -> None:
    x = (torch.randn(3, 4, 5) * 3).to(dtype)
    check(aten.sum.default, x)
    for dims in ([1], [-1, 0], [], None):
        check(aten.sum.dim_IntList, x, dims, True)
        check(aten.any.dims, x, dims)
        check(aten.all.dims, x, dims, True)
    check(aten.prod.default, x)
    check(aten.prod.dim_int, x, 1)
    check(aten.count_nonzero.dim_IntList, x, [1])
    check(aten.amax.default, x, [0, 2])
    check(aten.amin.default, x, [], True)
    check(aten.max.default, x)
    check(aten.max.dim, x, 1)
    check(aten.min.dim, x, -1, True)
    check(aten.aminmax.default, x, dim=1)
    check(aten.cumsum.default, x, -1)
    check(aten.any.default, x)
    check(aten.all.dim, x, 0)
    if dtype is not torch.bool:
        check(aten.argmax.default, x)
        check(aten.argmin.default, x, None, True)
        check(aten.argmax.default, x, -1)
        check(aten.argmin.default, x, 0, True)
        check(aten.cumprod.default, x, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments(dtype: torch.dtype) -> None:
    x = floats(3, 4, 5, dtype=dtype)
    check(aten.mean.default, x)
    check(aten.mean.dim, x, [-1, 0], True)
    check(aten.mean.dim, x.float(), [1], dtype=torch.float64)
    check(aten.var.correction, x, [1], correction=0)
    check(aten.var.correction, x)
    check(aten.var.dim, x, [2], False, True)
    check(aten.std.dim, x, [0])
    for size in (1e38, 1e-25, 1e-44):  # eager's squares are float64
        check(aten.std.dim, x.float() * size, [0])
        check(aten.std_mean.correction, x.float() * size, [0])
        check(aten.std.dim, x.bfloat16() * size, [0])
    check(aten.std.correction, x, None, correction=2, keepdim=True)
    check(aten.var_mean.correction, x, [0, 1], correction=1)
    check(aten.std_mean.correction, x, [0, 1], keepdim=True)
    check(aten.logsumexp.default, x, [1], wide=True)
    check(aten.logsumexp.default, torch.full((2, 3), -math.inf), [1])
    check(aten.nansum.default, x, [1])
    for order in (2, 1, 0, math.inf, -math.inf, 3):
        check(aten.linalg_vector_norm.default, x, order, [1], True)
        check(aten.linalg_vector_norm.default, x[:, :1].float() * 1e30, order, [1])
    check(aten.norm.ScalarOpt_dim, x, 2, [0])


def test_scalars_reduce_to_themselves() -> None:
    x = torch.tensor(2.5)
    for op in (aten.sum.default, aten.mean.default, aten.max.default, aten.argmax.default, aten.amax.default):
        check(op, x)
    check(aten.softmax.int, x, 0)
    check(aten.max.dim, x, 0)
    check(aten.cumsum.default, x, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax(dtype: torch.dtype) -> None:
    x = floats(3, 4, 7, dtype=dtype) * 4
    for dim in (-1, 0, 1):
        check(aten.softmax.int, x, dim)
        check(aten._softmax.default, x, dim, False)
        check(aten.log_softmax.int, x, dim, wide=True)
        check(aten._log_softmax.default, x, dim, False, wide=True)
    check(aten.softmax.int, x, -1, torch.float32)
    x[0, 0] = -math.inf
    check(aten._safe_softmax.default, x, -1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(dtype: torch.dtype) -> None:
    x, w, c = floats(2, 6, 4, 5, dtype=dtype), floats(5, dtype=dtype), floats(6, dtype=dtype)
    check(aten.layer_norm.default, x, [5], w, w, 1e-5)
    check(aten.layer_norm.default, x, [4, 5])
    check(aten.native_layer_norm.default, x, [5], w, None, 1e-5)
    check(aten.rms_norm.default, x, [5], w, 1e-6)
    check(aten.rms_norm.default, x, [5], None)
    check(aten.group_norm.default, x, 3, c, c)
    check(aten.native_group_norm.default, x, c, c, 2, 6, 20, 3, 1e-5)
    check(aten.batch_norm.default, x, c, c, c, c.abs(), False, 0.1, 1e-5, False)
    check(aten.batch_norm.default, x, c, c, None, None, True, 0.1, 1e-5, False, wide=True)
    check(aten.instance_norm.default, x, c, c, None, None, True, 0.1, 1e-5, False, wide=True)
    check(aten._native_batch_norm_legit_functional.default, x, c, c, c, c.abs(), True, 0.1, 1e-5, wide=True)
    check(aten._native_batch_norm_legit_functional.default, x, c, None, c, c.abs(), False, 0.1, 1e-5)
    check(aten._native_batch_norm_legit_no_training.default, x, c, c, c, c.abs(), 0.1, 1e-5)


def test_losses() -> None:
    x, y = floats(4, 6), floats(4, 6)
    for reduction in (0, 1, 2):
        check(aten.mse_loss.default, x, y, reduction)
        check(aten.l1_loss.default, x, y, reduction)
        check(aten.smooth_l1_loss.default, x, y, reduction, 0.5)
        check(aten.huber_loss.default, x, y, reduction, 0.5)
        check(aten.huber_loss.default, x.bfloat16(), y.double(), reduction, 0.5)
        check(aten.soft_margin_loss.default, x, y.sign(), reduction)
        check(aten.binary_cross_entropy.default, x.sigmoid(), y.sigmoid(), None, reduction)
        check(aten.binary_cross_entropy_with_logits.default, x, y.sigmoid(), torch.rand(6), torch.rand(6), reduction)
        check(aten.kl_div.default, x, y.sigmoid(), reduction)
        check(aten.kl_div.default, x, y, reduction, log_target=True)


@pytest.mark.parametrize("weight", [None, torch.rand(6)], ids=["plain", "weighted"])
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_class_losses(weight: torch.Tensor | None, reduction: int) -> None:
    x, target = floats(4, 6), torch.tensor([0, 5, -100, 2])
    image, labels = floats(2, 6, 3, 3), torch.randint(0, 6, (2, 3, 3))
    check(aten.cross_entropy_loss.default, x, target, weight, reduction)
    check(aten.cross_entropy_loss.default, x, target, weight, reduction, -100, 0.1)
    check(aten.cross_entropy_loss.default, image, labels, weight, reduction)
    check(aten.cross_entropy_loss.default, x, x.softmax(1), weight, reduction, -100, 0.1)
    check(aten.nll_loss_nd.default, x, target, weight, reduction)
    check(aten.nll_loss_forward.default, x, target, weight, reduction, -100, extern=not reduction)
    check(aten.nll_loss2d_forward.default, image, labels, weight, reduction, -100, extern=not reduction)
