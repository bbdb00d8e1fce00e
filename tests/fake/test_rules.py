"""Each row of the metadata tables against eager, over layouts: shape, strides, dtype, and the values of the recorded
graph."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from tests.fake.harness import check, record

torch.manual_seed(0)
LAYOUTS = {
    "contiguous": lambda: torch.randn(2, 4, 6, 8),
    "channels_last": lambda: torch.randn(2, 4, 6, 8).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(2, 4, 8, 6).transpose(2, 3),
    "permuted": lambda: torch.randn(8, 4, 2, 6).permute(2, 1, 3, 0),
    "sliced": lambda: torch.randn(2, 4, 6, 16)[..., ::2],
    "expanded": lambda: torch.randn(2, 1, 6, 8).expand(2, 4, 6, 8),
    "ones": lambda: torch.randn(1, 4, 1, 8),
    "integer": lambda: torch.randint(-3, 4, (2, 4, 6, 8)),
    "half": lambda: torch.randn(2, 4, 6, 8).bfloat16(),
    "bool": lambda: torch.rand(2, 4, 6, 8) > 0.5,
}

ANY = {
    "add": lambda x: x + 1,
    "add_float": lambda x: x * 2.5,
    "add_row": lambda x: x + torch.arange(x.shape[-1]),
    "add_swapped": lambda x: x + x.transpose(0, 1).transpose(0, 1) * 2,
    "add_other_layout": lambda x: x * 1 + torch.ones(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1),
    "zero_dim": lambda x: x * torch.tensor(2.0, dtype=torch.float64),
    "div": lambda x: x / 3,
    "floor_div": lambda x: torch.div(x.float(), 3, rounding_mode="floor"),
    "compare": lambda x: x > 0,
    "equal_self": lambda x: x == x.flip(0),
    "logical": lambda x: torch.logical_not(x) | (x > 1),
    "exp": lambda x: x.exp(),
    "where": lambda x: torch.where(x > 0, x, 0.5),
    "where_tensors": lambda x: torch.where(x > 0, x, x.double()),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1),
    "pow": lambda x: x.float() ** 2,
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "to_double": lambda x: x.double(),
    "to_channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "zeros_like": lambda x: torch.zeros_like(x),
    "full_like": lambda x: torch.full_like(x, 1, dtype=torch.float64),
    "new": lambda x: (x.new_zeros(2, 3), x.new_ones(2), x.new_full((3,), 1)),
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), x.sum(-1, dtype=torch.float64)),
    "mean": lambda x: x.float().mean((2, 3)),
    "any": lambda x: (x.any(), (x > 0).all(1), (x > 0).any(2, keepdim=True)),
    "cumsum": lambda x: x.cumsum(1),
    "reshape": lambda x: (x.reshape(2 if x.shape[0] == 2 else 1, -1), x.flatten(), x.reshape(-1, x.shape[-1])),
    "flatten": lambda x: x.flatten(1, 2),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "views": lambda x: (x.transpose(1, 3), x.permute(3, 0, 2, 1), x[:, 1], x[..., 2:7:3], x[None], x.unsqueeze(-1),
                        x[:, -1:]),
    "stacks": lambda x: (*[torch.stack([x, x], d) for d in (0, 1, 2, -1)],
                         *[torch.stack([x[0], x[1 % len(x)] * 2], d) for d in (0, 1, -1)],
                         torch.stack([x[..., ::2], x[..., 1::2]], -1), torch.stack([x, x.double()], 1)),
    "histc": lambda x: torch.histc(x.float(), 4, 0, 3),
    "squeeze": lambda x: (x.squeeze(), x.squeeze(0), x.squeeze((0, 2)), x.mT, x.movedim(1, 2)),
    "expand": lambda x: (x[:1].expand(3, -1, -1, -1), x.unsqueeze(0).expand(2, *x.shape), x[None].expand(1, *x.shape)),
    "cat": lambda x: (torch.cat([x, x], 1), torch.cat([x, x.double()], -1), torch.stack([x, x], 1),
                      torch.stack([x, x], -1)),
    "split": lambda x: (*x.split(3, -1), *x.chunk(3, 1), *x.unbind(1)),
    "repeat": lambda x: (x.repeat(2, 1, 1, 2), x.repeat(2, 1, 1, 1, 1), x.repeat_interleave(2, 1)),
    "flip_roll": lambda x: (x.flip(1, 3), x.roll(2, -1), torch.roll(x, (1, 2), (2, 3))),
    "pad": lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 1, 2, 0), value=1)),
    "gather": lambda x: x.gather(1, torch.zeros(1, 2, 1, 3, dtype=torch.long)),
    "index_select": lambda x: x.index_select(2, torch.tensor([0, 0])),
    "index": lambda x: (x[:, [0, 1]], x[[0], :, [0]], x[:, torch.tensor([[0, 1], [2, 3]])], x[0, :, [0, 0]]),
    "diagonal": lambda x: x.diagonal(0, 1, 3),
    "tril": lambda x: (x.tril(), x.triu(1)),
    "scatter": lambda x: x.clone().scatter(1, torch.zeros(1, 1, 1, 1, dtype=torch.long), 1),
    "unfold": lambda x: x.unfold(3, 3, 2),
    "matrix": lambda x: x.T if x.dim() == 2 else x.mT,
}

FLOATS = {
    "unary": lambda x: (torch.sigmoid(x), F.gelu(x), F.silu(x), F.hardswish(x), F.relu6(x), F.elu(x), F.softplus(x),
                        x.abs()),
    "of_two": lambda x: [
        f(a, b) for f in (torch.logaddexp, torch.copysign, torch.special.xlog1py, torch.heaviside, torch.ldexp)
        for a, b in itertools.product((x[0, 0, 0, 0], x.mT, x[0, 0, 0], x.transpose(0, 1)[:1]), repeat=2)
    ],
    "of_two_dtypes": lambda x: [
        f(a, b) for f in (torch.sub, torch.div, torch.lt) for a in (x.mT, x[:, :1].mT.expand(x.mT.shape))
        for b in (x.mT.char(), x[..., :1].char().expand(x.shape).mT, x.mT.double())
    ],
    "log_sigmoid": lambda x: (F.logsigmoid(x), *torch.ops.aten.log_sigmoid_forward(x.transpose(0, 1))),
    "powers": lambda x: (torch.pow(2.0, x.mT), torch.complex(x, x).mT.angle() if x.dtype is torch.float32 else x),
    "clamp": lambda x: (x.clamp(0, 1), x.clamp_min(0), x.clamp(max=x.new_ones(8)), F.hardtanh(x), x.neg(), x.round()),
    "softmax": lambda x: (x.softmax(-1), F.log_softmax(x, 1), x.softmax(1, dtype=torch.float64)),
    "extrema": lambda x: (x.amax(1), x.max(), x.max(2, keepdim=True), x.argmax(1), x.min(-1), x.argmin(),
                          x.amin((1, 2))),
    "spread": lambda x: (x.var(1), x.std((2, 3), keepdim=True), *torch.var_mean(x, -1), x.var(), x.norm(dim=1),
                         x.logsumexp(2)),
    "sort": lambda x: (x.sort(-1), x.topk(2, 1)),
    "layer_norm": lambda x: (F.layer_norm(x, (8,)), F.rms_norm(x, (8,)), F.layer_norm(x, (x.shape[2], 8))),
    "group_norm": lambda x: F.group_norm(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(4, dtype=x.dtype), torch.ones(4, dtype=x.dtype)),
    "linear": lambda x: (F.linear(x, torch.ones(5, 8, dtype=x.dtype)), F.linear(x[0, 0], x[0, 1], x[0, 0, :, 0])),
    "matmul": lambda x: (x @ x.mT, x @ x[0, 0].T, x[0, 0] @ x.mT, x @ x[0, 0, 0], x[0, 0, 0] @ x[0, 0, 0],
                         x[0, 0, 0] @ x.mT),
    "bmm": lambda x: (torch.bmm(x[0], x[0].mT), torch.baddbmm(x[0, :, :, :1], x[0], x[0].mT),
                      torch.einsum("abcd,abed->abce", x, x)),
    "interpolate": lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=(3, 5), mode="bilinear")),
    "pool": lambda x: F.adaptive_avg_pool2d(x, (1, 2)),
    "dropout": lambda x: F.dropout(x, 0.5, False),
}

IMAGES = {
    "conv": lambda x: F.conv2d(x, torch.ones(6, 4, 3, 3, dtype=x.dtype), padding=1),
    "conv_bias": lambda x: F.conv2d(x, torch.ones(6, 4, 1, 1, dtype=x.dtype), x.new_ones(6), stride=2),
    "conv_depthwise": lambda x: F.conv2d(x, torch.ones(4, 1, 3, 3, dtype=x.dtype), groups=4, dilation=2),
    "conv_same": lambda x: F.conv2d(x, torch.ones(4, 4, 3, 3, dtype=x.dtype), padding="same"),
    "conv1d": lambda x: F.conv1d(x[:, :, 0], torch.ones(3, 4, 3, dtype=x.dtype)),
    "conv1d_rows": lambda x: F.conv1d(x[:, 0].transpose(1, 2), torch.ones(3, 8, 3, dtype=x.dtype), padding=1),
    "conv1d_weights": lambda x: F.conv1d(x[:, :, 0], torch.ones(3, 2, 4, dtype=x.dtype).mT),
    "conv_transpose": lambda x: F.conv_transpose2d(x, torch.ones(4, 3, 2, 2, dtype=x.dtype), stride=2),
    "max_pool": lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 3, 2, ceil_mode=True)),
    "avg_pool": lambda x: (F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2, 2, ceil_mode=True)),
    "adaptive": lambda x: (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (3, 2)), F.adaptive_max_pool2d(x, 2)),
    "instance_norm": lambda x: F.instance_norm(x),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
}

FLOAT_LAYOUTS = [n for n in LAYOUTS if n not in ("integer", "bool")]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ANY)
def test_any(op, layout):
    both(ANY[op], LAYOUTS[layout]())


@pytest.mark.parametrize("layout", FLOAT_LAYOUTS)
@pytest.mark.parametrize("op", FLOATS)
def test_floats(op, layout):
    both(FLOATS[op], LAYOUTS[layout]())


@pytest.mark.parametrize("layout", [n for n in FLOAT_LAYOUTS if n != "ones"])
@pytest.mark.parametrize("op", IMAGES)
def test_images(op, layout):
    both(IMAGES[op], LAYOUTS[layout]())


def both(fn, *inputs):
    """Records and compares; where eager refuses, recording refuses in the same words."""
    try:
        with torch.no_grad():
            fn(*inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        with pytest.raises(type(error)) as got:
            record(fn, list(inputs))
        assert str(got.value) == str(error)
        return
    check(fn, *inputs, tol=1e-6)


@pytest.mark.parametrize("case", range(10))
def test_attention(case):
    q = torch.randn(2, 3, 5, 8)
    cases = [
        lambda q: F.scaled_dot_product_attention(q, q, q),
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        lambda q: F.scaled_dot_product_attention(q, q, q, torch.zeros(5, 5)),
        lambda q: F.scaled_dot_product_attention(q, q, q, torch.ones(2, 1, 5, 5, dtype=torch.bool)),
        lambda q: F.scaled_dot_product_attention(q.transpose(1, 2), q.transpose(1, 2), q.transpose(1, 2),
                                                 torch.zeros(5, 3, 3)),
        lambda q: F.scaled_dot_product_attention(q.transpose(1, 2), q.transpose(1, 2), q.transpose(1, 2),
                                                 torch.zeros(1, 5, 3, 1)),
        lambda q: F.scaled_dot_product_attention(q[0], q[0], q[0]),
        lambda q: F.scaled_dot_product_attention(q, q, q[..., :4]),
        lambda q: F.scaled_dot_product_attention(q.transpose(1, 2), q[:, :1].transpose(1, 2), q[:, :1].transpose(1, 2),
                                                 enable_gqa=True),
        lambda q: F.scaled_dot_product_attention(q[..., ::2], q[..., ::2], q[..., ::2]),
    ]
    both(cases[case], q)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("missing", ["", "mean", "var", "mean var"])
@pytest.mark.parametrize("norm", [torch.batch_norm, torch.instance_norm])
def test_running_statistics_of_which_some_are_missing(norm, missing, training):
    statistics = [None if name in missing else torch.full((4,), 0.5) for name in ("mean", "var")]
    both(lambda x, *s: norm(x, None, None, *s, training, 0.1, 1e-5, False), torch.randn(2, 4, 5), *statistics)


def test_numbers_that_losses_and_activations_refuse():
    for number in (math.nan, math.inf, -1.0):
        for fn in (F.softshrink, F.dropout, lambda x, p: F.dropout(x, p, False),
                   lambda x, p: F.huber_loss(x, x, delta=p), lambda x, p: F.smooth_l1_loss(x, x, beta=p)):
            both(lambda x, fn=fn, number=number: fn(x, number), torch.randn(2, 3))


def test_factories():
    def f(x):
        return (
            torch.arange(5), torch.arange(1, 9, 3), torch.arange(0.0, 1.0, 0.3), torch.arange(3, 0, -1),
            torch.linspace(0, 1, 4),
            torch.eye(3), torch.full((2,), 1), torch.full((2,), True), torch.ones(2, dtype=torch.int8),
            torch.tril_indices(3, 3),
            torch.empty_strided((2, 3), (1, 2)).fill_(1), torch.scalar_tensor(2.0), x.new_tensor([1, 2]),
        )  # fmt: skip

    check(f, torch.tensor([1, 2, 4]))


def test_embedding_bag():
    def f(w, i, o):
        bags = F.embedding_bag(i, w, o), F.embedding_bag(i, w, o, mode="sum"), F.embedding_bag(i.view(2, 3), w,
                                                                                               mode="max")
        return *bags, F.embedding(i, w)

    check(f, torch.randn(10, 4), torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 2]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("other", [2, 2.5, True, 1j, torch.tensor(1), torch.tensor(1.5),
                                   torch.ones(3, dtype=torch.float16)])
def test_promotion(dtype, other):
    def f(x):
        return x + other, x * other, torch.where(x == x, x, other), x == other

    both(f, torch.ones(3, dtype=dtype))
