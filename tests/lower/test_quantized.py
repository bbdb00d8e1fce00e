"""Products with packed integers: the kernels, and the pass that chooses them."""

import pytest
import torch
from torch import nn

import framesmith
from framesmith.lower.contractions.quantized import pack_integers, rows_of_groups

library = torch.ops.framesmith
SHAPES = [(1, 64, 32), (5, 67, 45), (33, 130, 100), (8, 3, 5), (9, 64, 16), (70, 1700, 421)]


def integers(bits, *shape):
    return torch.randint(-(1 << bits - 1), 1 << bits - 1, shape, dtype=torch.int8)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("m, k, n", SHAPES)
def test_quantized_linear(m, k, n, bits, turned):
    """All sums are exact in float32, whatever their order."""
    torch.manual_seed(0)
    x, w = torch.randint(-4, 5, (m, k)).float(), integers(bits, k, n)
    packed = pack_integers(w.t() if turned else w, k, n, bits, turned)
    assert torch.equal(library.quantized_linear(x, packed, None, None, n, bits, k), x @ w.float())
    group = 16
    groups = -(-k // group)
    scale, zero = 2.0 ** torch.randint(-2, 3, (n, groups)), integers(4, n, groups)
    found = library.quantized_linear(x, packed, *[rows_of_groups(t, n, groups) for t in (scale, zero)], n, bits, group)
    factors, zeros = ((t.repeat_interleave(group, 1)[:, :k].t()) for t in (scale, zero))
    assert torch.equal(found, x @ ((w - zeros.float()) * factors))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize("m, k, n", SHAPES)
def test_integer_matmul_is_exact(m, k, n, dtype):
    a, b = torch.randint(-128, 256, (m, k)).to(dtype), integers(8, k, n)
    found = library.integer_matmul(a, pack_integers(b, k, n, 8, False), n)
    assert torch.equal(found, a.int() @ b.int())


class Scaled(nn.Module):
    """A layer whose weight is integers, with a scale for each group of a row."""

    def __init__(self, groups):
        super().__init__()
        self.register_buffer("weight", integers(8, 24, groups, 64 // groups))
        self.register_buffer("scale", torch.rand(24, groups, 1))
        self.register_buffer("zero", integers(4, 24, groups, 1))
        self.bias = nn.Parameter(torch.randn(24))

    def forward(self, x):
        weight = (self.weight.float() - self.zero.float()) * self.scale
        return nn.functional.linear(x, weight.view(24, 64), self.bias)


@pytest.mark.parametrize("groups", [1, 4])
def test_dequantized_weights_stay_integers(groups):
    model, x = Scaled(groups).eval(), torch.randn(2, 5, 64)
    compiled = framesmith.compile(model, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-3)
        assert "framesmith::quantized_linear" in str(framesmith.explain(model)(x))
        model.scale.mul_(2)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-3)


def test_a_matrix_without_groups_and_its_transpose():
    w = integers(8, 40, 64)

    def program(x, y):
        return x @ w.t().float(), y @ w.float()

    x, y = torch.randn(3, 64), torch.randn(3, 40)
    with torch.no_grad():
        torch.testing.assert_close(framesmith.compile(program)(x, y), program(x, y), rtol=1e-5, atol=1e-3)
