"""Attention that is written out as attention with modified scores."""

import pytest
import torch

from framesmith.graph.attention import Attention
from framesmith.graph.interpreter import run
from framesmith.lower.contractions.match_attention import match_attention
from tests.fake.harness import record
from tests.lower.test_masked_attention import BF16, operands


def plain(q, k, v, bias):
    return torch.softmax(q @ k.transpose(-2, -1) / 4, -1) @ v


def windows(q, k, v, bias):
    scores = (q * 0.25) @ k.transpose(-2, -1) + bias.permute(2, 0, 1).unsqueeze(0)
    shifted = torch.where(torch.arange(48)[:, None] // 8 == torch.arange(40) // 8, 0.0, -100.0)
    scores = scores.view(1, 2, 3, 48, 40) + torch.stack([shifted, shifted * 0])[None, :, None]
    return torch.softmax(scores.view(2, 3, 48, 40), -1, dtype=torch.float32).to(v.dtype) @ v


def filled(q, k, v, bias):
    kept = (torch.arange(40) < 30)[None, None, None]
    scores = torch.matmul(q, k.permute(0, 1, 3, 2)).float() * 0.25
    scores = torch.where(kept, scores.masked_fill(~kept, -1e9), torch.tensor(-1e9))
    return torch.matmul(torch.softmax(scores, dim=3).to(v.dtype), v)


def read_twice(q, k, v, bias):
    weights = torch.softmax(q @ k.transpose(-2, -1), -1)
    return weights @ v, weights * 2


def along_rows(q, k, v, bias):
    return torch.softmax(q @ k.transpose(-2, -1), -2) @ v


def nothing_left(q, k, v, bias):
    kept = torch.arange(48)[:, None] > torch.arange(40)
    return torch.softmax((q @ k.transpose(-2, -1)).masked_fill(~kept, -torch.inf), -1) @ v


def squared(q, k, v, bias):
    scores = (q * 0.125) @ k.transpose(-2, -1)
    return torch.softmax(scores * scores, -1) @ v


ROUNDING = torch.finfo(BF16).eps


def error(x, reference):
    """The largest distance from `reference`, which is the same program in float64; eager rounds the scores to
    bfloat16."""
    return (x.double() - reference).nan_to_num().abs().max()


CASES = [(plain, 0), (windows, 2), (filled, 3), (read_twice, None), (along_rows, None), (squared, 0), (nothing_left, 1)]


@pytest.mark.parametrize(("fn", "count"), CASES)
def test_it_means_the_same(fn, count):
    inputs = [*operands(), torch.randn(48, 40, 3)]
    graph, _ = record(fn, inputs)
    match_attention(graph, True)
    graph.lint()
    calls = [n for n in graph.nodes if isinstance(n.target, Attention)]
    assert [n.target.scores.counts[0] for n in calls] == ([] if count is None else [count])
    assert not calls or not any(n.target is torch.ops.aten.matmul.default for n in graph.nodes)
    eager, exact = (torch.utils._pytree.tree_leaves(fn(*xs)) for xs in (inputs, [x.double() for x in inputs]))
    for got, want, reference in zip(run(graph, inputs), eager, exact, strict=True):
        assert got.shape == want.shape and got.dtype is want.dtype and torch.equal(got.isnan(), want.isnan())
        assert error(got, reference) <= error(want, reference) + ROUNDING * reference.nan_to_num().abs().max()
