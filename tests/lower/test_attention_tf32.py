"""Attention of float32 under autograd as attention over tiles: what it gives, in the form in which the library's
kernels give it."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.graph.attention import Attention, AttentionGradient
from framesmith.graph.interpreter import run
from framesmith.lower.contractions.attention_tf32 import tile_attention_tf32
from tests.gpu.fakes import recorded
from tests.lower.test_masked_attention import operands

aten = torch.ops.aten
ROWS = 48


def forward(q, k, v, causal):
    return aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal, scale=0.3)[:2]


def backward(g, q, k, v, out, sums, causal):
    state = torch.zeros((), dtype=torch.int64)
    return aten._scaled_dot_product_efficient_attention_backward(
        g, q, k, v, None, out, sums, state, state, 0.0, [True, True, True, False], causal, scale=0.3
    )[:3]


def rewritten(fn, *inputs):
    graph, _ = recorded(fn, *inputs)
    tile_attention_tf32(graph)
    graph.lint()
    assert sum(isinstance(n.target, Attention | AttentionGradient) for n in graph.nodes) == 1
    return run(graph, inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_it_means_the_same(causal):
    q, k, v = [x.requires_grad_() for x in operands(dtype=torch.float32)]
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3)
    g = torch.randn_like(want)
    gradients = torch.autograd.grad(want, (q, k, v), g)
    q, k, v, want = [x.detach() for x in (q, k, v, want)]
    out, sums = rewritten(lambda q, k, v: forward(q, k, v, causal), q, k, v)
    scores = q @ k.transpose(-2, -1) * 0.3
    if causal:
        scores = scores.masked_fill(torch.ones(ROWS, 40).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(out, want)
    assert sums.shape == (2, 3, 64)  # the library's blocks of 32 rows
    torch.testing.assert_close(sums[..., :ROWS], scores.logsumexp(-1))
    found = rewritten(lambda *given: backward(*given, causal), g, q, k, v, want, sums)
    torch.testing.assert_close(tuple(found), gradients)


def test_dropout_stays_the_librarys():
    def fn(q, k, v):
        return aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.5, False)[0]

    graph, _ = recorded(fn, *operands(dtype=torch.float32))
    tile_attention_tf32(graph)
    assert [n.target for n in graph.nodes
            if n.op == "call_function"][0] is aten._scaled_dot_product_efficient_attention.default
