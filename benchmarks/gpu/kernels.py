"""Kernels that only move memory, compiled by framesmith: the bytes that they must move (inputs read once, results written once; what is
updated in place both) over their time, against a copy in the same process."""

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
        (batch_norm, (images, *(torch.rand(256) + 0.5 for _ in range(4))), 0),
        (adam, tuple([torch.rand(s) for _ in range(4) for s in shapes]), 3 * len(shapes)),
    ]


def measure(copy: float, ready: Callable[[], None], rounds: int = 7) -> list[dict[str, Any]]:
    """For each case: bytes, seconds of framesmith and of eager, and the part of the rate of a `copy` that framesmith reaches. `ready` is
    called when all is compiled."""
    with torch.device("cuda"):
        table = cases()
    prepared = []
    with torch.no_grad():
        for function, args, updated in table:
            compiled = framesmith.compile(function)
            out = compiled(*args)
            moved = sum(t.nbytes for t in args) + sum(t.nbytes for t in args[len(args) - updated :])
            moved += sum(t.nbytes for t in (out if isinstance(out, tuple) else (out,)) if t is not None)
            prepared.append((function.__name__, moved, {"framesmith": partial(compiled, *args), "eager": partial(function, *args)}))
        del out
        ready()
        quiet(copy)
        found = []
        for name, moved, calls in prepared:
            seconds = {label: statistics.median(_times(call, rounds)) / 1e3 for label, call in calls.items()}
            found.append({"kernel": name, "bytes": moved, **seconds, "copy": copy, "reached": moved / seconds["framesmith"] / copy})
    return found


def _times(call: Callable[[], object], rounds: int) -> list[float]:
    milliseconds(call, 3)
    return [milliseconds(call, 20) for _ in range(rounds)]


def rows_of(found: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """As a table."""
    header = ["kernel", "MB", "µs", "TB/s", "of the copy", "× eager"]
    rows = [
        [
            one["kernel"].replace("_", " "), f"{one['bytes'] / 1e6:.0f}", f"{one['framesmith'] * 1e6:.0f}",
            f"{one['bytes'] / one['framesmith'] / 1e12:.2f}", f"{one['reached']:.0%}", f"{one['eager'] / one['framesmith']:.2f}",
        ]
        for one in found
    ]
    mean = math.exp(sum(math.log(one["reached"]) for one in found) / max(len(found), 1))
    return header, [*rows, ["geometric mean", "", "", "", f"{mean:.0%}", ""]]
