"""Scatters write a copy of their own: what was copied stays what it was."""

import torch

import framesmith
from framesmith.lower.layouts import RESULT_LAYOUTS
from framesmith.lower.values import Stored


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


class Cache(torch.nn.Module):
    """Keys that are written in place, as a decoder's."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 2, 8, 4))

    def forward(self, x, position):
        self.keys.index_copy_(2, position, x)
        return (x @ self.keys.transpose(2, 3)).softmax(-1)


class Before(Cache):
    """What was there before is read after the write."""

    def forward(self, x, position):
        before = self.keys * 2
        self.keys.index_copy_(2, position, x)
        return self.keys.sum() + before.exp().sum()


def test_an_input_that_only_gets_the_result_is_written_where_it_is():
    for model in (Cache(), Before()):
        compiled, eager = framesmith.compile(model, fullgraph=True), type(model)()
        with torch.no_grad():
            for k in range(4):
                x, position = torch.randn(1, 2, 1, 4), torch.tensor([2 * k])
                torch.testing.assert_close(compiled(x, position), eager(x, position))
                torch.testing.assert_close(model.keys, eager.keys)


def test_what_is_put_into_a_copy_has_the_layout_of_a_copy():
    x = torch.randn(4, 6, 3)
    for like in (x, x.permute(2, 0, 1), x[:, ::2], x[:1].expand(4, 6, 3), x[:, 0], x[:, :, :1]):
        value = Stored("x", tuple(like.shape), like.stride(), 0, like.dtype)
        put = torch.ops.aten.index_put.default
        assert RESULT_LAYOUTS[put](None, [value]) == put(like, [torch.tensor([1])], torch.tensor(1.0)).stride()
