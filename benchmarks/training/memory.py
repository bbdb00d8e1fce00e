"""Peak memory of a training step, in a process of its own whose heap is counted: prints a JSON line.

    python -m benchmarks.training.memory MODEL PEER OPTIONS

Exact and cheap: `heap.cpp` stands before the C library's malloc, so that every byte counts whoever asks for it, and a
page that was touched once does not (as it would in a resident set). `peak`: the most bytes that live at once during a
step, less what lived before it; memory that compiled code keeps between steps for itself, idle pages included, is part
of the step's.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import child
from benchmarks.training.tasks import task
from framesmith import _C
from framesmith.runtime import toolchain

WARM = 3
"""Steps before those that are measured."""
MEASURED = 3
"""Steps of which the least peak counts: a compiler may still be at work in one of them."""


def peak(name: str, peer: str, options: dict[str, Any], folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """The report of a fresh process; `folder` holds the counter's library."""
    library = folder / "heap.so"
    if not library.exists():
        source = Path(__file__).with_name("heap.cpp")
        compiler = toolchain.find().compiler
        subprocess.run([compiler, "-O2", "-fno-builtin", "-fPIC", "-shared", "-o", str(library), str(source)],
                       check=True)
    counted = {**environment, "LD_PRELOAD": str(library)}
    return child.report_of("benchmarks.training.memory", name, peer, json.dumps(options), environment=counted)


def _main(name: str, peer: str, options: str) -> None:
    heap = ctypes.CDLL(None)
    heap.heap_live.restype = heap.heap_high.restype = ctypes.c_long
    mine = task(name)
    step = mine.step(peer, **json.loads(options))
    for _ in range(WARM):
        step()
    peaks = []
    for _ in range(MEASURED):
        mine.forget_gradients()
        gc.collect()
        before = heap.heap_live() - _C.idle_memory()
        heap.heap_mark()
        step()
        peaks.append(heap.heap_high() - before)
    print(json.dumps({"peak": min(peaks)}))


if __name__ == "__main__":
    _main(*sys.argv[1:4])
