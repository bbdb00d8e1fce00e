"""Products of float32 that may be rounded to TF32, on a device: attention over tiles is judged by what it would be with
each operand of each product rounded and nothing else lost (libraries round only where lengths suit them), products
along askew lengths by eager's."""

import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

import framesmith

from .fakes import rounding

pytestmark = pytest.mark.gpu
B, H = 2, 4


@pytest.fixture(autouse=True)
def rounded():
    with rounding(products=True, convolutions=True):
        yield


def distance(found, true):
    return ((found.double() - true).norm() / true.norm()).item()


def gradients(fn, *inputs):
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = fn(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, tangent_of(out).to(out.dtype))]


def tangent_of(out):
    return torch.randn(out.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1))


def values(fn, *inputs):
    with torch.no_grad():
        return [fn(*inputs)]


def heads(rows, columns, width):
    torch.manual_seed(0)
    return [torch.randn(B, n, H, width, device="cuda").transpose(1, 2) for n in (rows, columns, columns)]


def nearest(x):
    """The nearest number of TF32, which has ten bits behind the point."""
    return (x.float().contiguous().view(torch.int32) + (1 << 12) & -1 << 13).view(torch.float32).double()


def product(a, b):
    return nearest(a) @ nearest(b)


def rounded_attention(q, k, v, causal):
    """The result and the gradients."""
    scale, seen = q.shape[-1] ** -0.5, torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device="cuda")
    scores = product(q, k.mT) * scale
    weights = torch.softmax(scores.masked_fill(~seen.tril(), float("-inf")) if causal else scores, -1)
    out = product(weights, v)
    tangent = tangent_of(out)
    back = product(tangent, v.mT)
    back = weights * (back - (weights * back).sum(-1, keepdim=True))
    return [out, product(back, k) * scale, product(back.mT, q) * scale, product(weights.mT, tangent)]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [40, 64, 128])
@pytest.mark.parametrize("size", [(512, 512), (197, 197), (64, 1500)])
def test_attention_errs_as_rounded_products_do(size, width, causal, training):
    inputs = heads(*size, width)

    def program(q, k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    results = gradients if training else values
    true, eager = results(program, *[x.double() for x in inputs]), results(program, *inputs)
    mine = results(framesmith.compile(program, fullgraph=True), *inputs)
    for a, b, c, d in zip(mine, rounded_attention(*inputs, causal), true, eager):
        assert a.stride() == d.stride()
        assert distance(a, c) <= 1.5 * distance(b, c)


def test_it_is_as_exact_as_is_asked_for():
    q, k, v = heads(256, 256, 64)
    program = framesmith.compile(lambda q, k, v: scaled_dot_product_attention(q, k, v), fullgraph=True)
    true = scaled_dot_product_attention(q.double(), k.double(), v.double())
    with torch.no_grad():
        assert 1e-5 < distance(program(q, k, v), true) < 1e-3
        with rounding(products=False, convolutions=True):
            assert distance(program(q, k, v), true) < 2e-6


@pytest.mark.parametrize("bias", [False, True])
def test_products_along_askew_lengths(bias):
    torch.manual_seed(0)
    x, w = torch.randn(1200, 256, device="cuda"), torch.randn(3001, 256, device="cuda")
    given = [x, w, *[torch.randn(3001, device="cuda")] * bias]

    def program(x, w, b=None):
        return linear(x, w, b)

    true, eager = gradients(program, *[t.double() for t in given]), gradients(program, *given)
    for a, b, c in zip(gradients(framesmith.compile(program, fullgraph=True), *given), eager, true, strict=True):
        assert distance(a, c) <= 1.5 * max(distance(b, c), 1e-6)


def test_one_row_is_exact():
    q, k, v = heads(1, 1000, 128)
    kept = torch.arange(1000, device="cuda") < 700

    def program(q, k, v, kept):
        return scaled_dot_product_attention(q, k, v, kept[None, None, None])

    with torch.no_grad():
        true = program(q.double(), k.double(), v.double(), kept)
        mine, eager = framesmith.compile(program, fullgraph=True)(q, k, v, kept), program(q, k, v, kept)
        assert distance(mine, true) <= 1.5 * max(distance(eager, true), 3e-7)


def test_training_is_replayed():
    q, k, v = [x.requires_grad_() for x in heads(256, 256, 64)]
    program = framesmith.compile(lambda q, k, v: scaled_dot_product_attention(q * 2, k, v) * 2, mode="reduce-overhead")
    true = gradients(lambda q, k, v: scaled_dot_product_attention(q * 2, k, v) * 2, q.double(), k.double(), v.double())
    for _ in range(4):
        for a, c in zip(gradients(program, q, k, v), true, strict=True):
            assert distance(a, c) < 1e-3
