"""Writes, views and aliases in training: what shares memory and what has a gradient are eager's."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.autograd.driver import agree, error_of
from tests.programs import Programs

scenario = Programs(agree)


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


@scenario
def in_place_on_an_intermediate(c):
    x = leaf(3, 4)
    f = c(lambda x: (x * 2).add_(1).mul_(x).relu_())
    y = f(x)
    y.sum().backward()
    return x, y


@scenario
def in_place_through_a_view(c):
    x, w = leaf(3, 4), leaf(4)

    def fn(x, w):
        y = x * 2
        y[0] = w
        y[:, 1:3].mul_(w[0])
        y.t()[2].add_(x[:, 0])
        return y

    y = c(fn)(x, w)
    (y * y).sum().backward()
    return x, w, y


@scenario
def a_view_sees_the_write_of_its_base(c):
    x = leaf(3, 4)

    def fn(x):
        y = x * 2
        v = y[1]
        y.mul_(x)
        return v * 3, y

    v, y = c(fn)(x)
    (v.sum() + y.sum()).backward()
    return x, v, y


@scenario
def fresh_tensors_written_with_what_requires_grad(c):
    x = leaf(3, 4)

    def fn(x):
        out = torch.zeros(3, 4)
        out[0] = x[1]
        out[2].copy_(x[0] * 2)
        return out, out[1]

    out, row = c(fn)(x)
    (out * 3).sum().backward()
    return x, out, row.requires_grad


@scenario
def copies_in_another_layout(c):
    x, w = leaf(3, 4), leaf(4)

    def fn(h, w):
        h[:, 0].copy_(w[:3])
        h.t()[1:].copy_(w[1:].double().unsqueeze(1))
        y = torch.zeros(4, 3).t()
        y.copy_(h)
        return y * 2, h.clone()

    h = x * 2
    y, z = c(fn)(h, w)
    (y.square().sum() + z.sum() + h.sum()).backward()
    return x, w, y, z


@scenario
def fresh_tensors_after_parameters(c):
    x, w = leaf(3, 4), leaf(4)

    def fn(x, w):
        y = x * w
        out = torch.zeros(3, 4)
        for i in range(3):
            out[i] = y[2 - i]
        return out * torch.ones_like(out).mul_(w)

    y = c(fn)(x, w)
    y.sum().backward()
    return x, w, y


@scenario
def inputs_take_the_value_of_inputs(c):
    x, g = leaf(3), leaf(3)

    def fn(h, g):
        h.copy_(g)
        return h.detach() * h

    h = x * 2
    y = c(fn)(h, g)
    (y.sum() + h.square().sum()).backward()
    return x, g, y, h.detach()


@scenario
def what_autograd_does_not_keep_may_be_written(c):
    x, b = leaf(3), torch.randn(3)

    def fn(h, b):
        return h, h.exp(), b.relu() * h.sin(), b + h

    h = x * 2
    _, y, z, s = c(fn)(h, b)
    b.mul_(2)
    s.mul_(3)
    (y.sum() + z.sum() + s.sum()).backward()
    return x, b, y, z, s


@scenario
def views_without_grad_mode_say_that_they_require_grad(c):
    x = leaf(3, 4)

    def fn(x):
        with torch.no_grad():
            v = (x * 2)[0]
            u = x.t()
            k = v.relu()
        return k, u.clone(), u.requires_grad, k.requires_grad

    k, u, *flags = c(fn)(x)
    u.sum().backward()
    return x, k, u, flags


@scenario
def batch_norm_statistics(c):
    m = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4))
    f = c(m)
    for _ in range(3):
        f(torch.randn(2, 3, 6, 6)).square().sum().backward()
    m.eval()
    y = f(torch.randn(2, 3, 6, 6))
    return m, y


@scenario
def a_buffer_that_is_written(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4))
            self.register_buffer("seen", torch.zeros(4))
            self.register_buffer("n", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.n += 1
            self.seen.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            return x * self.w + self.seen

    m = M()
    f = c(m)
    for _ in range(3):
        f(torch.randn(3, 4)).sum().backward()
    return m


@scenario
def a_buffer_written_under_no_grad(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4))
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            y = x * self.w
            with torch.no_grad():
                self.seen.copy_(0.5 * self.seen + 0.5 * y.mean(0))
            return y + self.seen

    m = M()
    f = c(m)
    for _ in range(3):
        f(torch.randn(3, 4)).sum().backward()
    return m


@scenario
def an_input_that_requires_grad_after_the_write(c):
    x, w = torch.randn(3, 4), leaf(4)

    def fn(x, w):
        x.mul_(w)
        return x.sum()

    y = c(fn)(x, w)
    (y + (x * x).sum()).backward()
    return x.detach(), x.requires_grad, x.is_leaf, w, y


@scenario
def a_part_of_an_input_is_written(c):
    x, w = torch.randn(3, 4), leaf(4)

    def fn(x, w):
        x[1].copy_(w)
        return x * 2

    y = c(fn)(x, w)
    y.sum().backward()
    return x.detach(), x.requires_grad, w, y


@scenario
def an_input_written_and_needed_as_it_was(c):
    x, w = torch.randn(3, 4), leaf(4)

    def fn(x, w):
        y = (x.clone() * w).sum()  # the gradient of w needs x before the write
        x.add_(1)
        return y

    y = c(fn)(x, w)
    y.backward()
    return x, w, y


@scenario
def a_written_input_that_is_no_leaf(c):
    x, w = leaf(3, 4), leaf(4)

    def fn(h, w):
        h.mul_(w)
        return h.sin()

    h = x * 2
    y = c(fn)(h, w)
    (y.sum() + h.square().sum()).backward()
    return x, w, y, h.detach(), h.requires_grad


@scenario
def a_written_input_under_no_grad_that_requires_grad(c):
    x = leaf(3, 4)

    def fn(x):
        with torch.no_grad():
            x.mul_(2)

    c(fn)(x)
    x.sin().sum().backward()
    return x


@scenario
def detached_memory_is_written(c):
    x = leaf(3, 4)

    def fn(x):
        y = x * 2
        y.detach().add_(1)
        return y

    y = c(fn)(x)
    y.sum().backward()
    return x, y


@scenario(breaks=None)
def inputs_that_alias(c):
    base, w = torch.randn(3, 4), leaf(4)

    def fn(a, b, w):
        a.add_(1)
        return b * w

    y = c(fn)(base[0], base.view(-1)[2:6], w)
    c(lambda x: x * 2)(w).sum().backward()
    y.sum().backward()
    return base, w, y


@scenario
def views_of_inputs_leave(c):
    x = leaf(3, 4)
    f = c(lambda h: (h[0], h.t(), h * 2))
    h = x * 3
    row, turned, y = f(h)
    row.mul_(2)
    (h.sum() + turned.square().sum() + y.sum()).backward()
    return x, row.detach(), turned.detach(), row._base is h, turned._base is h


@scenario
def views_of_leaves_leave(c):
    x = leaf(3, 4)
    f = c(lambda x: (x[0], x + 1))
    row, y = f(x)
    error = error_of(lambda: row.mul_(2))
    (row.sum() + y.sum()).backward()
    return x, error, row.is_leaf, row._base is x


@scenario
def views_of_intermediates_leave(c):
    x = leaf(3, 4)

    def fn(x):
        y = x.sin()
        return y, y[0], y.view(-1)

    y, row, flat = c(fn)(x)
    row.mul_(3)
    flat.add_(1)
    (y.square().sum() + flat.sum()).backward()
    return x, y.detach(), row.detach(), flat.detach(), row.requires_grad


@scenario
def only_views_of_an_intermediate_leave(c):
    x = leaf(3, 4)

    def fn(x):
        y = x.sin()
        return y[0], y[:, 1]

    row, column = c(fn)(x)
    row.mul_(3)
    (row.sum() + column.square().sum()).backward()
    return x, row.detach(), column.detach()


@scenario
def pieces_leave(c):
    x = leaf(3, 4)
    a, b = c(lambda x: (x * 2).chunk(2, 1))(x)
    (a.sum() + b.square().sum()).backward()
    return x, a.detach(), b


@scenario
def an_output_is_written_afterwards(c):
    x = leaf(3, 4)
    y = c(lambda x: x * 2 + 1)(x)
    y.mul_(y.detach().clone())
    y.sum().backward()
    return x, y


@scenario
def a_saved_output_is_written_afterwards(c):
    x = leaf(3, 4)
    y = c(lambda x: x.exp().sigmoid())(x)
    y.mul_(2)
    return x, error_of(lambda: y.sum().backward())


@scenario
def a_copy_is_returned_that_autograd_keeps(c):
    """A view of the copy's memory leaves, and is what may not be written."""
    found = []
    for write in (False, True):
        x = leaf(3, 2)
        y, z = c(lambda x: ((y := x.mT.flatten()), F.softplus(y)))(x)
        if write:
            y.mul_(2)
        found += [error_of(lambda: (y.sum() + z.sum()).backward()), x]  # noqa: B023
    return found


