"""Times of kernels and operators on a CUDA device, for choices by measurement.

Each run begins with a cold L2 cache and is timed by the device's events; the runs of all contenders are queued in turn, so that what else
happens on the device meets them alike. The median counts. Memory is made here, and filled with random numbers: the user's is never touched.
"""

from __future__ import annotations

import ctypes
import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from framesmith.runtime.triton import Binary
from framesmith.util.errors import BuildError

RUNS = 9
FLUSHED = 1 << 28  # bytes that are written to empty the cache
SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
PART = 4  # of the free memory, so much is used
SLOW = 3.0  # times the best, after which a contender is not run again

Run = Callable[[], object]


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int) -> None:
    if status:
        raise BuildError(f"the driver refuses a kernel: CUDA error {status}")


@contextmanager
def loaded(binary: Binary) -> Iterator[ctypes.c_void_p]:
    """The kernel on the current device, for a while. Raises `BuildError`."""
    cuda, module, function = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
    _check(cuda.cuModuleLoadData(ctypes.byref(module), binary.image))
    try:
        _check(cuda.cuModuleGetFunction(ctypes.byref(function), module, binary.name.encode()))
        if binary.shared > 48 << 10:
            _check(cuda.cuFuncSetAttribute(function, SHARED, binary.shared))
        yield function
    finally:
        torch.cuda.synchronize()
        cuda.cuModuleUnload(module)


_NUMBERS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float, "fp64": ctypes.c_double}


def launcher(function: ctypes.c_void_p, binary: Binary, grid: Sequence[int], arguments: Sequence[tuple[str, Any]]) -> Run:
    """What launches it. `arguments`: Triton's type of each, and a tensor or a number."""
    values: list[Any] = [
        ctypes.c_void_p(value.data_ptr()) if isinstance(value, torch.Tensor) else _NUMBERS[kind](value) for kind, value in arguments
    ]
    values += [ctypes.c_void_p(0)] * binary.scratch
    pointers = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values])
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    x, y, z = (*grid, 1, 1, 1)[:3]

    def run(keep: Any = (values, arguments)) -> None:
        _check(_driver().cuLaunchKernel(function, x, y, z, binary.threads, 1, 1, binary.shared, stream, pointers, None))

    return run


def milliseconds(contenders: Mapping[str, Run]) -> dict[str, float]:
    """Of each contender; infinite for one that the device refuses."""
    flushed = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for name, run in contenders.items():
        try:
            samples[name] += _timed({name: run}, flushed)[name]
        except (BuildError, RuntimeError):
            samples[name].append(float("inf"))
    best = min((s[0] for s in samples.values()), default=0.0)
    running = {name: run for name, run in contenders.items() if samples[name][0] <= SLOW * best}
    for name in running:
        samples[name].clear()  # it warmed up
    for _ in range(RUNS):
        for name, found in _timed(running, flushed).items():
            samples[name] += found
    return {name: statistics.median(s) for name, s in samples.items()}


def _timed(contenders: Mapping[str, Run], flushed: torch.Tensor) -> dict[str, list[float]]:
    events = {}
    for name, run in contenders.items():
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flushed.zero_()
        first.record()
        run()
        last.record()
        events[name] = first, last
    torch.cuda.synchronize()
    return {name: [first.elapsed_time(last)] for name, (first, last) in events.items()}


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory to be made: `elements` of `dtype`; random numbers, or where it holds indices, those below `below`."""

    elements: int
    dtype: torch.dtype
    below: int | None = None

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize

    def make(self) -> torch.Tensor:
        t = torch.empty(max(self.elements, 1), dtype=self.dtype, device="cuda")
        numbers = torch.Generator(t.device)  # the program's own goes on as if nothing had been measured
        if self.below is not None:
            return t.random_(0, max(self.below, 1), generator=numbers)
        return t.normal_(generator=numbers) if self.dtype.is_floating_point else t.zero_()


def fits(memory: Sequence[Memory]) -> bool:
    """Whether there is room for so much."""
    free, _ = torch.cuda.mem_get_info()
    return PART * (sum(m.nbytes for m in memory) + FLUSHED) <= free


__all__ = ["Memory", "Run", "fits", "launcher", "loaded", "milliseconds"]
