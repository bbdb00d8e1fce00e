"""Backward ops against eager's."""

from __future__ import annotations

import pytest
import torch

from tests.prims.harness import check

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_activations(dtype: torch.dtype) -> None:
    g, x = torch.randn(4, 9, dtype=dtype), torch.randn(4, 9, dtype=dtype) * 3
    check(aten.threshold_backward.default, g, x, 0)
    check(aten.sigmoid_backward.default, g, x.sigmoid())
    check(aten.tanh_backward.default, g, x.tanh())
    check(aten.silu_backward.default, g, x)
    check(aten.mish_backward.default, g, x)
    check(aten.gelu_backward.default, g, x)
    check(aten.gelu_backward.default, g, x, approximate="tanh")
    check(aten.hardsigmoid_backward.default, g, x)
    check(aten.hardswish_backward.default, g, x)
    check(aten.hardtanh_backward.default, g, x, -1.0, 1.0)
    check(aten.leaky_relu_backward.default, g, x, 0.1, False)
    check(aten.elu_backward.default, g, 1.1, 1.2, 1.3, False, x)
    check(aten.elu_backward.default, g, 1.1, 1.2, 1.3, True, x)
    check(aten.softplus_backward.default, g, x, 2.0, 3.0)
    check(aten.logit_backward.default, g, x.sigmoid())
    check(aten.logit_backward.default, g, x.sigmoid(), 0.2)
    check(aten.native_dropout_backward.default, g, x > 0, 2.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_and_losses(dtype: torch.dtype) -> None:
    g, x = torch.randn(4, 6, dtype=dtype), torch.randn(4, 6, dtype=dtype)
    check(aten._softmax_backward_data.default, g, x.softmax(1), 1, dtype)
    check(aten._log_softmax_backward_data.default, g, x.log_softmax(1), 1, dtype)
    target, total = torch.tensor([0, 5, -100, 2]), torch.tensor(3.0, dtype=dtype)
    for reduction in (1, 2):
        check(aten.mse_loss_backward.default, g.sum(), x, g, reduction)
        check(aten.nll_loss_backward.default, g.sum(), x.log_softmax(1), target, None, reduction, -100, total)
        check(aten.nll_loss_backward.default, g.sum(), x.log_softmax(1), target, torch.rand(6, dtype=dtype), reduction,
              -100, total)
    check(aten.nll_loss_backward.default, g[:, 0], x.log_softmax(1), target, None, 0, -100, total)


@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False], [False, True, True]], ids=str)
def test_norms(mask: list[bool]) -> None:
    g, x, w, c = torch.randn(2, 6, 5), torch.randn(2, 6, 5), torch.randn(5), torch.randn(6)
    _, mean, rstd = aten.native_layer_norm.default(x, [5], w, w, 1e-5)
    check(aten.native_layer_norm_backward.default, g, x, [5], mean, rstd, w, w, mask)
    _, mean, rstd = aten.native_batch_norm.default(x, c, c, None, None, True, 0.1, 1e-5)
    check(aten.native_batch_norm_backward.default, g, x, c, None, None, mean, rstd, True, 1e-5, mask)
    empty = torch.empty(0)
    check(aten.native_batch_norm_backward.default, g, x, c, c, c.abs(), empty, empty, False, 1e-5, mask)


def test_views_and_lookups() -> None:
    check(aten.slice_backward.default, torch.randn(3, 2), [3, 7], 1, 1, 6, 3)
    check(aten.select_backward.default, torch.randn(3), [3, 7], 1, -2)
    index = torch.tensor([[1, 0], [1, 4]])
    check(aten.embedding_dense_backward.default, torch.randn(2, 2, 3), index, 6, -1, False)
    check(aten.embedding_dense_backward.default, torch.randn(2, 2, 3), index, 6, 1, False)
