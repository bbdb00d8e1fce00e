"""Tensors that are lazily conjugated or negated: given, captured, kept, differentiated and returned."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import framesmith

Z = torch.randn(4, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
NEGATED = Z.conj().imag
GIVEN = {
    "negated": lambda z: z.conj().imag,
    "conjugated": lambda z: z.conj(),
    "both": lambda z: z.conj()._neg_view(),
    "transposed": lambda z: z.mH,
    "a row for each": lambda z: z.conj().imag[:1].expand(4, 4),
    "plain": lambda z: z,
}
PROGRAMS = {
    "pointwise": lambda a: a * 2 + NEGATED,
    "matmul": lambda a: (a @ a, a @ a.mH),
    "reduction": lambda a: a.sum(0),
    "bits": lambda a: (a.is_conj(), a.is_neg(), a.t().is_conj(), a[0].is_neg(), (a * 1).is_neg(), a.clone().is_conj(),
                       a + 1),
    "bits behind a break": lambda a: (b := a.conj(), framesmith.graph_break(), a.is_neg(), b.is_conj(), b + 1),
    "resolved": lambda a: a.resolve_neg().resolve_conj(),
    "views": lambda a: (a.t(), a[1:], a.conj(), a.adjoint(), a.imag if a.is_complex() else a.real),
    "views of a result": lambda a: (a * 2).conj(),
    "transpose of a result": lambda a: ((a * 2).mH, (a + 1).conj().t()[1:]),
    "negated result": lambda a: (a * 2).conj().imag if a.is_complex() else (a * 2)._neg_view(),
    "as real": lambda a: torch.view_as_real(a.conj().resolve_conj()) if a.is_complex() else a + 1,
}
WRITES = {
    "whole": lambda a: (a.add_(1), a * 3)[1],
    "a row": lambda a: (a[1].mul_(2), a * 3)[1],
    "through a view": lambda a: (a.conj().copy_(a * 2), a + 0)[1],
}


def seen(x):
    return (x.is_conj(), x.is_neg(), x.stride(), x.dtype, x.requires_grad) if isinstance(x, torch.Tensor) else x


def check(fn, make, grad=False):
    """Values, bits, strides, what was written and the gradient of a compiled function equal eager's."""
    kept = []
    for f in (fn, *[framesmith.compile(fn)] * 2):
        z = Z.clone().requires_grad_(grad)
        out = f(make(z))
        out = list(out) if isinstance(out, tuple) else [out]
        if grad:
            last = out[-1].resolve_conj()
            (torch.view_as_real(last) if last.is_complex() else last).square().sum().backward()
        kept.append((out, [z.detach(), z.grad]))
    for out, state in kept[1:]:
        assert list(map(seen, out)) == list(map(seen, kept[0][0]))
        torch.testing.assert_close([out, state], [*map(list, kept[0])])


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", PROGRAMS)
def test_given(name, given):
    check(PROGRAMS[name], GIVEN[given])


@pytest.mark.parametrize("given", [g for g in GIVEN if g != "a row for each"])
@pytest.mark.parametrize("name", WRITES)
def test_written(name, given):
    check(WRITES[name], GIVEN[given])


@pytest.mark.parametrize("given", ["negated", "conjugated", "both"])
@pytest.mark.parametrize("name", ["pointwise", "bits", "resolved", "views of a result", "negated result"])
@torch.enable_grad()
def test_differentiated(name, given):
    check(PROGRAMS[name], GIVEN[given], grad=True)


def test_raises_as_eager():
    with pytest.raises(RuntimeError, match="unresolved conjugated"):
        framesmith.compile(lambda z: torch.view_as_real(z.conj()))(Z)


def test_in_a_list():
    x, y = [NEGATED, Z.real], [NEGATED, Z.real]
    fn = lambda x: x[0] * 2 + x[1]  # noqa: E731
    torch.testing.assert_close(framesmith.compile(fn)(x), fn(y))


@pytest.mark.parametrize("given", ["negated", "conjugated"])
def test_a_parameter(given):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(GIVEN[given](Z.clone()))

        def forward(self, x):
            return x @ self.w.mH, x @ self.w

    net, x = Net(), torch.randn(3, 4, dtype=GIVEN[given](Z).dtype)
    compiled = framesmith.compile(net)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), net(x))
            net.w.mul_(2)


@torch.enable_grad()
def test_a_tangent():
    x = Z.real.clone().requires_grad_()
    y, tangent = framesmith.compile(lambda a: a.sin())(x), NEGATED
    torch.testing.assert_close(torch.autograd.grad(y, x, tangent)[0], tangent * x.cos())
