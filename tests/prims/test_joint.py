"""Functions with their derivatives: what the engine calls is recorded as eager lays it out, and decomposed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.prims.joint import check_joint

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64]


def leaf(*shape: int, dtype: torch.dtype = torch.float32, last: bool = False) -> torch.Tensor:
    """A random tensor that asks for its gradient; `last`, in channels-last memory."""
    x = torch.randn(shape, dtype=dtype)
    if last:
        x = x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.channels_last_3d)
    return x.requires_grad_()


def check_module(module: nn.Module, *inputs: torch.Tensor, **options: object) -> None:
    names = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]

    def call(*values: torch.Tensor) -> object:
        return torch.func.functional_call(module, dict(zip(names, values)), values[len(names) :])

    check_joint(call, *module.parameters(), *module.buffers(), *inputs, **options)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_norm(dtype: torch.dtype, training: bool) -> None:
    statistics = torch.zeros(4, dtype=dtype), torch.ones(4, dtype=dtype)
    for last in (False, True):
        x, w, b = leaf(3, 4, 5, 6, dtype=dtype, last=last), leaf(4, dtype=dtype), leaf(4, dtype=dtype)
        check_joint(lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, training), x, w, b, *statistics)
        check_joint(lambda x, w, b, m, v: aten._native_batch_norm_legit(x, w, b, m, v, training, 0.1, 1e-5)[0], x, w, b, *statistics)
    if training:
        check_joint(lambda x: F.batch_norm(x, None, None, training=True), leaf(5, 4, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_convolutions(dtype: torch.dtype) -> None:
    left = ("convolution", "convolution_backward")
    for last in (False, True):
        x, w, b = leaf(2, 4, 9, 9, dtype=dtype, last=last), leaf(8, 4, 3, 3, dtype=dtype), leaf(8, dtype=dtype)
        check_joint(lambda x, w, b: F.conv2d(x, w, b, 2, 1), x, w, b, extern=left)
        check_joint(lambda x, w, b: F.conv2d(x, w, b), x.detach(), w, b.detach(), extern=left)
        check_joint(lambda x, w: F.conv2d(x, w, groups=4), x, leaf(4, 1, 3, 3, dtype=dtype), extern=left)
        check_joint(lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1), x, leaf(4, 8, 3, 3, dtype=dtype), extern=left)
        x, w = leaf(2, 4, 4, 5, 6, dtype=dtype, last=last), leaf(4, 4, 3, 3, 3, dtype=dtype)
        check_joint(lambda x, w: F.conv3d(x, w, None, 1, 1), x, w, extern=left)
        check_joint(lambda x, w: F.conv_transpose3d(x, w, None, 2), x, w, extern=left)


@pytest.mark.parametrize("first", [False, True], ids=["time-first", "batch-first"])
def test_recurrent(first: bool) -> None:
    layer = ("framesmith.mkldnn_rnn_layer", "framesmith.mkldnn_rnn_layer_backward")
    x = leaf(3, 4, 5)
    check_module(nn.LSTM(5, 7, 2, bidirectional=True, batch_first=first), x, extern=layer)
    check_module(nn.LSTM(5, 7, bias=False, batch_first=first), x, extern=layer)
    check_module(nn.LSTM(5, 7, batch_first=first, dtype=torch.float64), x.double(), extern=("addmm", "mm"))
    check_module(nn.GRU(5, 7, 2, bidirectional=True, batch_first=first), x, extern=("addmm", "mm"))


def test_padding() -> None:
    for last in (False, True):
        for mode in ("reflect", "replicate"):
            left = tuple(f"{kind}_pad{n}d_backward" for kind in ("reflection", "replication") for n in (2, 3))
            check_joint(lambda x, mode=mode: F.pad(x, (1, 2, 2, 1), mode=mode), leaf(2, 4, 5, 6, last=last), extern=left)
            check_joint(lambda x, mode=mode: F.pad(x, (1, 2, 2, 1, 1, 0), mode=mode), leaf(2, 4, 3, 5, 6, last=last), extern=left)


def test_randomised_slopes() -> None:
    check_joint(lambda x: F.rrelu(x, training=False), leaf(4, 5), extern=("rrelu_with_noise_backward",))


def test_losses_of_margins() -> None:
    x = leaf(4, 5)
    check_joint(lambda x, t: F.multi_margin_loss(x, t), x, torch.tensor([0, 4, 2, 2]), extern=True)
    check_joint(lambda x, t: F.multilabel_margin_loss(x, t), x, torch.tensor([[0, 4, -1, 2, 2]] * 4), extern=True)
