"""torch.func's transforms in captured code."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

import framesmith
from tests.capture.agree import check
from tests.programs import Programs

X, W = torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(-2, 1, 16).reshape(4, 4)
LINEAR = nn.Linear(4, 2).requires_grad_(False)
TRAINED = nn.Linear(4, 2)
DOUBLED = vmap(lambda a: a.cumsum(0) * 2)
program = Programs(check)


test_same_as_eager = program.test()


@program(X, W)
def mapped(x, w):
    return vmap(lambda r: (w @ r).relu().sum()
                + r.max())(x), vmap(torch.dot, in_dims=(0, None))(x, w[0]), vmap(vmap(lambda a: a * 2))(x)


@program(X, W)
def mapped_over_other_dimensions(x, w):
    return torch.vmap(lambda a, b: (a + b, a * b), in_dims=(0, 1), out_dims=1)(x, w[:, :3]), vmap(lambda a: a * 2,
                                                                                                  chunk_size=2)(x)


@program(X, W)
def mapped_with_containers_and_keywords(x, w):
    f = vmap(lambda a, s=1, *, b: {"y": a * s + b["q"], "z": [a.softmax(-1).topk(2), (a,)]})
    return f(x, b={"q": x}), f.__name__


@program(X, W)
def gradients(x, w):
    return (grad(lambda a: (a.sin() * w[0, 0]).sum())(x),
            grad_and_value(lambda a, b: (a @ b).pow(2).sum(), argnums=(0, 1))(x, w),
            vmap(grad(lambda a: (w @ a).tanh().sum()))(x), grad(lambda a: grad(lambda b: (b**3).sum())(a).sum())(x))


@program(X, grad=True)
def gradients_in_grad_mode(x):
    return grad(lambda a: (a * a).sum())(x)


@program(X)
def gradient_with_other_results(x):
    return grad(lambda a: (a.sum(), {"k": a * 2}), has_aux=True)(x)


@program(X, W)
def products(x, w):
    y, pull = vjp(lambda a: a.sin() @ w, x)
    return jvp(lambda a: a.sin() @ w, (x,), (torch.ones_like(x),)), y, pull(torch.ones_like(y))


@program(X, W)
def jacobians(x, w):
    def f(a):
        return w @ a.sin()

    return jacrev(f)(x[0]), jacfwd(f)(x[0]), hessian(lambda a: (a**3).sum())(x[0])


@program(X)
def of_modules(x):
    return vmap(LINEAR)(x), jacrev(LINEAR)(x[0]), functional_call(LINEAR, {"weight": LINEAR.weight * 2}, (x,))


@program(X)
def with_trained_parameters_and_no_grad(x):
    with torch.no_grad():
        return grad(lambda a: TRAINED(a).sum())(x)


@program(X)
def an_ensemble(x):
    weights, buffers = stack_module_state([LINEAR, LINEAR])
    return vmap(lambda p, b: functional_call(LINEAR, (p, b), (x,)))(weights, buffers)


@program(X, W)
def callables(x, w):
    add = functools.partial(torch.add, w[0])
    return vmap(add)(x), hasattr(add, "__name__"), grad(torch.sum)(x), vmap(w.mv)(x), DOUBLED(x), DOUBLED


@program(X)
def randomness(x):
    return (vmap(lambda a: a + torch.rand(4), randomness="different")(x),
            vmap(lambda a: torch.dropout(a, 0.5, True), randomness="same")(x),
            torch.rand(2))


@program(X)
def side_effects(x):
    seen = []
    y = x.clone()
    vmap(lambda a: (seen.append(a.shape), a.add_(1))[1])(y)
    return y, seen


@program(X, raises=RuntimeError)
def data_within(x):
    return vmap(lambda a: a if a.sum() > 0 else -a)(x)


@program(X, breaks=True)
def data_within_a_gradient(x):
    return grad(lambda a: (a if a.sum() > 0 else -a * 2).sum())(x)


@program(X, raises=RuntimeError)
def an_item_within(x):
    return vmap(lambda a: a.sum().item())(x)


@program(X, raises=ValueError)
def no_tensor_as_a_result(x):
    return vmap(lambda a: 3)(x)


@program(X, raises=ZeroDivisionError)
def an_error_within(x):
    return vmap(lambda a: a / (1 // 0))(x)


@program(X, breaks=True)
def a_wrapper_that_escapes(x):
    seen = []
    vmap(lambda a: (seen.append(a), a)[1])(x)
    framesmith.graph_break()
    return len(seen), x + 1


@program(X, breaks=True)
def autograd_function_within(x):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g * 3

    return grad(lambda a: Twice.apply(a).sum())(x)


def test_the_level_is_left_after_a_break():
    fast = framesmith.compile(data_within_a_gradient, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(fast(X), data_within_a_gradient(X))
    assert torch._C._functorch.maybe_current_level() is None


def test_what_vjp_gives_may_leave():
    fast = framesmith.compile(lambda x: vjp(torch.sin, x), backend="eager")
    (y, pull), (z, plain) = fast(X), vjp(torch.sin, X)
    assert torch.equal(y, z) and torch.equal(pull(y)[0], plain(z)[0])


@pytest.mark.parametrize("fn", [mapped, gradients, products, jacobians], ids=lambda fn: fn.__name__)
def test_native_code(fn):
    torch.testing.assert_close(framesmith.compile(fn, fullgraph=True)(X, W), fn(X, W))
