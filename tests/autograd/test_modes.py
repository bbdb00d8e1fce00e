"""Grad modes, graph breaks and what is not captured, in the middle of a training step."""

from __future__ import annotations

import torch
from torch import nn

from tests.autograd.driver import agree, error_of
from tests.programs import Programs

scenario = Programs(agree)
X = torch.linspace(-1, 1, 12).reshape(3, 4)


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


@scenario
def no_grad_inside(c):
    x, w = leaf(3, 4), leaf(4)

    def fn(x, w):
        y = x * w
        with torch.no_grad():
            k = y.mean(1, keepdim=True)
        return y - k, k, k.requires_grad, k * w

    y, k, flag, z = c(fn)(x, w)
    (y.square().sum() + z.sum()).backward()
    return x, w, y, k, flag


@scenario
def enable_grad_inside_no_grad(c):
    x, w = leaf(3, 4), leaf(4)

    def fn(x, w):
        a = x * w
        with torch.enable_grad():
            y = x * w * a
            h = x * 2
            v = h[0]
        return a, y, h, v, y + 1

    f = c(fn)
    with torch.no_grad():
        a, y, h, v, z = f(x, w)
    (y.square().sum() + v.sum() + h.sum()).backward()
    return x, w, a, y, v.detach(), v.requires_grad, z


@scenario
def views_of_inputs_in_the_other_mode(c):
    x = leaf(3, 4)

    def fn(h):
        with torch.enable_grad():
            v = h[0]
        return v, h * 2

    def gn(h):
        with torch.no_grad():
            v = h[0]
        return v, h * 2

    h = x * 2
    f, g = c(fn), c(gn)
    with torch.no_grad():
        v, _ = f(h)
    w, _ = g(h)
    v.sum().backward()
    return x, v.requires_grad, w.requires_grad, w


@scenario
def set_grad_enabled_inside(c):
    x = leaf(3)

    def fn(x, on):
        torch.set_grad_enabled(on)
        y = x * 2
        torch.set_grad_enabled(True)
        return y, x * 3

    f = c(fn)
    a, b = f(x, False)
    d, e = f(x, True)
    (b + d + e).sum().backward()
    return x, a, b, d, e


@scenario
def decorated_with_no_grad(c):
    x, w = leaf(3), leaf(3)

    @torch.no_grad()
    def norm(v):
        return v / v.norm()

    y = c(lambda x, w: x * norm(w) * w)(x, w)
    y.sum().backward()
    return x, w, y


@scenario(breaks=True)
def a_block_that_spans_a_break(c):
    x, w = leaf(3, 4), leaf(4)

    def fn(x, w):
        y = x * w
        with torch.no_grad():
            k = y * 2
            print(end="")
            torch._dynamo.graph_break() if False else id(k)
            n = k + y
            if n.sum() > -1e9:
                n = n + 1
        return y * n

    y = c(fn)(x, w)
    y.sum().backward()
    return x, w, y


@scenario(breaks=True)
def a_break_in_the_middle(c):
    m = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))

    def fn(x):
        h = m[0](x).relu()
        if h.sum() > 100:
            h = h * 2
        h = h + 1
        s = h.mean().item()
        return m[1](h) * s

    f = c(fn)
    for _ in range(3):
        f(X).square().sum().backward()
    return m


@scenario(breaks=True)
def a_break_after_an_in_place_write(c):
    x, w = leaf(3, 4), leaf(4)

    def fn(x, w):
        h = x * w
        v = h[0]
        h.mul_(2)
        if h.sum() > 100:
            h = h + 1
        h.add_(w)
        return h * v

    y = c(fn)(x, w)
    y.sum().backward()
    return x, w, y


@scenario(breaks=True)
def a_break_under_create_graph(c):
    m = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()

    def fn(x):
        h = m[1](m[0](x))
        if h.sum() > 100:
            h = h * 2
        return m[2](h * h)

    x = X.double().clone().requires_grad_()
    f = c(fn)
    g, = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    g.square().sum().backward()
    return m, x


FORBIDDEN = {
    "chunk": lambda x: x.chunk(2)[0].mul_(2), "split": lambda x: x.split(2)[1].add_(1),
    "unbind": lambda x: x.unbind(0)[0].mul_(2),
    "a view of one": lambda x: x.split(2)[0].view(-1).mul_(2), "iteration": lambda x: next(iter(x)).mul_(2),
    "made in no_grad": lambda x: quiet_view(x).mul_(2),
}
ALLOWED = {"tensor_split": lambda x: x.tensor_split(2)[0].mul_(2), "slice": lambda x: x[:2].mul_(2),
           "detached": lambda x: x.detach().split(2)[0].mul_(2)}


def quiet_view(x):
    with torch.no_grad():
        return x.view(-1)


