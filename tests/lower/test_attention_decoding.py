"""Attention of one row as sums."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.graph.interpreter import run
from framesmith.lower.contractions.attention_decoding import sum_decoded_rows
from tests.fake.harness import record
from tests.lower.test_masked_attention import operands

sdpa = torch.ops.aten.scaled_dot_product_attention.default
KEPT = torch.arange(40) < torch.tensor([[[[17]]], [[[40]]]])
MASKS = {
    "none": None, "truth values": KEPT, "a row without keys": KEPT & (torch.arange(2).view(2, 1, 1, 1) > 0),
    "numbers": torch.randn(3, 1, 40), "of a matrix": torch.randn(1, 40),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scale", [None, 0.5])
def test_it_means_the_same(mask, scale):
    inputs = operands(rows=1, dtype=torch.float32) + [MASKS[mask]] * (MASKS[mask] is not None)

    def fn(q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, mask, scale=scale)

    graph, _ = record(fn, inputs)
    sum_decoded_rows(graph)
    graph.lint()
    assert not any(n.target is sdpa for n in graph.nodes)
    torch.testing.assert_close(run(graph, inputs)[0], fn(*inputs))


@pytest.mark.parametrize(("rows", "shared", "dtype"),
                         [(2, 3, torch.float32), (1, 1, torch.float32), (1, 3, torch.bfloat16)])
def test_what_stays_the_librarys(rows, shared, dtype):
    graph, _ = record(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
                      operands(rows, 40, 3, shared, dtype))
    sum_decoded_rows(graph)
    assert sum(n.target is sdpa for n in graph.nodes) == 1
