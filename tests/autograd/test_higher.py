"""Derivatives of derivatives equal eager's."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd import grad

from tests.autograd.driver import agree, error_of
from tests.programs import Programs

scenario = Programs(agree)


def leaf(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def net(*last):
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 1), *last).double()


@scenario
def gradient_penalty(c):
    m = net()
    f = c(m)
    for _ in range(2):
        x = leaf(5, 3)
        y = f(x)
        g, = grad(y.sum(), x, create_graph=True)
        (y.mean() + (g.norm(2, dim=1) - 1).square().mean()).backward()
    return m, x


@scenario
def physics_informed(c):
    m = net()
    f = c(m)
    x = leaf(6, 3)
    u = f(x)
    du, = grad(u.sum(), x, create_graph=True)
    ddu, = grad(du[:, 0].sum(), x, create_graph=True)
    (ddu[:, 0] + u.squeeze() * du[:, 1]).square().mean().backward()
    return m, x


@scenario
def penalty_through_group_norm(c):
    norms = nn.GroupNorm(2, 8), nn.Tanh(), nn.GroupNorm(4, 8, affine=False)
    m = nn.Sequential(nn.Conv2d(3, 8, 3), *norms, nn.Flatten(), nn.Linear(128, 1)).double()
    x = leaf(2, 3, 6, 6)
    g, = grad(c(m)(x).sin().sum(), x, create_graph=True)
    (g.flatten(1).norm(2, dim=1) - 1).square().mean().backward()
    return m, x


@scenario
def derivatives_of_products_with_zeros(c):
    calls = (lambda x: x.prod(), lambda x: x.view(2, 2).prod(0),
             lambda x: x.view(2, 2).mT.prod(1, keepdim=True, dtype=torch.float64))  # fmt: skip
    found = []
    for zeros in range(3):
        x = torch.arange(1.0, 5.0).masked_fill(torch.arange(4) < zeros, 0.0).requires_grad_()
        for f in calls:
            g, = grad(c(f)(x).sum(), x, create_graph=True)
            found += [g, *grad((g * torch.arange(4)).sum(), x)]
    return found


@scenario
def no_derivative_of_any_order_goes_through_detach(c):
    x = leaf(4)
    y = c(lambda x: (x * (x * x).detach() + (x + 0).detach() * x.exp()).sin())(x)
    a, = grad(y.sum(), x, create_graph=True)
    b, = grad(a.sum(), x, create_graph=True)
    b.sum().backward()
    return x, a, b


@scenario
def derivatives_of_sparse_gradients(c):
    x = leaf(5, 4)
    g, = grad(c(lambda x: nn.functional.embedding(torch.tensor([0, 3, 3]), x, sparse=True) ** 3)(x).sum(), x,
              create_graph=True)
    (g.to_dense() ** 2).sum().backward()
    return g.is_sparse, g.to_dense(), x.grad.to_dense()


@scenario
def third_derivative(c):
    x = leaf(4)
    y = c(lambda x: (x.sin() * x.exp()).sum())(x)
    a, = grad(y, x, create_graph=True)
    b, = grad(a.sum(), x, create_graph=True)
    d, = grad(b.sum(), x, create_graph=True)
    d.square().sum().backward()
    return x, a, b, d


@scenario
def hessian_vector_product(c):
    m = net()
    x, f = torch.randn(5, 3, dtype=torch.float64), c(m)
    params = list(m.parameters())
    grads = grad(f(x).square().mean(), params, create_graph=True)
    v = [torch.randn_like(p) for p in params]
    return grad(sum((g * u).sum() for g, u in zip(grads, v, strict=True)), params)


@scenario
def a_row_of_the_hessian_with_retained_graph(c):
    x = leaf(4)
    y = c(lambda x: (x * x * x.roll(1)).sum())(x)
    g, = grad(y, x, create_graph=True)
    return [grad(g[i], x, retain_graph=True)[0] for i in range(4)], g


@scenario
def meta_learning(c):
    w = leaf(3, 1)
    x = torch.randn(5, 3, dtype=torch.float64)

    def loss(w, x):
        return (x @ w).tanh().square().mean()

    f = c(loss)
    fast = w
    for _ in range(3):
        g, = grad(f(fast, x), fast, create_graph=True)
        fast = fast - 0.1 * g
    f(fast, x).backward()
    return w


@scenario
def dropout_in_it(c):
    m = net(nn.Dropout(0.5))
    x = leaf(5, 3)
    y = c(m)(x)
    g, = grad(y.square().sum(), x, create_graph=True)
    mask = (y != 0).double().detach()
    again = (nn.Sequential(*list(m)[:-1])(x) * mask * 2).square().sum()
    h, = grad(again, x, create_graph=True)
    a = grad(g.square().sum(), list(m.parameters()), allow_unused=True)
    b = grad(h.square().sum(), list(m.parameters()), allow_unused=True)
    return [torch.allclose(p, q) for p, q in zip((g, *a[:-1]), (h, *b[:-1]), strict=True)]


@scenario
def batch_norm_twice(c):
    m = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sigmoid(), nn.Linear(4, 1)).double()
    f = c(m)
    for _ in range(2):
        x = leaf(5, 3)
        g, = grad(f(x).sum(), x, create_graph=True)
        g.square().sum().backward()
    return m, x


@scenario
def convolution_twice(c):
    m = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.LeakyReLU(0.2), nn.AvgPool2d(2), nn.Flatten(),
                      nn.Linear(12, 1)).double()
    x = leaf(2, 2, 4, 4)
    g, = grad(c(m)(x).sum(), x, create_graph=True)
    g.square().sum().backward()
    return m, x


@scenario
def layer_norm_and_softmax_twice(c):
    m = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Softmax(-1), nn.Linear(4, 2)).double()
    x = leaf(5, 3)
    g, = grad(c(m)(x)[:, 0].sum(), x, create_graph=True)
    g.square().sum().backward()
    return m, x


@scenario
def only_some_outputs(c):
    x, w = leaf(4), leaf(4)
    y, z = c(lambda x, w: ((x * w).sin(), (x + w).exp()))(x, w)
    g, = grad(y.sum(), x, create_graph=True)
    h = grad(g.sum(), [x, w], retain_graph=True)
    z.sum().backward()
    return h, x, w


@scenario
def of_the_tangent(c):
    x = leaf(4)
    v = leaf(4)
    y = c(lambda x: x.sin() * x)(x)
    g, = grad(y, x, v, create_graph=True)
    return grad(g.sum(), v)


@scenario
def create_graph_in_backward(c):
    x = leaf(4)
    c(lambda x: (x ** 3).sum())(x).backward(create_graph=True)
    first = x.grad
    g, = grad(first.sum(), x)
    x.grad = None
    return first, g


@scenario
def an_input_changed_before_the_second(c):
    x, w = leaf(4), leaf(4)
    y = c(lambda x, w: (x * w).sin().sum())(x, w)
    with torch.no_grad():
        w.mul_(2)
    return error_of(lambda: grad(y, x, create_graph=True))


@scenario
def a_written_buffer_in_it(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, dtype=torch.float64))
            self.register_buffer("k", torch.ones(3, dtype=torch.float64))

        def forward(self, x):
            y = x * self.k.clone() * self.w
            self.k.add_(1)
            return y.sin() * self.k.clone()

    m = M()
    f = c(m)
    for _ in range(2):
        x = leaf(3)
        g, = grad(f(x).sum(), x, create_graph=True)
        g.square().sum().backward()
    return m, x


@scenario
def gradcheck_of_both_orders(c):
    f = c(lambda x, w: torch.tanh(x @ w).sum(1))
    x, w = leaf(3, 4), leaf(4, 2)
    return torch.autograd.gradcheck(f, (x, w)), torch.autograd.gradgradcheck(f, (x, w))


@scenario(breaks=True)
def grad_called_inside(c):
    m = net()

    def penalty(x):
        y = m(x)
        g, = grad(y.sum(), x, create_graph=True)
        return y.mean() + (g.norm(dim=1) - 1).square().mean()

    x = leaf(5, 3)
    c(penalty)(x).backward()
    return m, x


@scenario(breaks=True)
def transforms_over_what_requires_grad(c):
    x, w = leaf(3, 4), leaf(4)

    def fn(x, w):
        y = torch.func.vmap(lambda r: (r * w).sum())(x)
        g = torch.func.grad(lambda v: (v * v * w).sum())(x[0])
        return (y.sum() + g.sin().sum()) * 2

    c(fn)(x, w).backward()
    c(lambda x: x.sin())(x).sum().backward()
    return x, w


test_higher = scenario.test()
