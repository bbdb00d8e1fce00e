"""Strides of copies of which a part is written, over layouts in which elements share memory too."""

import pytest
import torch

import framesmith

LAYOUTS = {
    "dense": lambda: torch.ones(2, 3), "permuted": lambda: torch.ones(3, 2).mT,
    "one element": lambda: torch.ones(()).expand(2, 3), "rows": lambda: torch.ones(3).expand(2, 3),
    "columns": lambda: torch.ones(2, 1).expand(2, 3),
    "expanded to one row": lambda: torch.ones(3).expand(1, 3), "permuted rows": lambda: torch.ones(2).expand(3, 2).mT,
    "with gaps": lambda: torch.ones(4, 6)[::2, ::2],
}
WRITES = {
    "slice": lambda x: torch.slice_scatter(x, torch.zeros(1, 3), 0, 0, 1),
    "select": lambda x: torch.select_scatter(x, torch.zeros(3), 0, 0),
    "diagonal": lambda x: torch.diagonal_scatter(x, torch.zeros(min(x.shape))),
    "as_strided": lambda x: torch.as_strided_scatter(x, torch.zeros(1), (1,), (1,)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("write", WRITES)
def test_layouts(write, layout):
    x, fn = LAYOUTS[layout](), WRITES[write]
    got, expected = framesmith.compile(fn)(x), fn(x)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()


def test_the_gradient_of_what_is_overwritten():
    def overwritten(b):
        b = b.clone()
        b.narrow(0, 0, 1).zero_()
        return b.sum()

    x = torch.ones(2, 3, requires_grad=True)
    gradient, = torch.autograd.grad(framesmith.compile(overwritten)(x), x)
    assert gradient.tolist() == [[0.0] * 3, [1.0] * 3]
    assert gradient.stride() == (3, 1)
