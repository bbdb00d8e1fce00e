"""Products in parts, for versions of PyTorch whose own takes no symbols."""

import pytest
import torch

from framesmith.fake.products import product

SHAPES = {
    "dot": [(5,), (5,)], "row": [(5,), (5, 3)], "column": [(4, 5), (5,)], "matrices": [(4, 5), (5, 3)],
    "rows": [(2, 4, 5), (5, 3)], "rows by a vector": [(2, 6, 4, 5), (5,)], "batches": [(2, 4, 5), (2, 5, 3)],
    "broadcast": [(2, 1, 4, 5), (3, 5, 3)], "to a batch": [(4, 5), (2, 5, 3)], "nothing": [(0, 4, 5), (0, 5, 3)],
}  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_the_parts_give_the_product(shapes):
    a, b = (torch.randn(shape) for shape in shapes)
    got, want = product(a, b), a @ b
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()


@pytest.mark.parametrize("a", [torch.randn(5), torch.randn(4, 5, requires_grad=True)], ids=["vector", "parameter"])
def test_what_hangs_on_more_than_sizes_is_left(a):
    assert product(a, torch.randn(2, 5, 3)) is NotImplemented
