"""Attention and its gradient as training's graphs have them, against float64 and against eager's operators."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import framesmith
from framesmith import pipeline
from framesmith.config import Config
from framesmith.lower.contractions.choice import CANDIDATES, Chooser
from framesmith.lower.contractions.pack_linear import Request, choose_contractions

library = torch.ops.framesmith
aten = torch.ops.aten
SHAPES = [  # batch, heads, queries, keys, width, value width
    (1, 3, 128, 128, 64, 64), (2, 2, 197, 197, 64, 64), (1, 2, 17, 33, 20, 20),
    (2, 1, 3, 700, 32, 32), (1, 2, 600, 550, 16, 16), (3, 2, 1, 1, 8, 8),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def heads(batch: int, count: int, rows: int, width: int) -> torch.Tensor:
    return torch.randn(batch, rows, count, width).transpose(1, 2)


def masks(batch: int, count: int, queries: int, keys: int) -> list[torch.Tensor | None]:
    without = torch.zeros(queries, keys)
    without[queries // 2] = float("-inf")  # a query without any key
    most = torch.zeros(keys).masked_fill(torch.arange(keys) % 3 == 0, float("-inf")).expand(batch, 1, queries, keys)
    some = [None, torch.randn(batch, 1, 1, keys), torch.randn(queries, keys), torch.randn(batch, count, queries, 1)]
    return [*some, torch.randn(keys, queries).t(), without.expand(batch, count, queries, keys), most]


def gradients(q, k, v, tangent, mask, causal, scale):
    """By autograd in float64."""
    q, k, v = (t.double().requires_grad_() for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores + mask.double()
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    out = scores.softmax(-1).nan_to_num() @ v
    return out, torch.logsumexp(scores, -1), *torch.autograd.grad(out, (q, k, v), tangent.double().nan_to_num())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_and_its_gradient(shape) -> None:
    batch, count, queries, keys, width, value_width = shape
    q, k, v = heads(batch, count, queries, width), heads(batch, count, keys, width), heads(batch, count, keys,
                                                                                           value_width)
    tangent = torch.randn(batch, count, queries, value_width)
    cases = [(mask, False, None) for mask in masks(batch, count, queries, keys)[:-2]]
    cases += [(None, True, None), (None, True, 0.3), (None, False, 0.2)]
    for mask, causal, scale in cases:
        out, sums, *expected = gradients(q, k, v, tangent, mask, causal, scale)
        ours, logs = library.attention_sums(q, k, v, mask, causal, scale)
        torch.testing.assert_close(ours.double(), out, rtol=1e-5, atol=4e-6)
        torch.testing.assert_close(logs.double(), sums, rtol=1e-5, atol=4e-6)
        for actual, exact in zip(library.attention_backward(tangent, q, k, v, ours, logs, mask, causal, scale),
                                 expected, strict=True):
            assert (actual - exact).abs().max() <= 4e-6 * exact.abs().max() + 1e-6
            assert actual.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masks_that_leave_nothing_as_eager(shape) -> None:
    batch, count, queries, keys, width, value_width = shape
    q, k, v = heads(batch, count, queries, width), heads(batch, count, keys, width), heads(batch, count, keys,
                                                                                           value_width)
    tangent = torch.randn(batch, count, queries, value_width)
    for mask in masks(batch, count, queries, keys)[-2:]:
        out, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask)
        torch.testing.assert_close(library.attention_sums(q, k, v, mask, False, None), (out, sums), rtol=1e-5,
                                   atol=4e-6)
        theirs = aten._scaled_dot_product_flash_attention_for_cpu_backward(tangent, q, k, v, out, sums, 0.0, False,
                                                                           attn_mask=mask)
        ours = library.attention_backward(tangent, q, k, v, out, sums, mask, False, None)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_both_are_measured_and_agree() -> None:
    memory: dict[str, str] = {}
    for kind in ("attention forward", "attention backward"):
        request = Request(kind, torch.float32, (1, 4, 200, 300, 64, 64, 0, 1))
        chooser = Chooser(Config(), memory)
        assert chooser(request) == chooser(request)
        assert CANDIDATES[kind](request).keys() == {"aten", "own"}
        assert len(chooser.measured) == 1


@pytest.mark.parametrize("causal", (False, True))
def test_training_as_eager(causal, tmp_path, monkeypatch) -> None:
    q, k, v = (torch.randn(2, 30, 4, 16).requires_grad_() for _ in range(3))

    def fn(q, k, v):
        out = scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=causal)
        return out.transpose(1, 2).reshape(2, 30, 64).square().mean()

    expected = torch.autograd.grad(fn(q, k, v), (q, k, v))
    seen: list[str] = []

    def rewrite(graph, choose):
        choose_contractions(graph, lambda request: "own")
        seen.extend(str(n.target) for n in graph.nodes if n.op == "call_function")

    monkeypatch.setattr(pipeline, "choose_contractions", rewrite)
    compiled = framesmith.compile(fn, options={"cache_dir": str(tmp_path)})
    torch.testing.assert_close(torch.autograd.grad(compiled(q, k, v), (q, k, v)), expected, rtol=1e-5, atol=1e-7)
    assert seen.count("framesmith.attention_sums.default") == seen.count("framesmith.attention_backward.default") == 1
