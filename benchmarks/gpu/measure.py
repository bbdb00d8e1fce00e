"""Interleaved timing by the device's own clock: every contender in turn, round after round."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from benchmarks.measure import Timing, in_turn


def milliseconds(call: Callable[[], object], times: int) -> float:
    """Of one call, between two events around `times` of them."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(times):
        call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / times


def interleaved(contenders: dict[str, Callable[[], object]], rounds: int = 15, slice_ms: float = 30.0) -> dict[str, Timing]:
    """Time each for about `slice_ms` a round, in turn. Seconds a call."""
    times = {}
    for name, run in contenders.items():
        milliseconds(run, 3)
        times[name] = max(1, min(200, int(slice_ms / max(milliseconds(run, 3), 1e-3))))
    return in_turn(contenders, rounds, lambda name: milliseconds(contenders[name], times[name]) / 1e3)


def living() -> int:
    """Bytes of PyTorch's memory that live now, cuBLAS's work space for products of eager's among them: some contenders free it."""
    square = torch.ones(64, 64, dtype=torch.bfloat16, device="cuda")
    torch.mm(square, square)
    del square
    torch.cuda.synchronize()
    gc.collect()
    return torch.cuda.memory_allocated()


def height(call: Callable[[], object]) -> int:
    """Bytes of PyTorch's memory that live at the height of a call."""
    call()
    living()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()
