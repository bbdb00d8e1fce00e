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
        check_joint(lambda x, w, b, m, v: aten._native_batch_norm_legit(x, w, b, m, v, training, 0.1, 1e-5)[0], x, w, b,
                    *statistics)
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
            check_joint(lambda x, mode=mode: F.pad(x, (1, 2, 2, 1), mode=mode), leaf(2, 4, 5, 6, last=last),
                        extern=left)
            check_joint(lambda x, mode=mode: F.pad(x, (1, 2, 2, 1, 1, 0), mode=mode), leaf(2, 4, 3, 5, 6, last=last),
                        extern=left)


def test_what_has_no_meta_kernel() -> None:
    x = leaf(4, 5)
    at = torch.full((2, 3, 3), 0.5)
    check_joint(lambda x, at: F.fractional_max_pool3d(x, 2, (2, 2, 2), _random_samples=at), leaf(2, 3, 4, 5, 6), at,
                extern=True)
    check_joint(lambda x, t: F.multi_margin_loss(x, t), x, torch.tensor([0, 4, 2, 2]), extern=True)
    check_joint(lambda x, t: F.multilabel_margin_loss(x, t), x, torch.tensor([[0, 4, -1, 2, 2]] * 4), extern=True)


ACTIVATIONS = {
    "gelu": F.gelu, "silu": F.silu, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "hardtanh": F.hardtanh,
    "elu": F.elu,
    "celu": F.celu, "leaky": F.leaky_relu, "mish": F.mish, "softplus": F.softplus, "logsigmoid": F.logsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink, "glu": F.glu, "rrelu": lambda x: F.rrelu(x, training=False),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    for dtype in DTYPES:
        check_joint(ACTIVATIONS[name], (torch.randn(4, 6, dtype=dtype) * 3).requires_grad_())
    check_joint(F.prelu, leaf(4, 6), leaf(6))
    check_joint(F.prelu, leaf(4, 6, 2), leaf(1))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(reduction: str) -> None:
    for dtype in DTYPES:
        x, target = leaf(5, 7, dtype=dtype), torch.rand(5, 7, dtype=dtype)
        for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss,
                     F.binary_cross_entropy_with_logits):
            check_joint(lambda x, t, loss=loss: loss(x, t, reduction=reduction), x, target)
        check_joint(lambda x, t: F.smooth_l1_loss(x, t, reduction=reduction, beta=0.3), x, target)
        check_joint(lambda x, t: F.huber_loss(x, t, reduction=reduction, delta=0.3), x, target)
        check_joint(lambda x, t, w: F.binary_cross_entropy(x.sigmoid(), t, w, reduction=reduction), x, target,
                    target[0])
        check_joint(lambda x, t: F.kl_div(x, t, reduction="batchmean", log_target=True), x, target)
        classes, weight = torch.tensor([0, 6, -100, 3, 3]), torch.rand(7, dtype=dtype)
        check_joint(lambda x, t, w: F.cross_entropy(x, t, w, reduction=reduction), x, classes, weight)
        check_joint(lambda x, t: F.cross_entropy(x, t, reduction=reduction, label_smoothing=0.1), x, classes)
        check_joint(lambda x, t: F.cross_entropy(x, t, reduction=reduction), leaf(2, 5, 3, dtype=dtype),
                    torch.randint(0, 5, (2, 3)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(dtype: torch.dtype) -> None:
    for last in (False, True):
        x, w = leaf(3, 6, 4, 5, dtype=dtype, last=last), leaf(6, dtype=dtype)
        check_joint(lambda x, w, b: F.group_norm(x, 3, w, b), x, w, leaf(6, dtype=dtype))
        check_joint(lambda x, w, b: F.group_norm(x, 3, w, b), x.detach().contiguous(), w, leaf(6, dtype=dtype))
        check_joint(lambda x: F.group_norm(x, 2), x)
        check_joint(lambda x, w: F.instance_norm(x, None, None, w), x, w)
    check_joint(lambda x, w, b: F.layer_norm(x, (4, 5), w, b), x, leaf(4, 5, dtype=dtype), leaf(4, 5, dtype=dtype))
    check_joint(lambda x, w: F.rms_norm(x, (5,), w), x, leaf(5, dtype=dtype))
    check_joint(lambda x: F.softmax(x, 1).log_softmax(-1), x)


@pytest.mark.parametrize("parameters", [torch.bfloat16, torch.float32], ids=str)
def test_statistics_of_short_floats(parameters: torch.dtype) -> None:
    """They are kept in the dtype of the parameters, and the gradient of the input has its own."""
    x, w, b = leaf(3, 6, 4, 5, dtype=torch.bfloat16), leaf(6, dtype=parameters), leaf(6, dtype=parameters)
    statistics = torch.zeros(6, dtype=parameters), torch.ones(6, dtype=parameters)
    rough = {"tolerance": 0.05}
    check_joint(lambda x, w, b: F.layer_norm(x.transpose(1, 3), (6,), w, b), x, w, b, **rough)
    check_joint(lambda x, w, b: F.group_norm(x, 3, w, b), x, w, b, **rough)
    check_joint(lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, True), x, w, b, *statistics, **rough)


@pytest.mark.parametrize("last", [False, True])
def test_windows_that_tile(last: bool) -> None:
    x = leaf(2, 3, 6, 8, last=last)
    check_joint(lambda x: F.avg_pool2d(x, 2), x, extern=("avg_pool2d",))
    check_joint(lambda x: F.avg_pool2d(x, (3, 2)), x, extern=("avg_pool2d",))
    check_joint(lambda x: F.avg_pool2d(x, 3, 2, 1), x, extern=("avg_pool2d", "avg_pool2d_backward"))
    check_joint(lambda x: F.adaptive_avg_pool2d(x, (3, 2)), x, extern=("_adaptive_avg_pool2d",))
    check_joint(lambda x: F.adaptive_avg_pool2d(x, 1), x)
    check_joint(lambda x: F.interpolate(x, scale_factor=2), x)
    check_joint(lambda x: F.interpolate(x, size=(12, 8), mode="nearest-exact"), x)
    check_joint(lambda x: F.interpolate(x, scale_factor=1.5), x, extern=("upsample_nearest2d_backward",))
    check_joint(lambda x: F.interpolate(x, scale_factor=(2, 1, 3)), leaf(1, 2, 2, 3, 2, last=last))


def test_views() -> None:
    x = leaf(6, 9)
    check_joint(lambda x: x[1:5:2, ::2] * x[0, ::2], x)
    check_joint(lambda x: x.diagonal(1) * 2, x)
    check_joint(lambda x: x.unfold(1, 3, 2) * 2, x)
    check_joint(lambda x: x.unfold(0, 2, 3).exp(), x)
    check_joint(lambda x: x.unfold(1, 9, 1).exp(), leaf(2, 30))
    check_joint(lambda x: x.unfold(1, 20, 3).exp(), leaf(2, 30))
    check_joint(lambda x: x.as_strided((9, 6), (1, 9)) * 2, x)
    check_joint(lambda x: x.as_strided((3, 2), (10, 2), 4) * 2, x)
    check_joint(lambda x: x.expand(4, 6, 9) * x.repeat(4, 1, 1), x)
    check_joint(lambda x: [part * 2 for part in (*x.chunk(2, 1), *x.unbind(0))], x)


def test_writes() -> None:
    """In-place operators and views of what they write, as the engine rebases them."""

    def written(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.zeros(4, 5)
        z[:, 1:4] = y
        z[0].add_(x)
        flat = z.view(-1)
        flat[3] = 0
        return z, flat * 2

    check_joint(written, leaf(5), leaf(4, 3))
    check_joint(lambda x: (x * 2).add_(1).relu_(), leaf(4, 5))


def test_lookups() -> None:
    rows = torch.tensor([[1, 0, 3], [1, 4, 4]])
    check_joint(F.embedding, rows, leaf(6, 5))
    check_joint(lambda i, w: F.embedding(i, w, padding_idx=1), rows, leaf(6, 5))
    bags = ("_embedding_bag_forward_only", "_embedding_bag_backward", "_embedding_bag_per_sample_weights_backward")
    for mode in ("sum", "mean", "max"):
        check_joint(lambda i, w, mode=mode: F.embedding_bag(i, w, mode=mode), rows, leaf(6, 5), extern=bags,
                    exact=False)
    check_joint(lambda i, w, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s), rows, leaf(6, 5), leaf(2, 3),
                extern=bags)
    check_joint(lambda x, i: x[i, 0].sum() * x[:, i[0], i[1]], leaf(6, 5, 5), rows)
    check_joint(lambda x, i, v: x.index_put((i,), v, accumulate=True), leaf(6, 5), rows, leaf(2, 3, 5))
    check_joint(lambda x, i, v: x.scatter_add(1, i, v).gather(1, i), leaf(2, 5), rows, leaf(2, 3))


def test_attention() -> None:
    flash = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward")
    q, k, v = leaf(2, 4, 5, 8), leaf(2, 4, 6, 8), leaf(2, 4, 6, 8)
    check_joint(F.scaled_dot_product_attention, q, k, v, extern=flash)
    check_joint(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), q, k, v, extern=flash)
    check_joint(F.scaled_dot_product_attention, q, k, v, torch.randn(5, 6), extern=flash)
    check_joint(F.scaled_dot_product_attention, q, k, v, leaf(5, 6), extern=("bmm",))
    check_joint(lambda *x: F.scaled_dot_product_attention(*[t.transpose(1, 2) for t in x]), q, q, q, extern=flash)
    check_module(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), leaf(2, 5, 8),
                 extern=(*flash, "addmm", "mm"))
