"""A row of the results: one model in one precision and mode, called or trained. Measured in a process of its own, contenders in turn.

    python -m benchmarks.gpu.row ROW        # a Row in JSON; see `main`
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

import framesmith
from benchmarks.gpu import ceilings, work
from benchmarks.gpu.measure import height, interleaved, living
from benchmarks.gpu.task import Task, compiled, error
from benchmarks.run import failure

Figures = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """`modes`: of framesmith's, or "ablation" alone; the first has the first calls. `peers`: beside torch.compile. `warm`: first calls
    alone, with the caches that a process before this one left. `reports`: count graphs and breaks."""

    model: str
    training: bool = False
    precision: str = "bf16"
    modes: tuple[str, ...] = ("default",)
    peers: bool = True
    rounds: int = 11
    warm: bool = False
    reports: bool = True

    def key(self, mode: str | None = None) -> str:
        """Of the figures in one mode; by default the first."""
        return f"{self.model} {'training' if self.training else 'inference'} {self.precision} {mode or self.modes[0]}"


ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "all on": ("default", {}),
    "no fusion": ("default", {"fusion": False}),
    "no tiling": ("default", {"tiling": False}),
    "no weight caching": ("default", {"weight_caching": False}),
    "with CUDA graphs": ("reduce-overhead", {}),
    "with templates": ("max-autotune-no-cudagraphs", {}),
    "with templates and CUDA graphs": ("max-autotune", {}),
}
"""Columns of a row whose mode is "ablation": framesmith's mode and options."""

Contenders = dict[str, tuple[str, str, dict[str, Any]]]


def contenders(row: Row) -> Contenders:
    """Label -> peer, mode and options; the first is eager."""
    found: Contenders = {"eager": ("eager", "default", {})}
    if row.modes == ("ablation",):
        return found | {label: ("framesmith", mode, options) for label, (mode, options) in ABLATIONS.items()}
    for peer in ("framesmith", "torch.compile") if row.peers else ("framesmith",):
        found |= {label_of(peer, mode): (peer, mode, {}) for mode in row.modes}
    return found


def label_of(peer: str, mode: str) -> str:
    """The contender's name in the figures of a row."""
    return f"{peer}, {mode}"


def in_mode(found: Figures, mode: str) -> Figures:
    """The figures of one mode of a row, contenders by peer."""
    if mode == "ablation" or "peers" not in found:
        return found
    labels = {"eager": "eager", **{peer: label_of(peer, mode) for peer in ("framesmith", "torch.compile")}}
    rows = {peer: found["peers"].get(label) for peer, label in labels.items()}
    return {**found, "peers": {peer: figures for peer, figures in rows.items() if figures is not None}}


@contextmanager
def _said(figures: Figures) -> Iterator[None]:
    """Framesmith's warnings within are noted."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    if found := [str(w.message)[:300] for w in said if "framesmith" in str(w.message)]:
        figures["refused"] = found


def _prepare(start: Task, who: tuple[str, str, dict[str, Any]], true: list[torch.Tensor] | None, figures: Figures) -> Callable[[], Any]:
    """The contender's call, after its first one. Without `true` that is all."""
    peer, mode, options = who
    own = start.copy()
    before, idle = living(), _idle()
    began = time.perf_counter()
    with _said(figures):
        call = own.step(compiled(peer, mode, own.model, options))
        call()
        torch.cuda.synchronize()
    figures["first"] = time.perf_counter() - began
    if true is not None:
        figures["error"] = error(own.results(call), true)
        apart = framesmith.cuda_graph_memory(idle=True) if peer == "framesmith" else 0
        figures["peak"] = height(call) - before - apart
        figures["held"] = living() - before - apart
        figures["pool"] = max(0, _idle() - idle) + apart
    return call


def _idle() -> int:
    """Bytes that are set aside though nothing is in them: pools of CUDA graphs."""
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def measure(row: Row, ready: Callable[[], None]) -> Figures:
    """All figures of a row; `ready` is called before the timing, and returns when the machine is quiet."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    start = Task.named(row.model, row.training, row.precision)
    true = None if row.warm else start.in_double()
    torch.cuda.empty_cache()
    rows: dict[str, Figures] = {}
    calls = {}
    for label, who in contenders(row).items():
        rows[label] = {}
        torch.cuda.empty_cache()
        if who[0] == "torch.compile":
            _load_peer()
        try:
            calls[label] = _prepare(start, who, true, rows[label])
        except Exception as problem:
            rows[label] |= failure(problem)
        if who[1] != row.modes[0]:  # kernels of the first mode are there already
            rows[label].pop("first", None)
    if row.warm:
        return {"peers": rows}
    found = _explained(start) if row.reports else {}
    torch.cuda.empty_cache()
    ready()
    limits = ceilings.measure()
    for label, timing in interleaved(calls, row.rounds).items():
        rows[label] |= {"seconds": timing.median, "low": timing.low, "high": timing.high}
    eager = rows["eager"]
    for label in calls:
        rows[label]["speedup"] = eager["seconds"] / rows[label]["seconds"]
        rows[label]["memory"] = rows[label]["peak"] / max(eager["peak"], 1)
        rows[label]["errors"] = rows[label]["error"] / max(eager["error"], 1e-12)
    return {"peers": rows, "ceilings": limits, "work": work.least(start.step(start.model), start.inputs, limits), **found}


def _load_peer() -> None:
    """What torch.compile imports at its first use does not count in its first call."""
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401


def _explained(start: Task) -> Figures:
    """How many graphs framesmith makes, and how many breaks are between them."""
    try:
        with torch.set_grad_enabled(start.training), torch.autocast("cuda", torch.bfloat16, enabled=start.precision == "bf16"):
            found = framesmith.explain(start.model)(*start.inputs)
    except Exception as problem:
        return {"explain failed": failure(problem)["failed"]}
    return {"graphs": found.graph_count, "breaks": found.break_count, "in eager": len(found.refusals)}


def main(text: str) -> None:
    """Print "ready" when all is compiled, time when a line comes in, print the figures as a line of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer

    def ready() -> None:
        print("ready", file=answers, flush=True)
        sys.stdin.readline()

    given = json.loads(text)
    print(json.dumps(measure(Row(**{**given, "modes": tuple(given["modes"])}), ready)), file=answers, flush=True)


def encoded(row: Row) -> str:
    """The argument of `main`."""
    return json.dumps(asdict(row))


if __name__ == "__main__":
    main(*sys.argv[1:])
