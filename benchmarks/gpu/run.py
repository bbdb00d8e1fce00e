"""Measure one model, in a process of its own: all contenders in turn, and what each gives against float64.

    python -m benchmarks.gpu.run MODEL ARGUMENTS        # prints a line of JSON
    python -m benchmarks.gpu.run MODEL ARGUMENTS LABEL  # that contender's first call alone
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import framesmith
from benchmarks import child
from benchmarks.gpu import ceilings
from benchmarks.gpu.measure import interleaved, peak
from benchmarks.gpu.task import Task, compiled, error
from benchmarks.run import failure

Rows = dict[str, dict[str, Any]]
Contenders = dict[str, tuple[str, str]]
"""Label -> peer and mode; the first is eager."""


def contenders(modes: list[str], peers: bool) -> Contenders:
    found: Contenders = {"eager": ("eager", "default")}
    for mode in modes:
        suffix = "" if mode == "default" else f" {mode}"
        found[f"framesmith{suffix}"] = ("framesmith", mode)
        if peers:
            found[f"torch.compile{suffix}"] = ("torch.compile", mode)
    return found


def measure(name: str, given: dict[str, Any], cold: bool, report: Callable[[str], None]) -> dict[str, Any]:
    """All figures of one model."""
    who: Contenders = {k: tuple(v) for k, v in given["contenders"].items()}  # type: ignore[misc]
    arguments = json.dumps(given)
    with tempfile.TemporaryDirectory(prefix="bench-") as text:
        report("steps")
        environment = child.caches(Path(text) / "steps")
        found = child.report_of(__name__, name, arguments, environment=environment, timeout=900)
        if "error" in found:
            found = {"peers": {label: {"failed": found["error"]} for label in who}}
        for label in [label for label in who if cold and label != "eager"]:
            report(f"first call, {label}")
            environment = child.caches(Path(text) / label)
            row = found["peers"][label]
            row["cold"] = child.report_of(__name__, name, arguments, label, environment=environment).get("seconds")
            if label.startswith("framesmith") and row["cold"]:
                row["warm"] = child.report_of(__name__, name, arguments, label, environment=environment).get("seconds")
    return {"model": name, **found}


def _prepare(start: Task, label: str, peer: str, mode: str, true: list[torch.Tensor], row: dict[str, Any]) -> Callable[[], Any]:
    own = start.copy()
    call = own.step(compiled(peer, mode, own.model))
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call()
        torch.cuda.synchronize()
    row["first"] = time.perf_counter() - began
    row["refused"] = [str(w.message)[:200] for w in said if "framesmith" in str(w.message)]
    row["error"] = error(own.results(call), true)
    row["peak"] = peak(call)
    return call


def in_this_process(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The report of one process: a row a contender, and the device's ceilings."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    start = Task.named(name, given["training"], given["precision"])
    limits = ceilings.measure()
    true = start.in_double()
    torch.cuda.empty_cache()
    rows: Rows = {}
    calls = {}
    for label, (peer, mode) in given["contenders"].items():
        rows[label] = {}
        try:
            calls[label] = _prepare(start, label, peer, mode, true, rows[label])
        except Exception as problem:
            rows[label] |= failure(problem)
    for label, timing in interleaved(calls, given["rounds"]).items():
        rows[label] |= {"seconds": timing.median, "low": timing.low, "high": timing.high}
    for label in calls:
        rows[label]["speedup"] = rows["eager"]["seconds"] / rows[label]["seconds"]
        rows[label]["memory"] = rows[label]["peak"] / max(rows["eager"]["peak"], 1)
        rows[label]["errors"] = rows[label]["error"] / max(rows["eager"]["error"], 1e-12)
    return {"peers": rows, "ceilings": limits, "work": _work(start, true), **_explained(start, given)}


def _work(start: Task, true: list[torch.Tensor]) -> dict[str, float]:
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter:
        start.step(start.model)()
    return {"operations": counter.get_total_flops(), "bytes": ceilings.least(start.model, start.inputs, true[:1])}


def _explained(start: Task, given: dict[str, Any]) -> dict[str, Any]:
    """How many graphs framesmith makes, and how many breaks are between them."""
    try:
        with torch.set_grad_enabled(start.training), torch.autocast("cuda", torch.bfloat16, enabled=start.precision == "bf16"):
            found = framesmith.explain(start.model)(*start.inputs)
    except Exception as problem:
        return {"explain failed": failure(problem)["failed"]}
    return {"graphs": found.graph_count, "breaks": found.break_count, "in eager": len(found.refusals)}


def _first(name: str, given: dict[str, Any], label: str) -> dict[str, float]:
    """Seconds of the first call, after eager's."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    task = Task.named(name, given["training"], given["precision"])
    task.step(task.model)()
    torch.cuda.synchronize()
    began = time.perf_counter()
    task.step(compiled(*given["contenders"][label], task.model))()
    torch.cuda.synchronize()
    return {"seconds": time.perf_counter() - began}


def _main(name: str, arguments: str, label: str | None = None) -> None:
    given = json.loads(arguments)
    print(json.dumps(_first(name, given, label) if label else in_this_process(name, given)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
