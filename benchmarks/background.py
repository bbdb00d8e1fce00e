"""Calls of a served model while it is compiled in the background, beside eager's without a compiler.

    python -m benchmarks.background [--models NAME,...] [--train] [--seconds S] [--out FILE]

A client calls without a pause: first eager for some seconds, then the compiled model, with an empty cache, until it has
been swapped and some seconds beyond. Each model has a process of its own. `--train`: a call is a step of forward,
backward and SGD.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import child

RESULTS = Path(__file__).parent / "results"
MODELS = ("bert", "gpt2", "resnet18", "efficientnet_b0", "vit_tiny_patch16_224")
LIMIT = 600.0
"""Seconds after which a swap is not waited for."""
WARM = 5
AFTER = 3.0
"""Seconds for which calls are timed behind the swap."""


def calls_for(seconds: float, call: Callable[[], object], until: Callable[[], bool] = lambda: False) -> list[float]:
    """Seconds of each call, one after the other, until so much time is over or `until` holds."""
    found, end = [], time.perf_counter() + seconds
    while (start := time.perf_counter()) < end and not until():
        call()
        found.append(time.perf_counter() - start)
    return found


def served(name: str, trains: bool, seconds: float) -> dict[str, Any]:
    """Measure one model in this process."""
    import torch

    import framesmith
    from benchmarks import models

    model, args = models.named()[name]()
    compiled = framesmith.compile(model, options={"background": True})
    call = _stepping(model, args) if trains else _inferring
    swaps: list[float] = []

    def note(event: Any) -> None:
        if type(event).__name__ == "BackgroundCompile":
            swaps.append(time.perf_counter())
            outcomes.append(event.outcome)

    outcomes: list[str] = []
    with torch.inference_mode(not trains), framesmith.on_event(note):
        eager = call(model, *args) if not trains else call(model)
        for _ in range(WARM):
            eager()
        alone = calls_for(seconds, eager)
        run = call(compiled, *args) if not trains else call(compiled)
        began = time.perf_counter()
        while_compiling = calls_for(LIMIT, run, lambda: bool(swaps))
        framesmith.wait(LIMIT)
        after = calls_for(AFTER, run)
    usual, slowest = median(alone), max(while_compiling + after[:WARM])
    return {
        "model": name, "trains": trains, "outcomes": outcomes, "calls": len(while_compiling),
        "swapped_after": round(swaps[-1] - began, 3),
        "eager": usual, "eager_slowest": max(alone), "slowest": slowest, "median": median(while_compiling),
        "compiled": median(after), "ratio": round(slowest / usual, 3),
        "ratio_of_slowest": round(slowest / max(alone), 3),
    }


def _inferring(model: Callable[..., Any], *args: Any) -> Callable[[], object]:
    return lambda: model(*args)


def _stepping(model: Any, args: tuple[Any, ...]) -> Callable[[Any], Callable[[], object]]:
    import torch

    optimiser = torch.optim.SGD(model.train().parameters(), lr=1e-4)

    def of(called: Callable[..., Any]) -> Callable[[], object]:
        def step() -> None:
            out = called(*args)
            loss = (out if isinstance(out, torch.Tensor) else out[0]).square().mean()
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()

        return step

    return of


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table("model", "calls", "swap after", "eager", "slowest eager", "slowest while compiling",
                  "ratio to eager", "compiled")
    for row in rows:
        if "error" in row:
            table.add_row(row["model"], row["error"][:60])
            continue
        times = [f"{row[key] * 1e3:.1f} ms" for key in ("eager", "eager_slowest", "slowest", "compiled")]
        table.add_row(row["model"] + " training" * row["trains"], str(row["calls"]), f"{row['swapped_after']:.1f} s",
                      *times[:3], f"{row['ratio']:.2f}", times[3])
    return table


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=RESULTS / "background-cpu.json")
    parser.add_argument("--one", action="store_true", help="measure in this process")
    asked = parser.parse_args()
    names = asked.models.split(",")
    if asked.one:
        print(json.dumps(served(names[0], asked.train, asked.seconds)))
        return
    from benchmarks import machine

    rows = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            options = ["--one", "--models", name, "--seconds", str(asked.seconds), *["--train"] * asked.train]
            row = child.report_of("benchmarks.background", *options, environment=child.caches(Path(folder)),
                                  timeout=2 * LIMIT)
        rows.append({"model": name, "trains": asked.train} | row)
        Console().print(_table(rows[-1:]))
    asked.out.write_text(json.dumps({"machine": machine.describe(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    _main()