@scenario(breaks=None)
def views_that_may_not_be_written(c):
    def f(x, write):
        y = x * 2
        write(y)
        return y.sin().sum()

    found = {}
    for name, write in {**FORBIDDEN, **ALLOWED}.items():
        x, fn = leaf(4, 4), c(lambda x, write=write: f(x, write))
        found[name] = error_of(lambda x=x, fn=fn: fn(x).backward()), x
        with torch.no_grad():
            found[name] += (fn(x),)
    return found


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * x * k

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return 5 * g * x * ctx.k, None  # not the true one


@scenario(breaks=None)
def an_autograd_function(c):
    x = leaf(3)

    def fn(x):
        y = x.sin()
        return Twice.apply(y, 3) * 2

    f = c(fn)
    for _ in range(2):
        f(x).sum().backward()
    return x


@scenario(breaks=None)
def hooks_registered_inside(c):
    x, seen = leaf(3), []

    def fn(x):
        y = x * 2
        y.register_hook(lambda g: g * 10)
        return y.sin()

    c(fn)(x).sum().backward()
    return x, seen


@scenario(breaks=True)
def a_backward_inside(c):
    m = nn.Linear(4, 2)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    f = c(step)
    return [f(X) for _ in range(3)], m


@scenario(breaks=None)
def inference_tensors_in_training(c):
    w = leaf(4)
    with torch.inference_mode():
        x = torch.randn(3, 4)
    f = c(lambda x, w: x + w)
    y = f(x, w)
    y.sum().backward()
    g = c(lambda x, w: x * w)
    errors = [error_of(lambda: g(x, w))]
    for h in (lambda x, w: torch.dropout(x * w, 0.5, True), lambda x, w: torch.dropout(x, 0.5, True) * w):
        h = c(h)
        h(torch.ones(3, 4), w)
        errors += [error_of(lambda h=h: h(x, w)), torch.rand(1)]  # no number is drawn that eager does not draw
    return w, y, errors


@scenario(breaks=None)
def inference_mode_and_back(c):
    m = nn.Linear(4, 2)
    f = c(m)
    with torch.inference_mode():
        a = f(X).is_inference()
    f(X).sum().backward()
    with torch.inference_mode():
        b = f(X).is_inference()
    return m, a, b


@scenario
def an_argument_that_begins_to_require_grad(c):
    f = c(lambda x: (x * x).sum())
    out = []
    x = torch.randn(3)
    out.append(f(x).requires_grad)
    x.requires_grad_()
    y = f(x)
    y.backward()
    out.append(y.requires_grad)
    x.requires_grad_(False)
    out.append(f(x).requires_grad)
    return x, out


@scenario
def a_frozen_part(c):
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    f = c(m)
    f(X).sum().backward()
    m[0].requires_grad_(False)
    m.zero_grad()
    f(X).sum().backward()
    m[0].requires_grad_(True)
    f(X).sum().backward()
    return m


@scenario
def dropout_and_its_seed(c):
    m = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 1))
    f = c(m)
    x = torch.randn(3, 4, requires_grad=True)
    torch.manual_seed(1)
    y = f(x)
    y.sum().backward()
    g = x.grad.clone()
    x.grad = None
    torch.manual_seed(1)
    f(x).sum().backward()
    return torch.equal(g, x.grad), len(y)


@scenario
def losses_and_indices(c):
    m = nn.Sequential(nn.Embedding(10, 6), nn.Flatten(), nn.Linear(18, 5))
    f = c(lambda i, t: nn.functional.cross_entropy(m(i), t, label_smoothing=0.1))
    for _ in range(2):
        f(torch.randint(0, 10, (4, 3)), torch.randint(0, 5, (4,))).backward()
    return m


@scenario
def recurrent_layers_under_autocast(c):
    layers = nn.ModuleList([nn.LSTM(4, 3, batch_first=True), nn.GRU(4, 3), nn.RNN(4, 3)])
    x = leaf(2, 3, 4)
    for layer in layers:
        with torch.autocast("cpu", torch.bfloat16):
            y, _ = c(layer)(x)
        y.float().square().sum().backward()
    return x, layers


@scenario
def attributes_of_tensors_in_it(c):
    x, w = leaf(3), torch.randn(3)

    def fn(x, w):
        y = x * w
        leaves = x.is_leaf, y.is_leaf, w.is_leaf
        return y, y.requires_grad, w.requires_grad, *leaves, y.detach().requires_grad, x.grad is None

    y, *flags = c(fn)(x, w)
    y.sum().backward()
    return x, flags


@scenario
def an_embedding_that_is_renormed(c):
    table, linear = nn.Embedding(6, 4, max_norm=1.0), nn.Linear(4, 2)
    f = c(lambda i: linear(table(i) * 2).sin())
    for _ in range(2):
        f(torch.tensor([1, 2, 2, 5])).sum().backward()
    return table, linear


test_modes = scenario.test()