@scenario
def an_input_is_returned(c):
    x, b = leaf(3), torch.randn(3)
    f = c(lambda x, b: (x, b, x * b))
    a, d, y = f(x, b)
    y.sum().backward()
    return x, b, a is x, d is b


@scenario
def the_same_tensor_twice(c):
    x = leaf(3)

    def fn(x):
        y = x * 2
        return y, y, [y, y + 1]

    a, b, (d, e) = c(fn)(x)
    (a.sum() + 2 * b.sum() + d.square().sum() + e.sum()).backward()
    return x, a is b, a is d


@scenario
def outputs_without_grad(c):
    x, b = leaf(3, 4), torch.randn(3, 4)

    def fn(x, b):
        with torch.no_grad():
            n = x * 3
        return x * b, b * 2, x.argmax(1), x > 0, x.detach(), n, None, 3, x.detach() + 1, x.shape

    y, *rest = c(fn)(x, b)
    y.sum().backward()
    return x, y, rest


@scenario
def a_detached_output_shares_memory(c):
    x = leaf(3, 4)

    def fn(x):
        y = x * 2
        return y, y.detach()

    y, d = c(fn)(x)
    d.zero_()
    y.sum().backward()
    return x, y, d


@scenario
def clones_and_data(c):
    x = leaf(3, 4)
    y, z = c(lambda x: (x.clone().detach(), (x.detach() * x).clone()))(x)
    z.sum().backward()
    return x, y, z


