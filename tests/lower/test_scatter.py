"""Scatters write a copy of their own: what was copied stays what it was."""

import torch

import framesmith


def zeros_that_are_read_later(x):
    d = torch.diagonal_scatter(x.new_zeros((4, 4)), torch.ones(4)).view(4, 4)
    return torch.mv(torch.zeros(4, 4), x.sin()), (d * x.cos()).sum()


def a_product_that_is_read_later(x):
    y = x.expand(4, 4) * 2
    z = y.scatter(0, x.argsort().expand(1, 4), x.expand(1, 4))
    return torch.mv(y, x), torch.mv(z, x), y


def a_slice_with_steps(x):
    y = x.exp()
    z = y.clone()
    z[1::2] = x[:2].cos()
    z[::2] += y[1::2]
    return y, z, z.view(2, 2)[:, ::2] * 2


def test_same_as_eager():
    x = torch.linspace(-1, 2, 4)
    for fn in (zeros_that_are_read_later, a_product_that_is_read_later, a_slice_with_steps):
        torch.testing.assert_close(framesmith.compile(fn, fullgraph=True)(x), fn(x))
