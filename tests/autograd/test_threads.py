"""Backwards that are recorded and compiled in one thread while another compiles: one at a time, and right."""

from __future__ import annotations

import threading

import torch

import framesmith
from framesmith.autograd import node, repeated
from framesmith.util.locks import COMPILE_LOCK


def several(x):
    return x.sin() * 2, x.cos() * 3


def test_graphs_are_recorded_one_at_a_time(monkeypatch):
    owned = []

    def trace_joint(*args):
        owned.append(COMPILE_LOCK._is_owned())
        return original(*args)

    original = node.trace_joint
    for module in (node, repeated):
        monkeypatch.setattr(module, "trace_joint", trace_joint)
    x = torch.randn(4).requires_grad_()
    first, second = framesmith.compile(several, backend="eager")(x)
    first.sum().backward(retain_graph=True)  # a part of the backward
    g, = torch.autograd.grad(second.sum(), x, create_graph=True)
    g.sum().backward()
    assert len(owned) >= 3 and all(owned)


def test_backwards_in_one_thread_and_compilations_in_another():
    x = torch.linspace(0, 1, 8)
    wrong, stop = [], threading.Event()

    def compile_things():
        k = 0
        while not stop.is_set():
            k += 1
            w = x.clone().requires_grad_()
            loss = framesmith.compile(lambda w, k=k: (w * k).sin().sum(), backend="eager")(w)
            loss.backward()
            if not torch.allclose(w.grad, (x * k).cos() * k, atol=1e-4 * k):
                wrong.append(k)

    other = threading.Thread(target=compile_things)
    other.start()
    try:
        for _ in range(25):
            w = x.clone().requires_grad_()
            outs = framesmith.compile(lambda w: several(w), backend="eager")(w)
            for out, want in zip(outs, (2 * x.cos(), -3 * x.sin()), strict=True):
                g, = torch.autograd.grad(out.sum(), w, retain_graph=True)
                h, = torch.autograd.grad(out.sum(), w, create_graph=True)
                assert torch.allclose(g, want, atol=1e-5) and torch.allclose(h, want, atol=1e-5)
    finally:
        stop.set()
        other.join()
    assert not wrong and not torch.is_anomaly_enabled()
