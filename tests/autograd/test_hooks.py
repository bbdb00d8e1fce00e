"""Hooks and `requires_grad_` within captured code: each costs one break, and shows what eager shows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .driver import agree

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def leaf(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def hook_on_a_value(c):
    def fn(x):
        y = x * 2
        y.register_hook(lambda g: g * 10)
        return y.sin()

    x = leaf(3)
    c(fn)(x).sum().backward()
    return x


def hook_that_notes(c):
    seen = []

    def fn(x):
        y = x * 2
        y.register_hook(lambda g: seen.append(g.clone()))
        return y.sin()

    x = leaf(3)
    c(fn)(x).sum().backward()
    return x, seen


def hook_on_a_parameter(c):
    m = nn.Linear(4, 2)

    def fn(x):
        m.weight.register_hook(lambda g: g * 3)
        return m(x)

    c(fn)(X).sum().backward()
    return m


def requires_grad_of_an_input(c):
    def fn(x):
        x.requires_grad_()
        return (x * x).sum()

    x = torch.ones(3)
    c(fn)(x).backward()
    return x


def requires_grad_of_a_value(c):
    def fn(x):
        y = (x * 2).requires_grad_()
        return y, (y * y).sum()

    y, z = c(fn)(X)
    z.backward()
    return y


def requires_grad_assigned(c):
    def fn(x):
        h = x.detach() * 2
        h.requires_grad = True
        return h, (h * x).sum()

    x = leaf(3)
    h, z = c(fn)(x)
    z.backward()
    return h, x


def retained_gradient(c):
    def fn(x):
        h = x * 2
        h.retain_grad()
        return h, h.sin().sum()

    x = leaf(3)
    h, z = c(fn)(x)
    z.backward()
    return x, h.grad


ONE = [hook_on_a_value, hook_that_notes, hook_on_a_parameter, requires_grad_of_an_input, requires_grad_of_a_value,
       requires_grad_assigned,
       retained_gradient]


@pytest.mark.parametrize("scenario", ONE, ids=lambda f: f.__name__)
def test_one_break(scenario):
    ledger = agree(scenario, breaks=True)
    assert sum(len(record.breaks) for record in ledger.records) == 1 and not ledger.refusals


def hooks_on_modules(c):
    m, seen = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), []
    m[1].register_full_backward_hook(lambda mod, grads, outs: (grads[0] * 2,))
    m[2].register_full_backward_pre_hook(lambda mod, outs: (seen.append(outs[0].clone()), outs[0] * 3)[1:])
    c(m)(X).sum().backward()
    return m, seen


def a_parameter_frozen_for_a_while(c):
    m = nn.Linear(4, 2)

    def fn(x):
        m.weight.requires_grad_(False)
        y = m(x)
        m.weight.requires_grad_(True)
        return y

    c(fn)(X).sum().backward()
    return m


@pytest.mark.parametrize("scenario", [hooks_on_modules, a_parameter_frozen_for_a_while], ids=lambda f: f.__name__)
def test_same_as_eager(scenario):
    agree(scenario, breaks=True)
