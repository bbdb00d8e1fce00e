"""Gradients that go over rows and sum up over them, too: name -> (function, makes its inputs of rows, columns and a
type)."""

import torch

from framesmith.fake.recorder import Recorder
from framesmith.lower.lower import lower
from framesmith.prims.decompose import decompose
from framesmith.schedule.schedule import schedule
from framesmith.schedule.target import GPU
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.node import symint


def layer_norm(g, x, mean, rstd, w):
    """The operator takes statistics of the type of `x` on the CPU."""
    if x.dtype is torch.float32:
        return torch.ops.aten.native_layer_norm_backward(g, x, x.shape[-1:], mean, rstd, w, w, [True, True, True])
    n, gw = (x.float() - mean) * rstd, g.float() * w
    dx = rstd * (gw - gw.mean(-1, keepdim=True) - n * (gw * n).mean(-1, keepdim=True))
    return dx.to(x.dtype), (g.float() * n).flatten(0, -2).sum(0).to(w.dtype), g.float().flatten(0, -2).sum(0).to(
        w.dtype)


def rms_norm(g, x, w):
    n = x.float() * (x.float().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
    gw = (g * w).float()
    dx = (x.float().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * (gw - n * (gw * n).mean(-1, keepdim=True))
    return dx.to(x.dtype), (g.float() * n).flatten(0, -2).sum(0).to(w.dtype)


def softmax(g, y):
    """And the gradient of the bias before it."""
    d = (y * (g - (g * y).sum(-1, keepdim=True).to(g.dtype)))
    return d, d.flatten(0, -2).float().sum(0).to(y.dtype)


def dropped(g, x, mean, rstd, w, residual, mask):
    """Of a layer's end: its norm, the sum with what goes around it, dropout and a bias."""
    dx, dw, db = layer_norm(g, x, mean, rstd, w)
    around = dx + residual
    d = around * mask * 1.25
    return around, d, dw, db, d.flatten(0, -2).float().sum(0).to(w.dtype)


def statistics(x):
    return x.float().mean(-1, keepdim=True), (x.float().var(-1, keepdim=True, correction=0) + 1e-5).rsqrt()


def inputs(shape, dtype):
    """Gradient, input, mean, reciprocal deviation and weights of a norm."""
    generator = torch.Generator().manual_seed(sum(shape))
    g, x = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    return [g, x, *statistics(x), torch.randn(shape[-1], generator=generator).to(dtype)]


def _around(shape, dtype):
    g, residual = inputs(shape, dtype)[:2]
    return [*inputs(shape, dtype), residual + g, (residual > -0.5).to(dtype)]


ROWS = {
    "layer norm": (layer_norm, inputs),
    "rms norm": (rms_norm, lambda shape, dtype: [t for k, t in enumerate(inputs(shape, dtype)) if k in (0, 1, 4)]),
    "bias before a softmax": (softmax, lambda shape,
                              dtype: [inputs(shape, dtype)[0], inputs(shape, dtype)[1].softmax(-1)]),
    "norm, residual, dropout, bias": (dropped, _around),
}


def of_one_symbol(fn, given, target=GPU):
    """The program of `fn`, in which the first size of all inputs of several dimensions is one symbol."""
    env, fakes = ShapeEnv(), []
    rec = Recorder(env)
    rows = symint(env.new_symbol(given[0].shape[0], (0, 0)), env)
    for i, t in enumerate(given):
        fakes.append(rec.input(t, f"x{i}", shape=(rows, *t.shape[1:]) if t.dim() > 1 else tuple(t.shape)))
    with torch.no_grad(), rec:
        out = fn(*fakes)
    return schedule(lower(decompose(rec.finish(list(out)))), target=target)