@scenario
def data_of_a_parameter(c):
    x = leaf(3, 4)

    def fn(x):
        y = x * 2
        x.data.mul_(0.5)
        return y + x.data

    y = c(fn)(x)
    y.sum().backward()
    return x, y


@scenario
def the_written_part_leaves_without_the_whole(c):
    def fn(x):
        y = (x * 3).flatten()
        y.clamp_(min=2)
        return y, F.layer_norm(y, y.shape[-1:])

    x = leaf(3, 4)
    y, z = c(fn)(x)
    (y.sum() + z.square().sum()).backward()
    return x, y, z


@scenario
def one_value_twice_of_which_one_is_kept(c):
    """The other may be written."""
    x = leaf(3, 4)
    y, z = c(lambda x: ((m := x.max(-1).values) @ m, x.max(-1).values))(x * 1)
    z.mul_(2)
    (y + z.sum()).backward()
    return x, y, z


@scenario(breaks=None)
def written_through_as_strided(c):
    """With the gradient of zeros where it is written over, of whatever order; and wherever in its storage an input
    begins."""

    def fresh(h, w):
        h = h * 1
        h.as_strided((2, 2), (1, 2)).mul_(w)
        return h * h

    def given(h, w):
        part = h.as_strided((2, 2), (1, 2))
        part[:, 0].mul_(w)
        return part * h[0, 0]

    def beyond_the_part(h, w):
        return (h * w).diagonal().as_strided((2, 2), (1, 2)) * w

    found = []
    for fn, begin, grad in itertools.product((fresh, given, beyond_the_part), (0, 1), (False, True)):
        x, w = torch.arange(7.0).requires_grad_(grad), torch.full((1,), 2.0, requires_grad=True)
        h = (x * 1)[begin:begin + 6].view(2, 3)
        y = c(fn)(h, w)
        g, = torch.autograd.grad(y.sum(), w, create_graph=True)
        (g * 3 + y.sum()).sum().backward()
        found += [y, h.detach(), w.grad, x.grad]
    return found


