"""The lines of the README's table: a geometric mean for each contender."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.document.markers import table
from benchmarks.gpu.results import Results
from benchmarks.run import geometric_mean

RESULTS = Path(__file__).parents[1] / "results"
OURS, THEIRS = "framesmith", "torch.compile"
Contenders = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Line:
    """`values`: contender -> its mean and the number of models in it. `speed`: a speed-up, where more is better."""

    what: str
    values: dict[str, tuple[float, int]]
    form: str = ".2f"
    speed: bool = False

    def cells(self, contenders: Iterable[str]) -> list[str]:
        """Make a row of the table."""
        models = self.values[OURS][1]
        ratio = f"{self.values[OURS][0] / self.values[THEIRS][0]:.2f}"
        return [self.what, str(models), *[self._cell(name, models) for name in contenders], ratio]

    def _cell(self, name: str, models: int) -> str:
        mean, count = self.values.get(name, (0.0, 0))
        return "–" if not count else format(mean, self.form) + (f" of {count}" if count != models else "")


@cache
def saved(name: str) -> Any:
    """Read a JSON file of benchmarks/results."""
    return json.loads((RESULTS / f"{name}.json").read_text())


@cache
def devices() -> Results:
    """Read benchmarks/results/gpu.json."""
    return Results(RESULTS / "gpu.json")


def mean(what: str, rows: Sequence[Contenders], key: str, **how: Any) -> Line:
    """Average `key` over the rows in which framesmith and torch.compile have it; of a peer, over those that it ran."""
    both = [row for row in rows if all(_has(row, name, key) for name in (OURS, THEIRS))]
    values = {}
    for name in dict.fromkeys(name for row in both for name in row):
        if found := [row[name][key] for row in both if _has(row, name, key)]:
            values[name] = geometric_mean(found), len(found)
    return Line(what, values, **how)


def _has(row: Contenders, name: str, key: str) -> bool:
    return row.get(name, {}).get(key) is not None


def _cpu(what: str, file: str, key: str, **how: Any) -> Line:
    """Average over the models of a JSON file that have no optimiser."""
    rows = [one["peers"] for one in saved(file)["models"] if one.get("optimizer") is None]
    return mean(what, [{n: row for n, row in peers.items() if n != "eager"} for peers in rows], key, **how)


def _gpu(what: str, training: bool, precision: str, mode: str, key: str, **how: Any) -> Line:
    rows = [entry["peers"] for entry in devices().of(training=training, precision=precision, mode=mode)]
    return mean(f"GPU {what}, {mode}", [{n: row[n] for n in (OURS, THEIRS) if n in row} for row in rows], key, **how)


def _call() -> Line:
    figures = saved("capture-cost")["figures"]
    values = {name: (row["call over its kernel, two tensors (us)"], 1) for name, row in figures.items()}
    return Line("CPU: a call of a function of two tensors without its kernel, µs", values)


_SPEEDS = (
    ("inference, bfloat16", False, "bf16", "default"),
    ("inference, bfloat16", False, "bf16", "reduce-overhead"),
    ("inference, bfloat16", False, "bf16", "max-autotune"),
    ("training step, bfloat16", True, "bf16", "default"),
)
LINES: tuple[Callable[[], Line], ...] = (
    partial(_cpu, "CPU inference, float32", "inference-cpu", "speedup", speed=True),
    partial(_cpu, "CPU training step, float32", "training-cpu", "speedup", speed=True),
    *[partial(_gpu, *how, "speedup", speed=True) for how in _SPEEDS],
    partial(_cpu, "CPU inference: first call, s", "inference-cpu", "cold", form=".1f"),
    partial(_cpu, "CPU training: first step, s", "training-cpu", "cold", form=".1f"),
    partial(_gpu, "inference: first call, s; bfloat16", False, "bf16", "default", "first", form=".1f"),
    partial(_gpu, "training: first step, s; bfloat16", True, "bf16", "default", "first", form=".1f"),
    partial(_cpu, "CPU training: peak memory, eager = 1", "training-cpu", "memory"),
    _call,
)


def lines() -> list[Line]:
    """Compute the lines in the order of the table."""
    return [line() for line in LINES]


def text() -> str:
    """Make the README's table."""
    found = lines()
    contenders = list(dict.fromkeys(name for line in found for name in line.values))
    header = ["geometric mean", "models", *contenders, f"{OURS} / {THEIRS}"]
    return table(header, [line.cells(contenders) for line in found])
