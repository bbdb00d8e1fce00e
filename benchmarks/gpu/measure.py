"""Interleaved timing by the device's own clock: every contender in turn, round after round."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import torch

from framesmith.tools.interleaved import Timing, in_turn


def milliseconds(call: Callable[[], object], times: int) -> float:
    """Of one call, between two events around `times` of them."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(times):
        call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / times


def interleaved(contenders: dict[str, Callable[[], object]], rounds: int = 15,
                slice_ms: float = 30.0) -> dict[str, Timing]:
    """Time each for about `slice_ms` a round, in turn. Seconds a call."""
    times = {}
    for name, run in contenders.items():
        milliseconds(run, 3)
        times[name] = max(1, min(200, int(slice_ms / max(milliseconds(run, 3), 1e-3))))
    return in_turn(contenders, rounds, lambda name: milliseconds(contenders[name], times[name]) / 1e3)


def quiet(rate: float, seconds: float = 10.0) -> bool:
    """Wait until copies run at `rate`, as on an idle device: what other processes have launched is over. Whether that
    came to be."""
    x = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    end, steady = time.monotonic() + seconds, 0
    while steady < 5 and time.monotonic() < end:
        moved = 2 * x.nbytes / (milliseconds(lambda: y.copy_(x), 8) / 1e3)
        steady = steady + 1 if moved > 0.9 * rate else 0
    return steady == 5


def living() -> int:
    """Bytes of PyTorch's memory that live now, cuBLAS's work space for products of eager's among them: some contenders
    free it."""
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