@scenario(breaks=True)
def a_leaf_is_written(c):
    x = leaf(3)

    def fn(x):
        y = x * 2
        x.add_(1)
        return y

    c(lambda x: x + 1)(x)
    return x, error_of(lambda: c(fn)(x))


@scenario(breaks=True)
def a_view_of_a_leaf_is_written(c):
    x = leaf(3)

    def fn(x):
        y = x * 2
        x[0].add_(1)
        return y

    c(lambda x: x + 1)(x)
    return x, error_of(lambda: c(fn)(x))


@scenario(breaks=True)
def requires_grad_inside(c):
    x = torch.randn(3)

    def fn(x):
        y = (x * 2).requires_grad_()
        return y, (y * y).sum()

    y, s = c(fn)(x)
    s.backward()
    return x, y, y.is_leaf, s


@scenario(breaks=True)
def requires_grad_of_an_input(c):
    x = torch.randn(3)

    def fn(x):
        y = x + 1
        x.requires_grad_()
        return (x * y).sum()

    s = c(fn)(x)
    s.backward()
    return x, s


@scenario
def tied_weights(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 5)
            self.head = nn.Linear(5, 7)
            self.head.weight = self.embed.weight

        def forward(self, i):
            return self.head(self.embed(i).tanh())

    m = M()
    f = c(m)
    for _ in range(2):
        nn.functional.cross_entropy(f(torch.tensor([1, 2, 5])), torch.tensor([2, 0, 6])).backward()
    return m


@scenario
def inputs_that_need_no_gradient(c):
    m = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    m[0].weight.requires_grad_(False)
    m[2].bias.requires_grad_(False)
    x = leaf(3, 4)
    f = c(m)
    f(x).sum().backward()
    m[0].weight.requires_grad_(True)
    m[2].requires_grad_(False)
    f(x.detach()).sum().backward()
    return m, x


@scenario
def a_leaf_view_is_not_written_but_read(c):
    x = leaf(4, 4)
    y = c(lambda x: x.t().contiguous().view(2, 8)[1] @ x.reshape(8, 2))(x)
    y.sum().backward()
    return x, y


@scenario
def complex_numbers(c):
    x = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    y = c(lambda x: (x * x.conj()).real.sum() + torch.view_as_real(x * 2).square().sum())(x)
    y.backward()
    return x, y


@scenario
def a_batch_norm_used_twice(c):
    bn, linear = nn.BatchNorm1d(4), nn.Linear(4, 4)
    f = c(lambda x: bn(linear(bn(x))))
    for _ in range(2):
        f(torch.randn(5, 4)).sin().sum().backward()
    return bn, linear


@scenario
def a_slow_copy_of_the_weights(c):
    m, slow = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)

    def loss(x):
        with torch.no_grad():
            for p, q in zip(m.parameters(), slow.parameters(), strict=True):
                q.lerp_(p, 0.1)
            target = slow(x)
        return (m(x) - target).square().mean()

    f = c(loss)
    for _ in range(2):
        f(torch.randn(3, 4)).backward()
    return m, slow


@scenario
def modules_that_write_in_place(c):
    m = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3),
                      nn.SiLU(inplace=True))
    f = c(m)
    for _ in range(2):
        f(torch.randn(2, 3, 8, 8)).square().mean().backward()
    return m


test_memory = scenario.test()


@pytest.mark.filterwarnings("error:.*runs in eager's kernel")
@pytest.mark.parametrize("scenario", [
    in_place_through_a_view, a_part_of_an_input_is_written, a_written_input_that_is_no_leaf, the_same_tensor_twice,
    only_views_of_an_intermediate_leave, inputs_take_the_value_of_inputs, a_batch_norm_used_twice,
])
def test_in_machine_code(scenario):
    agree(scenario, backend="native", rtol=1e-4)
