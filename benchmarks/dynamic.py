"""One model over many sizes: compiles, seconds that the first pass over the sizes takes, and times a call.

    python -m benchmarks.dynamic [--models NAME,...] [--device cuda] [--mode MODE] [--rounds N] [--out FILE]

Contenders in one process: eager; framesmith and torch.compile as they are by default, each compiled once and called
with the sizes in one order; framesmith with `dynamic=False` and a variant for each size that is timed. `--mode` is of
both compilers. Each result of framesmith is compared with eager's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import machine, models
from benchmarks.child import caches
from benchmarks.dynamic_cases import CPU_CASES, GPU_CASES, Case, Inputs
from benchmarks.gpu import measure as gpu_measure
from benchmarks.run import error_against
from benchmarks.table import geometric_mean
from framesmith.tools.interleaved import interleaved as in_process

RESULTS = Path(__file__).parent / "results"
TOLERANCE = 1e-3
CASES = {"cpu": CPU_CASES, "cuda": GPU_CASES}
def _first(out: Any) -> torch.Tensor:
    return out if isinstance(out, torch.Tensor) else out[0]


def _inference(call: Callable[..., Any], **inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return _first(call(**inputs))


def _step(call: Callable[..., Any], **inputs: torch.Tensor) -> torch.Tensor:
    """The gradient of the first parameter. The loss reads every second feature: over all of them the mean square of
    what a layer norm gives is constant, and its gradient zero but for rounding."""
    parameters = list(call.parameters())  # type: ignore[attr-defined]
    for p in parameters:
        p.grad = None
    _first(call(**inputs))[..., ::2].square().mean().backward()
    found: torch.Tensor = parameters[0].grad
    return found


def _first_pass(call: Callable[..., torch.Tensor], sizes: list[Inputs]) -> tuple[float, list[torch.Tensor]]:
    start = time.perf_counter()
    results = [call(**inputs).clone() for inputs in sizes]
    return time.perf_counter() - start, results


def _times(calls: dict[str, Callable[..., Any]], inputs: Inputs, device: str, rounds: int) -> dict[str, float]:
    """The median seconds of a call of each contender."""
    interleaved = in_process if device == "cpu" else gpu_measure.interleaved
    found = interleaved({name: partial(call, **inputs) for name, call in calls.items()}, rounds)
    return {name: timing.median for name, timing in found.items()}


def row_of(case: Case, device: str, mode: str, rounds: int) -> dict[str, Any]:
    """Measure one case."""
    import torch._dynamo as dynamo

    import framesmith
    from framesmith import compiler

    torch.manual_seed(0)
    model = case.build().eval().to(device)
    sizes = [{name: x.to(device) for name, x in inputs.items()} for inputs in case.sizes(random.Random(0))]
    run = partial(partial, _step if case.trains else _inference)
    captured: list[str] = []
    capture = compiler.convert_frame

    def counted(code: Any, *args: Any, **kwargs: Any) -> Any:
        captured.append(code.co_qualname)
        return capture(code, *args, **kwargs)

    compiler.convert_frame = counted
    try:
        timed = sizes[::case.every]
        _, want = _first_pass(run(model), sizes)
        ours = run(framesmith.compile(model, mode=mode))
        seconds, got = _first_pass(ours, sizes)
        compiles = len(captured)
        static = run(framesmith.compile(model, mode=mode, dynamic=False, options={"max_variants": 2 * len(timed)}))
        _first_pass(static, timed)
        dynamo.reset()
        dynamo.utils.counters.clear()
        peer = run(torch.compile(model, mode=mode))
        peer_seconds, _ = _first_pass(peer, sizes)
        peer_compiles = dynamo.utils.counters["stats"]["unique_graphs"]
        calls = {"eager": run(model), "framesmith": ours, "static": static, "torch.compile": peer}
        times = [_times(calls, inputs, device, rounds) for inputs in timed]
    finally:
        compiler.convert_frame = capture
    return {
        "about": case.about, "mode": mode, "sizes": len(sizes), "error": max(map(error_against, want, got)),
        "framesmith": {"compiles": compiles, "first_pass": seconds},
        "torch.compile": {"compiles": peer_compiles, "first_pass": peer_seconds}, "times": times,
    }


def ratios(row: dict[str, Any], of: str, to: str) -> list[float]:
    """The times of contender `to` in those of `of`, for each size: above one, `of` is faster."""
    return [one[to] / one[of] for one in row["times"]]


HEADER = ["model and sizes", "compiles", "first pass", "against a compile for each size", "against eager", "lowest",
          "torch.compile: compiles", "first pass", "against eager"]


def rows_of(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table: header and rows."""
    rows = []
    for row in results["rows"]:
        ours, peer = row["framesmith"], row["torch.compile"]
        eager = ratios(row, "framesmith", "eager")
        about = row["about"] + ("" if row["mode"] == "default" else f", `{row['mode']}`")
        rows.append([about, str(ours["compiles"]), f"{ours['first_pass']:.1f} s",
                     f"{geometric_mean(ratios(row, 'framesmith', 'static')):.2f}×", f"{geometric_mean(eager):.2f}×",
                     f"{min(eager):.2f}×", str(peer["compiles"]), f"{peer['first_pass']:.1f} s",
                     f"{geometric_mean(ratios(row, 'torch.compile', 'eager')):.2f}×"])
    return HEADER, rows


def main() -> Iterator[str]:
    p = argparse.ArgumentParser(prog="python -m benchmarks.dynamic", description="One model over many sizes.")
    p.add_argument("--models", help="comma-separated names (default: all)")
    p.add_argument("--device", choices=CASES, default="cpu")
    p.add_argument("--mode", default="default", help="of framesmith.compile and torch.compile")
    p.add_argument("--rounds", type=int, default=5, help="interleaved rounds for each size")
    p.add_argument("--out", type=Path, help="default: dynamic-DEVICE.json in benchmarks/results")
    a = p.parse_args()
    models.declare_torchvision_operators()
    cases, out = CASES[a.device], a.out or RESULTS / f"dynamic-{a.device}.json"
    known = json.loads(out.read_text())["rows"] if out.exists() else []
    rows = {(row["name"], row["mode"]): row for row in known}  # of those that are not measured now
    about = machine.describe()
    if a.device == "cuda":
        about |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(caches(Path(folder)))  # each contender begins without a cache
        for name in a.models.split(",") if a.models else cases:
            rows[name, a.mode] = {"name": name, **row_of(cases[name], a.device, a.mode, a.rounds)}
            if (error := rows[name, a.mode]["error"]) > TOLERANCE:
                yield f"{name}: a result differs from eager's by {error:.1e}"
            order = sorted(rows, key=lambda key: (list(cases).index(key[0]), key[1]))
            results = {"machine": about, "date": time.strftime("%Y-%m-%d"), "rows": [rows[key] for key in order]}
            out.write_text(json.dumps(results, indent=1) + "\n")
    header, lines = rows_of(results)
    shown = Table(*header)
    for line in lines:
        shown.add_row(*line)
    Console().print(shown)


if __name__ == "__main__":
    raise SystemExit("\n".join(main()) or 0)
