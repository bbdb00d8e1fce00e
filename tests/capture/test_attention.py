"""Attention with score modifications in Python: as eager, forward and backward, where all scores are computed at
once."""

import math

import pytest
import torch
from torch.nn.attention import flex_attention as flex

import framesmith
from framesmith.capture.functions import attention as row
from framesmith.capture.functions import attention_tiles

B, H, M, N, E = 2, 4, 24, 40, 8
BIAS = torch.linspace(-1, 1, H)
TABLE = torch.linspace(-2, 2, M * N).reshape(M, N)
DOCUMENTS = (torch.arange(N) // 7).repeat(B, 1)


def plain(score, b, h, q, k):
    return score


def causal(score, b, h, q, k):
    return torch.where(q + 3 >= k, score, -float("inf"))


def alibi(score, b, h, q, k):
    return score + BIAS[h] * (q - k)


def soft_cap(score, b, h, q, k):
    return 5 * torch.tanh(score / 5) + TABLE[q, k]


def by_vector(score, b, h, q, k):
    return score + TABLE[q].mean() * 0.1


def first_rows_empty(b, h, q, k):
    return (q >= 5) & (q - k < 9)


def documents(b, h, q, k):
    return DOCUMENTS[b, q] == DOCUMENTS[b, k]


@pytest.fixture(autouse=True)
def gradients_on_the_cpu(monkeypatch):
    monkeypatch.setattr(flex, "_validate_device", lambda *given: None)


def given(heads=H, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(B, H, M, E, dtype=dtype), torch.randn(B, heads, N, E,
                                                             dtype=dtype), torch.randn(B, heads, N, 2 * E, dtype=dtype)


def reference(q, k, v, score_mod=plain, mask_mod=None, scale=None):
    """Each score on its own, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    groups = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-2, -1) * (scale or E**-0.5)
    b, h, i, j = torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")
    if score_mod is by_vector:
        scores = scores + TABLE.double().mean(-1)[:, None] * 0.1
    else:
        scores = score_mod(scores, b, h, i, j)
    if mask_mod is not None:
        scores = torch.where(mask_mod(b, h, i, j), scores, -float("inf"))
    empty = (scores == -float("inf")).all(-1, keepdim=True)
    weights = torch.where(empty, 0.0, scores.masked_fill(empty, 0.0).softmax(-1))
    return weights @ v


@pytest.mark.parametrize("score_mod", [plain, causal, alibi, soft_cap, by_vector], ids=lambda f: f.__name__)
@pytest.mark.parametrize("mask_mod", [None, first_rows_empty, documents], ids=lambda f: getattr(f, "__name__", "none"))
def test_forward(score_mod, mask_mod):
    mask = flex.create_block_mask(mask_mod, B, H, M, N, device="cpu", BLOCK_SIZE=8) if mask_mod else None
    q, k, v = given()
    compiled = framesmith.compile(lambda q, k, v: flex.flex_attention(q.sin(), k, v, score_mod, mask) * 2,
                                  fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, k, v).double(), reference(q.sin(), k, v, score_mod, mask_mod) * 2,
                                   rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("score_mod", [plain, causal, alibi, soft_cap], ids=lambda f: f.__name__)
@pytest.mark.parametrize("heads", [H, 2])
def test_backward(score_mod, heads):
    mask = flex.create_block_mask(first_rows_empty, B, H, M, N, device="cpu", BLOCK_SIZE=8)
    inputs = [x.requires_grad_() for x in given(heads, torch.float64)]
    compiled = framesmith.compile(lambda q, k, v: flex.flex_attention(q, k, v, score_mod, mask, enable_gqa=heads != H),
                                  fullgraph=True)
    expected = reference(*inputs, score_mod, first_rows_empty)
    found = compiled(*inputs)
    torch.testing.assert_close(found, expected)
    tangent = torch.randn_like(found)
    torch.testing.assert_close(torch.autograd.grad(found, inputs, tangent),
                               torch.autograd.grad(expected, inputs, tangent))


def test_gradient_of_what_a_modification_reads():
    slopes = BIAS.double().requires_grad_()
    q, k, v = given(dtype=torch.float64)

    def mod(score, b, h, i, j):
        return score + slopes[h] * (i - j)

    found = framesmith.compile(lambda q, k, v: flex.flex_attention(q, k, v, mod), fullgraph=True)(q, k, v)
    expected = reference(q, k, v, mod)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), slopes),
                               torch.autograd.grad(expected.square().sum(), slopes))


def test_layout_and_sums():
    q, k, v = given()
    q = q.transpose(1, 2).contiguous().transpose(1, 2)

    def program(q, k, v):
        return flex.flex_attention(q, k, v, alibi, return_aux=flex.AuxRequest(lse=True))

    with torch.no_grad():
        expected, aux = program(q, k, v)
        found, told = framesmith.compile(program, fullgraph=True)(q, k, v)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(told.lse, aux.lse)


def test_the_mode_is_left():
    q, k, v = given()

    def program(q, k, v):
        return flex.flex_attention(q, k, v, alibi) + q[torch.tensor(1)].sum()

    with torch.no_grad():
        torch.testing.assert_close(framesmith.compile(program, fullgraph=True)(q, k, v), program(q, k, v))


@pytest.mark.parametrize("block_mask", ["short", "sliced"])
def test_errors_are_eagers(block_mask):
    mask = flex.create_block_mask(first_rows_empty, B, H, M, N, device="cpu", BLOCK_SIZE=8)
    mask = flex.create_block_mask(first_rows_empty, B, H, M - 8, N, device="cpu",
                                  BLOCK_SIZE=8) if block_mask == "short" else mask[:, :, 0]
    q, k, v = given()
    with pytest.raises((ValueError, RuntimeError)) as eager:
        flex.flex_attention(q, k, v, block_mask=mask)
    with pytest.raises(eager.type) as found:
        framesmith.compile(lambda q, k, v: flex.flex_attention(q, k, v, block_mask=mask))(q, k, v)
    assert str(found.value) == str(eager.value)


def test_one_call_over_all_scores(monkeypatch):
    """A modification of elements is not called under `vmap`."""
    monkeypatch.setattr(row.py, "one_by_one", None)
    q, k, v = given()
    with torch.no_grad():
        found = framesmith.compile(lambda q, k, v: flex.flex_attention(q, k, v, soft_cap), fullgraph=True)(q, k, v)
    assert math.isfinite(found.sum())


@pytest.mark.parametrize("score_mod", [plain, causal, alibi, soft_cap], ids=lambda f: f.__name__)
@pytest.mark.parametrize("mask_mod", [None, first_rows_empty, documents], ids=lambda f: getattr(f, "__name__", "none"))
def test_one_node_for_tiles(score_mod, mask_mod, monkeypatch):
    """As for a device with tiles: the node, its gradient, and what they mean."""
    monkeypatch.setattr(attention_tiles, "DEVICES", {"cpu"})
    mask = flex.create_block_mask(mask_mod, B, H, M, N, device="cpu", BLOCK_SIZE=8) if mask_mod else None
    inputs = [x.requires_grad_() for x in given(2, torch.bfloat16)]
    graphs = []
    compiled = framesmith.compile(lambda q, k,
                                  v: flex.flex_attention(q * 2, k, v, score_mod, mask, enable_gqa=True) + 1,
                                  fullgraph=True,
                                  backend=lambda graph, inputs: graphs.append(graph) or graph)
    compiled(*[x.detach() for x in inputs])
    assert any("attention" in str(n.target) for n in graphs[0].graph.nodes)
    compiled = framesmith.compile(lambda q, k,
                                  v: flex.flex_attention(q * 2, k, v, score_mod, mask, enable_gqa=True) + 1,
                                  fullgraph=True)
    expected, found = reference(inputs[0] * 2, *inputs[1:], score_mod, mask_mod) + 1, compiled(*inputs)
    torch.testing.assert_close(found.double(), expected, rtol=3e-2, atol=3e-2)
    tangent = torch.randn_like(found)
    wanted = torch.autograd.grad(expected, inputs, tangent.double())
    for x, y in zip(torch.autograd.grad(found, inputs, tangent), wanted):
        torch.testing.assert_close(x, y, rtol=3e-2, atol=3e-2 * y.abs().max().item())


def test_sums_have_a_gradient_of_tiles(monkeypatch):
    monkeypatch.setattr(attention_tiles, "DEVICES", {"cpu"})
    inputs = [x.requires_grad_() for x in given(H, torch.bfloat16)]

    def program(q, k, v):
        out, aux = flex.flex_attention(q, k, v, alibi, return_aux=flex.AuxRequest(lse=True))
        return out.float().square().sum() + aux.lse.sin().sum()

    def expected(q, k, v):
        b, h, i, j = torch.meshgrid(*map(torch.arange, (B, H, M, N)), indexing="ij")
        scores = alibi(q.double() @ k.double().transpose(-2, -1) * E**-0.5, b, h, i, j)
        return (scores.softmax(-1) @ v.double()).square().sum() + scores.logsumexp(-1).sin().sum()

    found = torch.autograd.grad(framesmith.compile(program, fullgraph=True)(*inputs), inputs)
    for x, y in zip(found, torch.autograd.grad(expected(*inputs), inputs)):
        torch.testing.assert_close(x, y, rtol=3e-2, atol=3e-2 * y.abs().max().item(), check_dtype=False)
