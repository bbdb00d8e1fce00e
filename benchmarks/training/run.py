"""Measure the training step of a model, each model in a process of its own: a contender that takes the process with it
is a row, too.

    python -m benchmarks.training.run MODEL CONTENDERS ROUNDS
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import framesmith
from benchmarks import child
from benchmarks.run import Report, failure, timed
from benchmarks.training import memory, numerics
from benchmarks.training.tasks import Task, task

Contenders = dict[str, tuple[str, dict[str, Any]]]
"""Name -> peer and options; the first is eager."""
Rows = dict[str, dict[str, Any]]

EAGER: Contenders = {"eager": ("eager", {})}
OURS: Contenders = {**EAGER, "framesmith": ("framesmith", {})}
PEERS: Contenders = {**OURS, "torch.compile": ("torch.compile", {})}
ABLATIONS: Contenders = {
    **EAGER,
    "all on": ("framesmith", {}),
    "no partitioner": ("framesmith", {"partitioner": False}),
    "no library choice": ("framesmith", {"library_choice": False}),
    "no fusion": ("framesmith", {"fusion": False}),
}


def measure(name: str, contenders: Contenders, *, rounds: int, cold: bool, peaks: bool,
            report: Report = lambda _: None) -> dict[str, Any]:
    """All figures of one model: first steps, peak memory, times, ratios to eager, errors, and framesmith's graphs and
    breaks."""
    with tempfile.TemporaryDirectory(prefix="bench-") as text:
        folder = Path(text)
        before: Rows = {}
        for label, (peer, options) in contenders.items():
            environment = child.caches(folder / label)
            before[label] = row = {}
            if cold and label != "eager":
                report(f"first step, {label}")
                row |= _first_steps(name, peer, options, environment)
            if peaks:
                report(f"memory, {label}")
                row |= _named(memory.peak(name, peer, options, folder, environment), "peak")
        report("steps")
        rows = _steps(name, contenders, rounds, child.caches(folder / "steps"))
    rows = {label: before[label] | rows[label] for label in contenders}
    for row in rows.values():
        if row.get("peak") and rows["eager"].get("peak"):
            row["memory"] = row["peak"] / rows["eager"]["peak"]
    return {"model": name, "optimizer": name.partition("+")[2] or None, "peers": rows}


def _named(found: dict[str, Any], name: str, key: str | None = None) -> dict[str, Any]:
    """The entry `name` of a report (its `key`), or why there is none."""
    return {name: found[key or name]} if "error" not in found else {name: None, f"{name} failed": found["error"]}


def _first_steps(name: str, peer: str, options: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """Seconds of the first step with an empty cache, and for framesmith again in another process with the cache that it
    left."""
    def once() -> dict[str, Any]:
        return child.report_of("benchmarks.training.first", name, peer, json.dumps(options), environment=environment)

    row = _named(once(), "cold", "seconds")
    return row | _named(once(), "warm", "seconds") if peer == "framesmith" and row["cold"] else row


def _steps(name: str, contenders: Contenders, rounds: int, environment: dict[str, str]) -> Rows:
    """The rows of one process with all contenders; if that died, of a process for each beside eager."""
    found = child.report_of(__name__, name, json.dumps(contenders), str(rounds), environment=environment, timeout=1800)
    if "error" not in found:
        return found
    rows = {label: {"failed": found["error"]} for label in contenders}
    for label in [label for label in contenders if label not in EAGER and len(contenders) > 2]:
        alone = _steps(name, {**EAGER, label: contenders[label]}, rounds, environment)
        rows |= {which: row for which, row in alone.items() if which == label or "failed" not in row}
    return rows


def in_this_process(name: str, contenders: Contenders, rounds: int) -> Rows:
    """Check the contenders against eager, before and after timing them in turn. Each has its own copy of model and
    inputs."""
    start = task(name)
    judge: numerics.Judge | None = None
    rows: Rows = {}
    copies: dict[str, tuple[Task, Callable[[], None]]] = {}
    for label, (peer, options) in contenders.items():
        own, rows[label] = start.copy(), {}
        try:
            step = own.step(peer, **options)
            state = numerics.after(step, own)
            judge = judge or numerics.Judge(start, state)
            rows[label] |= judge.judge(state)
            copies[label] = own, step
        except Exception as problem:
            rows[label] |= failure(problem)
        if peer == "framesmith" and not options:
            rows[label] |= _explained(start.copy())
    timed({label: step for label, (_, step) in copies.items()}, rounds, rows)
    for label, (own, _) in copies.items():
        # the weights are still those of the first step, and so must the gradients be
        if judge is not None and own.optimizer is None:
            again = judge.judge({**judge.expected, **numerics.gradients(own)})
            rows[label]["error"] = max(rows[label]["error"], again["error"])
    return rows


def _explained(mine: Task) -> dict[str, Any]:
    """How many graphs framesmith makes of what it is given, and how many breaks are between them."""
    compiled, args = mine.whole()
    try:
        found = framesmith.explain(compiled)(*args)
    except Exception as problem:
        return {"explain failed": failure(problem)["failed"]}
    return {"graphs": found.graph_count, "breaks": found.break_count, "in_eager": len(found.refusals)}


def _main(name: str, contenders: str, rounds: str) -> None:
    print(json.dumps(in_this_process(name, {label: tuple(c) for label, c in json.loads(contenders).items()},
                                     int(rounds))))


if __name__ == "__main__":
    _main(*sys.argv[1:4])
