"""Attention whose operands' batches or heads differ, and whose switches are conditions on sizes, at sizes that vary."""

import pytest
import torch
from torch.nn import functional as F

import framesmith

BATCHES = {
    "one key": ((2, 4), (2, 1), (2, 1), None), "keys of all": ((2, 4), (1, 4), (2, 4), None),
    "mask of all": ((2, 4), (2, 1), (2, 1), (1, 1)), "mask of each": ((2, 4), (2, 1), (2, 1), (2, 4)),
    "one query": ((1, 4), (2, 1), (2, 1), None), "no batch": ((4,), (1,), (1,), None),
}


def once(f, *calls, variants=1):
    """Compile once for all calls, or as often as is said, equal to eager; strides too."""
    framesmith.reset()  # functions of one code object share variants
    compiled = framesmith.compile(f, dynamic=True, fullgraph=True)
    for args in calls:
        got, want = compiled(*args), f(*args)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        assert got.stride() == want.stride()
    assert compiled.callback.compiles == variants


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("case", BATCHES)
def test_batches_are_broadcast(case, grad):
    query, key, value, mask = BATCHES[case]

    def operands(n, m):
        tensors = torch.randn(*query, n, 16), torch.randn(*key, m, 16), torch.randn(*value, m, 16)
        return *[x.requires_grad_(grad) for x in tensors], None if mask is None else torch.randn(*mask, n, m)

    # gradients of products of batches are computed by eager's composite kernel, which takes numbers alone before 2.13
    variants = 2 if grad and torch.__version__ < "2.13" else 1
    once(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), operands(8, 8), operands(5, 9),
         variants=variants)


def test_a_condition_on_a_size_as_a_switch():
    def f(x, several):
        return F.scaled_dot_product_attention(x, x, x, is_causal=several & (x.shape[2] > 2))

    once(f, (torch.randn(2, 3, 8, 4), True), (torch.randn(2, 3, 5, 4), True))


@pytest.mark.parametrize("grad", [False, True])
def test_rows_times_a_vector(grad):
    """`linear` of one output feature that is no dimension."""
    weight = torch.randn(6, requires_grad=grad)
    once(lambda x: F.linear(x, weight).reshape(-1, 4), (torch.randn(2, 4, 6),), (torch.randn(5, 8, 6),))


@pytest.mark.parametrize("dynamic", [True, None])
def test_of_no_batch_head_row_or_column(dynamic):
    """PyTorch 2.11's kernel divides by some of these sizes, so it is not run for them."""
    def attention(x):
        return F.scaled_dot_product_attention(x, x, x)

    for first in ((2, 3, 4, 8), (2, 3, 0, 8)):
        framesmith.reset()
        compiled = framesmith.compile(attention, dynamic=dynamic)
        for size in (first, (2, 3, 5, 8), (0, 3, 4, 8), (2, 0, 4, 8), (2, 3, 0, 8), (1, 3, 1, 8)):
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), attention(x) if x.numel() else x)
