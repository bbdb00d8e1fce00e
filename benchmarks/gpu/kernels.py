"""Kernels that only move memory, compiled by framesmith: the bytes that they must move (inputs read once, results
written once; what is updated in place both) over their time, against a copy that moves as many bytes, in the same
process and in turn with them. What is small enough for the cache is there for both."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import framesmith
from benchmarks.gpu.measure import milliseconds, quiet

Case = tuple[Callable[..., Any], tuple[Tensor, ...], int]
"""The function, its arguments, and how many of the last ones it updates in place."""


def _half(*size: int) -> Tensor:
    return torch.randn(size, dtype=torch.bfloat16)


def gelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    y = x + residual
    return y, F.layer_norm(y, y.shape[-1:], weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def softmax_gradient(g: Tensor, y: Tensor) -> Tensor:
    return (g - (g * y).sum(-1, keepdim=True)) * y


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), target)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def transposed(x: Tensor, y: Tensor) -> Tensor:
    return x.t() + y


def column_sums(g: Tensor, x: Tensor) -> Tensor:
    return (g * x).float().sum(0)


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, mean, var, weight, bias))


def adam(*tensors: Tensor) -> None:
    n = len(tensors) // 4
    grads, params, first, second = (tensors[k * n : (k + 1) * n] for k in range(4))
    for p, g, m, v in zip(params, grads, first, second, strict=True):
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.addcdiv_(m, v.sqrt() + 1e-8, value=-1e-3)


def layer_norm_float(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return layer_norm(x, weight, bias)


def small_add_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return add_norm(x, residual, weight, bias)


def odd_softmax(x: Tensor) -> Tensor:
    return softmax(x)


def odd_cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(x, target)


def moments(x: Tensor) -> tuple[Tensor, ...]:
    return torch.var_mean(x.float(), (0, 2, 3), correction=0)


def gelu_gradient(g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.ops.aten.gelu_backward(g, x, approximate="tanh")
    return y, y.float().sum(0)


def layer_norm_gradient(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return torch.ops.aten.native_layer_norm_backward(g, x, x.shape[-1:], mean, rstd, weight, weight, [True, True, True])


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 32, weight, bias))


def halves(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def windows(x: Tensor, bias: Tensor) -> Tensor:
    n, height, width, channels = x.shape
    return (x + bias).view(n, height // 7, 7, width // 7, 7, channels).transpose(2, 3).reshape(-1, 49, channels)


def lookup(table: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    return F.embedding(rows, table) + positions


def pooling(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 2, 1)


def cases() -> list[Case]:
    shapes = [(768, 768)] * 48 + [(768,)] * 60 + [(3072, 768)] * 12 + [(768, 3072)] * 12 + [(30522, 768)]
    images = _half(64, 256, 56, 56).to(memory_format=torch.channels_last)
    return [
        (gelu_bias, (_half(16384, 3072), _half(3072)), 0),
        (swiglu, (_half(16384, 5504), _half(16384, 5504)), 0),
        (softmax, (_half(65536, 512),), 0),
        (softmax_gradient, (_half(65536, 512), _half(65536, 512)), 0),
        (layer_norm, (_half(32768, 1024), _half(1024), _half(1024)), 0),
        (add_norm, (_half(32768, 1024), _half(32768, 1024), _half(1024), _half(1024)), 0),
        (rms_norm, (_half(32768, 2048), _half(2048)), 0),
        (rotary, (_half(16, 16, 2048, 128), _half(2048, 128), _half(2048, 128)), 0),
        (transposed, (torch.randn(8192, 8192), torch.randn(8192, 8192)), 0),
        (column_sums, (_half(32768, 3072), _half(32768, 3072)), 0),
        (cross_entropy, (_half(8192, 50304), torch.randint(0, 50304, (8192,))), 0),
        (layer_norm_float, (torch.randn(32768, 1024), torch.randn(1024), torch.randn(1024)), 0),
        (small_add_norm, (_half(4096, 768), _half(4096, 768), _half(768), _half(768)), 0),
        (odd_softmax, (_half(16384, 1001),), 0),
        (odd_cross_entropy, (_half(4096, 50257), torch.randint(0, 50257, (4096,))), 0),
        (moments, (images,), 0),
        (gelu_gradient, (_half(8192, 3072), _half(8192, 3072)), 0),
        (layer_norm_gradient, (_half(16384, 768), _half(16384, 768), *_moments(16384), _half(768)), 0),
        (group_norm, (_half(8, 320, 64, 64), _half(320), _half(320)), 0),
        (halves, (_half(8192, 11008),), 0),
        (windows, (_half(64, 56, 56, 96), _half(96)), 0),
        (lookup, (_half(8192, 768), torch.randint(0, 8192, (16, 1024)), _half(1024, 768)), 0),
        (pooling, (_half(64, 64, 112, 112).to(memory_format=torch.channels_last),), 0),
        (batch_norm, (images, *(torch.rand(256) + 0.5 for _ in range(4))), 0),
        (adam, tuple([torch.rand(s) for _ in range(4) for s in shapes]), 3 * len(shapes)),
    ]


def _moments(rows: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(rows, 1), torch.ones(rows, 1)


def measure(copy: float, ready: Callable[[], None], rounds: int = 7) -> list[dict[str, Any]]:
    """For each case: bytes, seconds of framesmith and of eager, the rate of a copy of as many bytes, and the part of it
    that framesmith reaches. `copy`: the rate of large copies on an idle device. `ready` is called when all is
    compiled."""
    with torch.device("cuda"):
        table = cases()
    prepared = []
    with torch.no_grad():
        for function, args, updated in table:
            compiled = framesmith.compile(function)
            out = compiled(*args)
            moved = sum(t.nbytes for t in args) + sum(t.nbytes for t in args[len(args) - updated :])
            moved += sum(t.nbytes for t in (out if isinstance(out, tuple) else (out,)) if t is not None)
            prepared.append((function.__name__, moved,
                             {"framesmith": partial(compiled, *args), "eager": partial(function, *args)}))
        del out
        ready()
        quiet(copy)
        found = []
        for name, moved, calls in prepared:
            source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
            calls["copy"] = partial(torch.empty_like(source).copy_, source)
            times = _times(calls, rounds)
            reached, rate = times["copy"] / times["framesmith"], moved / times.pop("copy")
            found.append({"kernel": name, "bytes": moved, **times, "copy": rate, "reached": reached})
    return found


def _times(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each, in turn."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        milliseconds(call, 3)
    for _ in range(rounds):
        for name, call in calls.items():
            samples[name].append(milliseconds(call, 20))
    return {name: statistics.median(found) / 1e3 for name, found in samples.items()}


def rows_of(found: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """As a table."""
    header = ["kernel", "MB", "µs", "TB/s", "of the copy", "× eager"]
    rows = [
        [
            one["kernel"].replace("_", " "), f"{one['bytes'] / 1e6:.0f}", f"{one['framesmith'] * 1e6:.0f}",
            f"{one['bytes'] / one['framesmith'] / 1e12:.2f}", f"{one['reached']:.0%}",
            f"{one['eager'] / one['framesmith']:.2f}",
        ]
        for one in found
    ]
    mean = math.exp(sum(math.log(one["reached"]) for one in found) / max(len(found), 1))
    return header, [*rows, ["geometric mean", "", "", "", f"{mean:.0%}", ""]]
