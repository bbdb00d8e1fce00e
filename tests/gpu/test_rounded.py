"""Products of float32 that may be rounded to TF32, on a device: attention over tiles and products along askew lengths, judged by float64
against products of eager's that are rounded, too, and its fused attention of bfloat16, which has three bits less (a fused kernel computes
weights again, and the sum of a row's tangents of the rounded result)."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

import framesmith

pytestmark = pytest.mark.gpu
B, H = 2, 4


@pytest.fixture(autouse=True)
def rounded(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)


def distance(found, true):
    return ((found.double() - true).norm() / true.norm()).item()


def gradients(fn, *inputs, dtype=torch.float32):
    """Of tangents of a type."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = fn(*inputs)
    tangent = torch.randn(out.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).to(dtype)
    return [out.detach(), *torch.autograd.grad(out, inputs, tangent.to(out.dtype))]


def values(fn, *inputs, **options):
    with torch.no_grad():
        return [fn(*inputs)]


def heads(rows, columns, width):
    torch.manual_seed(0)
    return [torch.randn(B, n, H, width, device="cuda").transpose(1, 2) for n in (rows, columns, columns)]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [40, 64, 128])
@pytest.mark.parametrize("size", [(512, 512), (197, 197), (64, 1500)])
def test_attention_errs_as_rounded_products_do(size, width, causal, training):
    inputs = heads(*size, width)

    def program(q, k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    results = gradients if training else values
    true = results(program, *[x.double() for x in inputs])
    with sdpa_kernel(SDPBackend.MATH):
        eager = results(program, *inputs)
    halves = [x.bfloat16() for x in inputs]
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        fused = results(program, *halves, dtype=torch.bfloat16)
    least = [distance(a, b) / 8 for a, b in zip(fused, results(program, *[x.double() for x in halves], dtype=torch.bfloat16), strict=True)]
    mine, like = results(framesmith.compile(program, fullgraph=True), *inputs), results(program, *inputs)
    for a, b, c, d, e in zip(mine, eager, true, like, least, strict=True):
        assert a.stride() == d.stride()
        assert distance(a, c) <= 1.5 * max(distance(b, c), e)


def test_it_is_as_exact_as_is_asked_for(monkeypatch):
    q, k, v = heads(256, 256, 64)
    program = framesmith.compile(lambda q, k, v: scaled_dot_product_attention(q, k, v), fullgraph=True)
    true = scaled_dot_product_attention(q.double(), k.double(), v.double())
    with torch.no_grad():
        assert 1e-5 < distance(program(q, k, v), true) < 1e-3
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
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
