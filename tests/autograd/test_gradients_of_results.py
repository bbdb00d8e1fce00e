"""Gradients with respect to tensors that the same function has made: the graph ends before it uses such a tensor."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith


def _net(*sizes):
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])]
    return nn.Sequential(*[m for layer in layers for m in (layer, nn.Tanh())][:-1])


def fast_weights(x):
    model = _net(3, 4, 1)

    def fn(x):
        fast = {k: p * 1 for k, p in model.named_parameters()}
        for _ in range(2):
            loss = F.mse_loss(torch.func.functional_call(model, fast, (x,)), x[:, :1])
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {k: p - 0.1 * g for (k, p), g in zip(fast.items(), grads)}
        return torch.func.functional_call(model, fast, (x,)).square().sum()

    return fn, list(model.parameters())


def gradient_penalty(x):
    model, generator = _net(3, 4, 1), nn.Linear(3, 3)

    def fn(x):
        between = 0.25 * x + 0.75 * generator(x)
        score = model(between)
        grad, = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True)
        return (grad.norm(2, dim=1) - 1).square().mean() + score.mean()

    return fn, [*model.parameters(), *generator.parameters()]


def three_orders(x):
    def fn(x):
        a = x * 2
        first, = torch.autograd.grad((a ** 4).sum(), a, create_graph=True)
        second, = torch.autograd.grad(first.sum(), a, create_graph=True)
        return second.sin().sum()

    return fn, [x]


def several(x):
    def fn(x):
        a = x * 2
        b = a.sin()
        grads = torch.autograd.grad((a * b).sum(), (b, a, x), create_graph=True)
        return sum(g.square().sum() for g in grads)

    return fn, [x]


def kept(x):
    def fn(x):
        a = x * 2
        loss = a.exp().sum()
        a.retain_grad()
        loss.backward(retain_graph=True)
        return loss + a.grad.sum()

    return fn, [x]


def only_kept(x):
    def fn(x):
        a = x * 2
        a.retain_grad()
        loss = a.exp().sum()
        loss.backward(inputs=[a], retain_graph=True)
        return loss * a.grad.sum() * a.retains_grad

    return fn, [x]


def hooked(x):
    def fn(x):
        a = x * 2
        loss = a.exp().sum()
        a.register_hook(lambda grad: grad * 3)
        return loss

    return fn, [x]


def behind_another_break(x):
    def fn(x):
        a = x * 2
        loss = a.exp().sum()
        torch.compiler.disable(lambda: None)()
        grad, = torch.autograd.grad(loss, a, create_graph=True)
        return grad.square().sum()

    return fn, [x]


PROGRAMS = [fast_weights, gradient_penalty, three_orders, several, kept, only_kept, hooked, behind_another_break]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program(program, dynamic):
    def results(compile):
        x = torch.linspace(-1, 1, 12).view(4, 3).requires_grad_()
        fn, leaves = program(x)
        out = compile(fn)(x)
        return out, torch.autograd.grad(out, leaves), x.grad

    torch.testing.assert_close(results(lambda fn: framesmith.compile(fn, dynamic=dynamic)), results(lambda fn: fn),
                               rtol=1e-5, atol=1e-6)


def test_a_module_that_uses_the_tensor_is_captured_whole():
    model = _net(3, 4, 4, 1)

    def fn(x):
        a = x * 2
        return torch.autograd.grad(model(a).sum(), a)[0]

    found = framesmith.explain(fn)(torch.ones(2, 3, requires_grad=True))  # kinds of operators are listed
    assert [len(r.operators) for r in found.records if r.operators] == [1, 2, 1]


@pytest.mark.parametrize("allow", [True, False])
def test_tensors_that_were_not_used(allow):
    def fn(x):
        a, b = x * 2, x * 3
        return torch.autograd.grad(a.square().sum(), (a, b), allow_unused=allow)

    x = torch.ones(3, requires_grad=True)
    if allow:
        assert torch.equal(framesmith.compile(fn)(x)[0], fn(x)[0])
    else:
        with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
            framesmith.compile(fn)(x)


def test_gradient_of_a_sum_whose_sizes_vary():
    """The graph of gradients has sizes of an input that it does not read."""
    x = torch.ones(4, 3, requires_grad=True)
    y = framesmith.compile(lambda x: x.sum(), dynamic=True)(x * 1)
    grad, = torch.autograd.grad(y, x, create_graph=True)
    assert torch.equal(grad, torch.ones(4, 3))
