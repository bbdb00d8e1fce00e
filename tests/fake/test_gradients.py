"""Metadata rows of the operators in autograd's formulas against eager, over layouts; what they cover runs no meta
kernel."""

import pytest
import torch

from framesmith.fake import infer
from tests.fake.harness import check, record
from tests.fake.test_rules import FLOAT_LAYOUTS, LAYOUTS, both

aten = torch.ops.aten
ACTIVATIONS = {
    "sigmoid": (), "tanh": (), "gelu": (), "hardswish": (), "hardsigmoid": (), "silu": (), "mish": (),
    "threshold": (0.0,), "leaky_relu": (0.1, False), "softplus": (1.0, 20.0), "hardtanh": (-1.0, 1.0), "logit": (1e-3,),
}  # fmt: skip


def _activation(name, *rest):
    return lambda x, grad: getattr(aten, f"{name}_backward")(grad, x, *rest)


def _norm(x, grad):
    weight, bias = torch.ones(8, dtype=x.dtype), torch.zeros(8, dtype=x.dtype)
    _, mean, rstd = torch.native_layer_norm(x, (8,), weight, bias, 1e-5)
    return aten.native_layer_norm_backward(grad, x, (8,), mean, rstd, weight, bias, (True, True, True))


def _batch_norm(x, grad, train):
    zeros, ones = torch.zeros(4), torch.ones(4)
    _, mean, rstd = torch.native_batch_norm(x, ones, zeros, zeros.clone(), ones.clone(), train, 0.1, 1e-5)
    return aten.native_batch_norm_backward(grad, x, ones, zeros, ones, mean, rstd, train, 1e-5, (True, True, True))


def _loss(name, *rest):
    return lambda x, grad: getattr(aten, f"{name}_loss_backward")(grad, x, grad, *rest)


def _nll(x, grad):
    scores, target = x[:, :, 0, 0], torch.zeros(x.shape[0], dtype=torch.int64)
    one, pixels = torch.ones((), dtype=x.dtype), torch.zeros(x.shape[0], *x.shape[2:], dtype=torch.int64)
    return (
        aten.nll_loss_backward(one, scores, target, None, 1, -100, one),
        aten.nll_loss_backward(grad[:, 0, 0, 0], scores, target, None, 0, -100, one),
        aten.nll_loss2d_backward(one, x, pixels, None, 1, -100, one),
    )


def _pool(x, grad):
    out, where = aten.max_pool2d_with_indices(x, 2)
    return (
        aten.max_pool2d_with_indices_backward(out, x, (2, 2), (2, 2), (0, 0), (1, 1), False, where),
        aten.avg_pool2d_backward(out, x, (2, 2), (2, 2), (0, 0), False, True, None),
        aten._adaptive_avg_pool2d_backward(out, x),
        aten.upsample_nearest2d_backward(x, (6, 8), (2, 4, 3, 4), None, None),
    )


OPERATORS = {
    **{name: _activation(name, *rest) for name, rest in ACTIVATIONS.items()},
    "elu": lambda x, grad: aten.elu_backward(grad, 1.0, 1.0, 1.0, False, x),
    "log_sigmoid": lambda x, grad: aten.log_sigmoid_backward(grad, x, torch.exp(-x.abs())),
    "glu": lambda x, grad: aten.glu_backward(grad[..., :4], x, -1),
    "dropout": lambda x, grad: aten.native_dropout_backward(grad, x > 0, 2.0),
    "softmax": lambda x, grad: (
        aten._softmax_backward_data(grad, x, -1, x.dtype), aten._log_softmax_backward_data(grad, x, 1, x.dtype)
    ),
    "layer_norm": _norm,
    "batch_norm": lambda x, grad: (*_batch_norm(x, grad, True), *_batch_norm(x, grad, False)),
    "mse": _loss("mse", 1), "smooth_l1": _loss("smooth_l1", 1, 1.0), "huber": _loss("huber", 1, 1.0),
    "nll": _nll,
    "pool": _pool,
    "slice": lambda x, grad: aten.slice_backward(grad[:, 1:3], x.shape, 1, 1, 3, 1),
    "select": lambda x, grad: aten.select_backward(grad[:, 1], x.shape, 1, 1),
    "unfold": lambda x, grad: aten.unfold_backward(grad[..., :6].unflatten(-1, (2, 3)), x.shape, 3, 3, 5),
    "embedding": lambda x,
    grad: aten.embedding_dense_backward(grad, torch.zeros(x.shape[:3], dtype=torch.int64), 5, -1, False),
}  # fmt: skip
IMAGES = ("batch_norm", "pool", "nll")


def _none(values):
    return [v for v in values if v is not None] if isinstance(values, tuple) else values


@pytest.mark.parametrize("layout", FLOAT_LAYOUTS)
@pytest.mark.parametrize("op", OPERATORS)
def test_like_eager(op, layout):
    if layout == "ones" and op in IMAGES:
        pytest.skip("no window of two")
    x = LAYOUTS[layout]()
    fn = OPERATORS[op]
    for grad in (torch.randn_like(x), torch.randn(x.shape, dtype=x.dtype),
                 torch.randn(x.shape[::-1], dtype=x.dtype).permute(3, 2, 1, 0)):
        both(lambda a, b: _none(fn(a, b)), x, grad)


@pytest.mark.parametrize("op", OPERATORS)
def test_rows_are_taken(op, monkeypatch):
    def refuse(func, args, kwargs):
        raise AssertionError(f"{func} ran a kernel")

    monkeypatch.setattr(infer, "by_meta_kernel", refuse)
    monkeypatch.setattr(infer, "_by_kernel", refuse)
    x = LAYOUTS["contiguous"]()
    check(lambda a, b: _none(OPERATORS[op](a, b)), x, torch.randn_like(x), tol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", [False, True])
def test_attention_and_its_gradient_on_the_cpu_are_not_computed(dtype, mask, monkeypatch):
    """Their layouts are known; on zeros the gradient took seconds for each layer of a model for sounds."""
    monkeypatch.setattr(infer, "_on_zeros", None)
    monkeypatch.setattr(infer, "by_meta_kernel", None)
    q, k, v = (torch.randn(2, n, 3, 8, dtype=dtype).transpose(1, 2) for n in (5, 7, 7))
    where = torch.zeros(5, 7, dtype=dtype) if mask else None

    def gradients(grad, q, k, v, where):
        out, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=where)
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, sums, 0.0, False,
                                                                         attn_mask=where)

    check(gradients, torch.randn(2, 3, 5, 8, dtype=dtype), q, k, v, where)


def test_no_kernel_reads_a_table_without_rows(monkeypatch):
    """The kernel of a derivative trusts the indices that the operator has checked: of zeros it reads row 0."""

    def f(grad, index, offsets):
        return aten._embedding_bag_backward(grad, index, offsets, offsets[:1], offsets[:1], offsets[:1], 0, False, 1,
                                            False, None)

    ran = []
    monkeypatch.setattr(infer, "_to_real", lambda value, budget: ran.append(value))
    _, (found,) = record(f, [torch.ones(1, 3), torch.tensor([5]), torch.tensor([1, 2])])
    assert found.shape == (0, 3) and not ran


def test_no_kernel_reads_bags_where_there_are_none(monkeypatch):
    ran = []
    monkeypatch.setattr(infer, "_to_real", lambda value, budget: ran.append(value))
    _, (found,) = record(lambda w, i, o: torch.nn.functional.embedding_bag(i, w, o, mode="max"),
                         [torch.ones(4, 0), torch.tensor([5]), torch.tensor([], dtype=torch.int64)])
    assert found.shape == (0, 0) and not ran
