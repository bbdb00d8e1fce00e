"""Compiled code under function transforms and forward-mode AD, and backwards whose tangents are no plain tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad, grad
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call, jacfwd, jacrev, jvp, vjp, vmap

from tests.autograd.driver import agree
from tests.programs import Programs

scenario = Programs(agree)
X, V = torch.linspace(-1, 1, 6).reshape(2, 3), torch.linspace(0, 1, 6).reshape(2, 3)
BATCH = torch.stack([V, V * 2, V - 1])


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2))


def written(x):
    y = x * 2
    y[0].mul_(3)
    return y.add_(x).reshape(3, 2).t()


def leaf():
    return X.clone().requires_grad_()


@scenario
def batched_jacobians(c):
    return [jacobian(c(f), X, vectorize=True, create_graph=again) for f in (net(), written, torch.sin)
            for again in (False, True)]


@scenario
def batched_hessians(c):
    f = c(lambda x: written(x).sin().sum())
    return hessian(f, X, vectorize=True), hessian(f, X)


@scenario
def batched_tangents(c):
    x, m = leaf(), net()
    y, z = c(lambda x: (m(x), written(x)))(x)
    pairs = torch.stack([torch.ones_like(y), torch.zeros_like(y)])
    first = grad(y, [x, *m.parameters()], pairs, is_grads_batched=True, retain_graph=True)
    both = grad([y, z], x, [pairs, torch.ones(2, *z.shape)], is_grads_batched=True, retain_graph=True)
    return first, both, grad(y, x, pairs[0])


@scenario
def batched_tangents_of_a_differentiable_backward(c):
    x = leaf()
    y = c(lambda x: x.sin() * x)(x)
    g, = grad(y, x, BATCH, is_grads_batched=True, create_graph=True)
    h, = grad(y.sum(), x, create_graph=True)
    return grad(g.sin().sum(), x, retain_graph=True), grad(h, x, BATCH, is_grads_batched=True)


@scenario
def tangents_in_a_transform(c):
    x = leaf()
    y = c(lambda x: x.sin())(x)
    mapped = vmap(lambda v: grad(y, x, v, retain_graph=True)[0])(BATCH)
    return mapped, vmap(lambda k: grad(y.sum(), x, retain_graph=True)[0] * k)(torch.ones(2))


@scenario
def a_function_of_its_own_and_batched_tangents(c):
    class Tripled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return g * 3 * ctx.saved_tensors[0]

    x = leaf()
    return grad(c(lambda x: Tripled.apply(x) * 2)(x), x, BATCH, is_grads_batched=True)


@scenario
def sparse_and_absent_tangents(c):
    x = leaf()
    y = c(lambda x: x * 2)(x)
    nn.functional.embedding(torch.tensor([1]), y, sparse=True).sum().backward(retain_graph=True)
    zeros, = grad(y, x, torch._efficientzerotensor(x.shape))
    return x.grad.is_sparse, x.grad.to_dense(), zeros + 0


@scenario
def forward_mode_jacobians(c):
    f = c(lambda x: written(x).sin().sum())
    return (f(X), jacobian(c(written), X, vectorize=True, strategy="forward-mode"),
            hessian(f, X, vectorize=True, outer_jacobian_strategy="forward-mode"))


@scenario
def dual_tensors(c):
    f, out = c(lambda x: x.sin() * x), []
    for _ in range(2):
        out.append(f(X))
        with forward_ad.dual_level():
            out += [*forward_ad.unpack_dual(f(forward_ad.make_dual(X, V))), f(X)]
    return out


@scenario
def dual_tensors_that_are_not_arguments(c):
    held = [X]
    f = c(lambda x: x * held[0])
    out = [f(V)]
    with forward_ad.dual_level():
        held[0] = forward_ad.make_dual(X, V)
        return out, tuple(forward_ad.unpack_dual(f(V)))


@scenario
def dual_tangents(c):
    x = leaf()
    y = c(lambda x: x.sin())(x)
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(grad(y, x, forward_ad.make_dual(torch.ones_like(y), V))[0]))


@scenario
def a_level_within(c):
    def f(x, v):
        y = x * 2
        with forward_ad.dual_level():
            value, tangent = forward_ad.unpack_dual((forward_ad.make_dual(x, v) + y).sin())
        return y, value, tangent, tangent * 2

    return c(f)(X, V)


@scenario
def transforms_of_compiled_code(c):
    f = c(lambda x: x.sin().sum(1))
    value, pull = vjp(f, X)
    return (jacrev(f)(X), jacfwd(f)(X), jvp(f, (X,), (V,)), value, pull(value), vmap(f)(BATCH), f(X),
            torch.func.grad(lambda k: (f(X) * k).sum())(torch.tensor(2.0)),
            torch.func.hessian(c(lambda x: x.sin().sum()))(X))


@scenario
def functional_calls(c):
    m = net()
    f, halved = c(m), {name: p.detach() / 2 for name, p in m.named_parameters()}
    ensemble = {name: torch.stack([p, p * 2]) for name, p in halved.items()}

    def loss(p, x):
        return functional_call(f, p, (x,)).square().sum()

    return (functional_call(f, halved, (X,)), f(X), jacrev(loss)(halved, X), vmap(loss, (0, None))(ensemble, X),
            vmap(torch.func.grad(loss), (None, 0))(halved, X))


@scenario.each()
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_same_as_eager(run, backend):
    run(breaks=None, backend=backend)
