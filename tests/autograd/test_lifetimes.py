"""What a training step keeps alive, and for how long."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import framesmith
from framesmith.autograd import node
from framesmith.autograd.joint import trace_joint


def net():
    return nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 2))


def step_of(fn):
    return framesmith.compile(fn, backend="eager", fullgraph=True)


def dead(ref):
    return ref() is None


def test_nothing_lives_after_the_loss():
    m = net()
    f = step_of(m)
    with torch.enable_grad():
        f(torch.randn(3, 4)).sum().backward()
        gc.collect()
        gc.disable()
        try:
            x = torch.randn(3, 4)
            h = x * 2
            y = f(h)
            refs = [weakref.ref(t) for t in (x, h, y)]
            loss = y.sum()
            loss.backward()
            del x, h, y, loss
            assert all(map(dead, refs))
        finally:
            gc.enable()


def test_a_backward_lets_go_of_what_was_kept():
    w = torch.randn(4, requires_grad=True)
    f = step_of(lambda h, w: (h * w).sin())
    with torch.enable_grad():
        for _ in range(2):
            h = torch.randn(3, 4)
            y = f(h, w)
            ref = weakref.ref(h)
            del h
            assert ref() is not None
            y.sum().backward()
            assert ref() is None
            del y


def test_what_a_later_result_shares_with_a_spent_one_is_let_go_of_without_another_trace(monkeypatch):
    traces = []
    monkeypatch.setattr(node, "trace_joint", lambda *how: traces.append(how) or trace_joint(*how))
    w = torch.randn(4, requires_grad=True)

    def both(h, w):
        y = (h * w).sin()
        return y, y.exp()

    with torch.enable_grad():
        h = torch.randn(3, 4)
        y, late = step_of(both)(h, w)
        ref = weakref.ref(h)
        del h
        y.sum().backward()
        assert ref() is None and not traces  # that of the first is derived from that of both
        with pytest.raises(RuntimeError, match="second time"):
            late.sum().backward()


def test_a_graph_without_a_backward_dies():
    m = net()
    f = step_of(m)
    with torch.enable_grad():
        f(torch.randn(3, 4)).sum().backward()
        x = torch.randn(3, 4)
        y = f(x)
        refs = [weakref.ref(x), weakref.ref(y)]
        del x, y
        assert all(map(dead, refs))


def test_an_input_that_no_gradient_needs_dies():
    w = torch.randn(4, requires_grad=True)
    f = step_of(lambda h, w: h + w)
    with torch.enable_grad():
        h = torch.randn(3, 4) * 2
        y = f(h, w)
        ref = weakref.ref(h)
        del h
        assert ref() is None
        y.sum().backward()


def test_the_model_dies_with_its_compiled_steps():
    m = net()
    f = step_of(m)
    with torch.enable_grad():
        for _ in range(2):
            f(torch.randn(3, 4)).sum().backward()
    refs = [weakref.ref(m), weakref.ref(m[0].weight)]
    del m, f
    gc.collect()
    assert all(map(dead, refs))


def test_higher_orders_leave_nothing():
    m = net().double()
    f = step_of(m)
    with torch.enable_grad():
        for _ in range(2):
            x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
            y = f(x)
            g, = torch.autograd.grad(y.sum(), x, create_graph=True)
            loss = g.square().sum()
            loss.backward()
            refs = [weakref.ref(t) for t in (x, y, g)]
            del x, y, g, loss
            gc.collect()
            assert all(map(dead, refs))
