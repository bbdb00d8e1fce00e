"""Branches on sizes that only choose a value take no guard; sizes of which one was 1 have ranges from 1 on."""

import pytest
import torch

import framesmith
from tests.capture.test_branches import alike

SIZES = (9, 1, 7, 4, 3, 2, 5, 33)


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


def unused(x, mask):
    causal = x.shape[0] > 3 and mask is None and x.shape[1] == 5
    return x * 2, causal is None


def skipped(x, mask):
    if x.shape[0] == 1 or x.shape[1] == 3:
        scale = 2
    else:
        scale = 3
    return x * scale


def either(x, mask):
    flag = True if x.shape[0] > 3 else False  # noqa: SIM210
    if flag and mask is not None:
        x = x + 1
    return x * 2


def twice(x, mask):
    flag = x.shape[0] > 3 and x.shape[0] > 1 and mask is None
    if flag and x.shape[0] < 2:
        return x
    return x * 2


def raised(x, mask):
    flag = x.shape[0] > 3 or mask.missing
    return x * 2, flag


def is_causal(x, mask):
    q = x.view(1, 1, *x.shape)
    return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=x.shape[0] > 4 and mask is None)


@pytest.mark.parametrize("program, variants", [(unused, 2), (skipped, 2), (either, 2), (twice, 3), (is_causal, 3)])
def test_a_branch_that_only_chooses_a_value_takes_no_guard(program, variants, captures):
    compiled = framesmith.compile(program)
    for n in SIZES:
        x = torch.randn(n, 3)
        alike(compiled(x, None), program(x, None))
    assert len(captures) <= variants


def returned(x, mask):
    return x * 2, x.shape[0] > 3 and mask is None, 2 < x.shape[0] <= 5, not x.shape[0] == 4, x.shape[0] - 4 or mask  # noqa: SIM201


def test_relations_are_values():
    compiled = framesmith.compile(returned)
    for mask in (None, 1):
        for n in SIZES:
            x = torch.randn(n, 3)
            assert repr(compiled(x, mask)) == repr(returned(x, mask))


def test_the_path_that_is_not_taken_is_not_run():
    compiled = framesmith.compile(raised)
    for n in (9, 7, 5):
        alike(compiled(torch.ones(n, 3), None), raised(torch.ones(n, 3), None))
    with pytest.raises(AttributeError, match="missing"):
        compiled(torch.ones(2, 3), None)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.before(x).view(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mask = torch.ones(n, n, dtype=torch.bool).tril()[None, None]
        causal = n > 1 and mask is None
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask.expand(b, 1, n, n), is_causal=causal)
        return self.after(y.transpose(1, 2).reshape(b, n, 8))


@pytest.mark.parametrize("sizes", [((7, 21), (1, 13), (8, 20), (7, 1), (1, 1), (2, 2), (3, 1), (1, 30)),
                                   ((7, 21), (7, 1), (1, 13), (8, 20), (1, 1), (2, 2), (3, 1), (1, 30))])
def test_sizes_of_which_one_was_1_have_one_variant(sizes, captures):
    """The strides of a result of a linear layer follow from its sizes, whatever its operand's layout is."""
    model = Attention().eval()
    compiled = framesmith.compile(model)
    with torch.no_grad():
        for size in sizes:
            x = torch.randn(*size, 8)
            want = model(x)
            torch.testing.assert_close(compiled(x), want, check_stride=True)
    assert len(captures) <= 3


def test_a_layout_that_is_seen_is_eagers_for_1():
    def program(x):
        return x.transpose(0, 1).contiguous() + 1, x.transpose(0, 1).contiguous()

    compiled = framesmith.compile(program)
    for size in ((7, 21), (1, 13), (8, 1), (1, 1), (3, 1), (1, 5), (4, 6)):
        x = torch.randn(*size, 2)
        torch.testing.assert_close(compiled(x), program(x), check_stride=True)
