"""What the device can do, measured in the same run as the models: bytes a second of a copy, operations a second of a
product."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from benchmarks.gpu.measure import milliseconds


def _rate(work: float, call: Callable[[], object]) -> float:
    call()
    return work / (statistics.median(milliseconds(call, 5) for _ in range(5)) / 1e3)


def _copy(x: torch.Tensor) -> float:
    y = torch.empty_like(x)
    return _rate(2 * x.nbytes, lambda: y.copy_(x))


def measure() -> dict[str, float]:
    """`copy`: bytes read and written a second; `bf16`, `tf32`: operations a second of a product of 8192 x 8192."""
    found = {"copy": _copy(torch.randn(1 << 29, device="cuda"))}
    n = 8192
    a, b = (torch.randn(n, n, device="cuda") for _ in range(2))
    found["tf32"] = _rate(2 * n**3, lambda: a @ b)
    half, other = a.bfloat16(), b.bfloat16()
    found["bf16"] = _rate(2 * n**3, lambda: half @ other)
    return found
