"""Attention with a mask as attention with modified scores: where it becomes that, what it reads, and that it means the
same."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.graph.attention import Attention
from framesmith.graph.interpreter import run
from framesmith.lower.contractions.masked_attention import tile_masked_attention
from tests.fake.harness import record

BF16 = torch.bfloat16
LOW = torch.finfo(BF16).min


def operands(rows=48, columns=40, heads=3, shared=3, dtype=BF16):
    torch.manual_seed(0)
    return [torch.randn(2, n, h, 16, dtype=dtype).transpose(1, 2) for n,
            h in ((rows, heads), (columns, shared), (columns, shared))]


def whole(q, k, v, bias):
    return F.scaled_dot_product_attention(q, k, v, bias)


def one_for_all(q, k, v, bias):
    kept = (torch.arange(48).view(1, 1, 48, 1) >= 0).expand(2, -1, 48, 40)
    mask = torch.where(kept, bias.permute(2, 0, 1).unsqueeze(0), LOW).to(BF16)
    return [F.scaled_dot_product_attention(q * n, k, v, mask, scale=0.5) for n in (1, 2)]


def columns(q, k, v, kept):
    return F.scaled_dot_product_attention(q, k, v, kept[:, None, None, :].expand(2, 1, 48, 40))


def shared(q, k, v, bias):
    return F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], bias, enable_gqa=True)


KEPT = torch.arange(40).lt(torch.tensor([[17], [40]]))
CASES = {
    "whole": (whole, lambda: torch.randn(2, 3, 48, 40).to(BF16), (2, 3, 48, 40)),
    "rows with gaps, one for all": (one_for_all, lambda: torch.randn(48, 40, 3), (1, 3, 48, 40)),
    "columns": (columns, lambda: KEPT, (2, 1, 1, 40)),
    "of a matrix": (whole, lambda: torch.randn(48, 40).to(BF16), (48, 40)),
    "shared heads": (shared, lambda: torch.randn(1, 1, 48, 40).to(BF16), (1, 1, 48, 40)),
    "a mask that leaves a row nothing": (whole, lambda: torch.arange(48)[:, None] > torch.arange(40), (48, 40)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_means_the_same(name):
    fn, make, shape = CASES[name]
    inputs = [*operands(), make()]
    graph, _ = record(fn, inputs)
    tile_masked_attention(graph, True)
    graph.lint()
    calls = [n for n in graph.nodes if isinstance(n.target, Attention)]
    assert calls and len({n.args[-1] for n in calls}) == 1  # layers share what is made of a mask
    mask = calls[0].args[-1].meta["val"]
    assert tuple(mask.shape) == shape
    assert mask.shape[-1] == 1 or (mask.stride() if callable(mask.stride) else mask.stride)[-1] == 1
    want = torch.utils._pytree.tree_leaves(fn(*[x.double() if x.dtype is BF16 else x
                                                for x in inputs])) if fn is not one_for_all else None
    eager = torch.utils._pytree.tree_leaves(fn(*inputs))
    for got, own, true in zip(run(graph, inputs), eager, want or eager, strict=True):
        assert got.shape == own.shape and got.dtype is own.dtype
        torch.testing.assert_close(got.double(), true.double(), rtol=2e-2, atol=2e-2)


def test_few_rows_get_numbers_once():
    inputs = [*operands(rows=1), KEPT]

    def fn(q, k, v, kept):
        kept = kept[:, None, None, :]
        return [F.scaled_dot_product_attention(q * n, k, v, kept) for n in (1, 2)]

    graph, _ = record(fn, inputs)
    tile_masked_attention(graph, True)
    calls = [n for n in graph.nodes if n.target is torch.ops.aten.scaled_dot_product_attention.default]
    assert len(calls) == 2 and len({n.args[3] for n in calls}) == 1 and calls[0].args[3].meta["val"].dtype is BF16
    for got, want in zip(run(graph, inputs), fn(*inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_the_library_gets_rows_without_gaps():
    q, k, v = [torch.cat([x] * 5, -1) for x in operands()]
    inputs = [q, k, v, torch.randn(48, 40, 3).to(BF16)]

    def fn(q, k, v, bias):
        return F.scaled_dot_product_attention(q, k, v, bias.permute(2, 0, 1)[None])

    graph, _ = record(fn, inputs)
    tile_masked_attention(graph, True)
    (call,) = [n for n in graph.nodes if n.target is torch.ops.aten.scaled_dot_product_attention.default]
    assert call.args[3].target is torch.ops.aten.clone.default
    for got, want in zip(run(graph, inputs), [fn(*inputs)], strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("kwargs", "dtype", "tf32"), [({"dropout_p": 0.5}, BF16, True), ({}, torch.float32, False)],
    ids=["dropout", "float32"]
)
def test_what_stays_the_librarys(kwargs, dtype, tf32):
    inputs = [*operands(dtype=dtype), torch.randn(48, 40).to(dtype)]
    graph, _ = record(lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v, bias, **kwargs), inputs)
    tile_masked_attention(graph, tf32)
    assert not any(isinstance(n.target, Attention) for n in graph.nodes)


@pytest.mark.parametrize("causal", [False, True])
def test_in_tf32_there_need_be_no_mask(causal):
    inputs = operands(dtype=torch.float32)
    graph, _ = record(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), inputs)
    tile_masked_attention(graph, True)
    graph.lint()
    (call,) = [n for n in graph.nodes if isinstance(n.target, Attention)]
    assert call.target.scores.causal == causal and call.target.scores.tf32
    torch.testing.assert_close(run(graph, inputs)[0], F.scaled_dot_product_attention(*inputs, is_causal=causal))
