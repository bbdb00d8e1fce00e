"""The process in which kernels are timed, started by `runtime.trial` as a program of its own: it needs no torch and no
module of ours.

    python trial_worker.py DEVICE

It reads pickled jobs from its input: `memory`: (type, elements, limit of indices or None) of each buffer; `contenders`:
dicts of `image`, `name`, `grid`, `threads`, `shared`, and `arguments`: (Triton's type, number of a buffer or value);
`warm`: what a run reads is in the cache already. It answers a line when a contender is about to run for the first time,
its number, and at the end of a job one with all times: milliseconds, null where the device refuses. A kernel that goes
astray takes this process with it, and no other.
"""

from __future__ import annotations

import ctypes
import functools
import json
import pickle
import random
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any

RUNS = 9
FLUSHED = 1 << 28  # bytes that are written to empty the cache
REPEATED = 4  # runs between two events with a warm one, ...
AHEAD = 4  # ... behind so many writes: the device must not wait for the next launch
SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SLOW = 3.0  # times the best, after which a contender is not run again
DRAWN = 1 << 14  # random numbers, again and again

NUMBERS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float, "fp64": ctypes.c_double}
INDICES = {"int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint8": "B"}
FLOATS: dict[str, tuple[int, Callable[[Sequence[float]], bytes]]] = {
    "float64": (8, lambda x: array("d", x).tobytes()),
    "float32": (4, lambda x: array("f", x).tobytes()),
    "float16": (2, lambda x: struct.pack(f"{len(x)}e", *x)),
    "bfloat16": (2, lambda x: b"".join(struct.pack("f", v)[2:] for v in x)),
}


class Refused(Exception):
    """The driver returned an error."""


class Device:
    """The driver's functions on one device, in its first context."""

    def __init__(self, number: int) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(device), number)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)
        self.flushed = self.allocate(FLUSHED)
        self.modules: list[ctypes.c_void_p] = []

    def __call__(self, name: str, *args: Any) -> None:
        status = getattr(self.cuda, name)(*args)
        if status:
            raise Refused(f"{name}: CUDA error {status}")

    def allocate(self, nbytes: int) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        self("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        return pointer

    def make(self, kind: str, elements: int, below: int | None) -> ctypes.c_void_p:
        """Allocate memory with random numbers, or zeros."""
        data, width = drawn(kind, elements, below)
        nbytes = max(elements, 1) * width
        pointer = self.allocate(nbytes)
        at = pointer.value or 0
        self("cuMemsetD8_v2", pointer, 0, ctypes.c_size_t(nbytes))
        done = min(len(data), nbytes)
        if done:
            self("cuMemcpyHtoD_v2", pointer, data, ctypes.c_size_t(done))
        while 0 < done < nbytes:
            more = min(done, nbytes - done)
            self("cuMemcpyDtoD_v2", ctypes.c_void_p(at + done), pointer, ctypes.c_size_t(more))
            done += more
        return pointer

    def event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self("cuEventCreate", ctypes.byref(event), 0)
        return event

    def function(self, contender: dict[str, Any]) -> ctypes.c_void_p:
        """Return the kernel of a contender, loaded."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), contender["image"])
        self.modules.append(module)
        self("cuModuleGetFunction", ctypes.byref(function), module, contender["name"].encode())
        if contender["shared"] > 48 << 10:
            self("cuFuncSetAttribute", function, SHARED, contender["shared"])
        return function


@functools.cache
def drawn(kind: str, elements: int, below: int | None) -> tuple[bytes, int]:
    """Random bytes for memory of such elements (none: it is zeros), and the bytes of one."""
    count, numbers = min(DRAWN, max(elements, 1)), random.Random(0)
    if below is not None:
        code = INDICES[kind]
        return array(code, [numbers.randrange(max(below, 1)) for _ in range(count)]).tobytes(), array(code).itemsize
    if kind in FLOATS:
        width, pack = FLOATS[kind]
        return pack([numbers.gauss(0.0, 1.0) for _ in range(count)]), width
    return b"", 16  # as wide as any


def launcher(device: Device, contender: dict[str, Any], memory: Sequence[ctypes.c_void_p]) -> Callable[[], None]:
    """Return the function that launches a contender."""
    values: list[Any] = [memory[value] if kind.startswith("*") else NUMBERS[kind](value) for kind,
                         value in contender["arguments"]]
    pointers = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values])
    function, (x, y, z) = device.function(contender), contender["grid"]

    def run(keep: Any = values) -> None:
        device("cuLaunchKernel", function, x, y, z, contender["threads"], 1, 1, contender["shared"], None, pointers,
               None)

    return run


def timed(device: Device, runs: dict[int, Callable[[], None]], warm: bool) -> dict[int, float]:
    """Milliseconds of one run of each, which begins with an empty cache, or a `warm` one."""
    events, count = {}, REPEATED if warm else 1
    for k, run in runs.items():
        first, last = device.event(), device.event()
        for _ in range(AHEAD if warm else 1):
            device("cuMemsetD8Async", device.flushed, 0, ctypes.c_size_t(FLUSHED), None)
        if warm:
            run()
        device("cuEventRecord", first, None)
        for _ in range(count):
            run()
        device("cuEventRecord", last, None)
        events[k] = first, last
    device("cuCtxSynchronize")
    found = {}
    for k, pair in events.items():
        taken = ctypes.c_float()
        device("cuEventElapsedTime", ctypes.byref(taken), *pair)
        found[k] = taken.value / count
        for event in pair:
            device("cuEventDestroy_v2", event)
    return found


def contest(
    device: Device, contenders: Sequence[dict[str, Any]], memory: Sequence[ctypes.c_void_p], warm: bool,
    say: Callable[[Any], None]
) -> list[float | None]:
    """Return the times of all contenders, run in turn; the lower quartile counts."""
    runs, samples = {}, {}
    for k, contender in enumerate(contenders):
        say(k)
        try:
            run = launcher(device, contender, memory)
            run()
        except Refused:  # more registers or shared memory than there are
            continue
        device("cuCtxSynchronize")
        runs[k], samples[k] = run, timed(device, {k: run}, warm)[k]
    best = min(samples.values(), default=0.0)
    running = {k: run for k, run in runs.items() if samples[k] <= SLOW * best}
    rounds = [timed(device, running, warm) for _ in range(RUNS)]
    return [sorted([r[k] for r in rounds])[RUNS // 4] if k in running else samples.get(k)
            for k in range(len(contenders))]


def main() -> None:
    device, answers = Device(int(sys.argv[1])), sys.stdout

    def say(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        memory = [device.make(*m) for m in job["memory"]]
        say(contest(device, job["contenders"], memory, job["warm"], say))
        for pointer in memory:
            device("cuMemFree_v2", pointer)
        while device.modules:
            device("cuModuleUnload", device.modules.pop())


if __name__ == "__main__":
    main()
