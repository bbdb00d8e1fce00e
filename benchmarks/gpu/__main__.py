"""Models on a CUDA device beside eager and torch.compile.

    python -m benchmarks.gpu [MODEL ...] [--training] [--precision bf16|tf32] [--modes MODE ...] [--peers] [--cold] [--rounds N]
                             [--out FILE]

Contenders run in turn in one process a model, timed by the device's events; the median counts. In brackets: the first call, in that
process, or with `--cold` in a fresh one with empty caches. Errors are against a run in float64, in units of eager's own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import machine
from benchmarks import table as tables
from benchmarks.gpu import run, table
from benchmarks.gpu.models import named
from benchmarks.gpu.task import PRECISIONS
from framesmith.config import MODES

RESULTS = Path(__file__).parents[1] / "results"


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("models", nargs="*", help=f"all by default: {', '.join(named())}")
    parser.add_argument("--training", action="store_true", help="forward, loss and backward")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["default"])
    parser.add_argument("--peers", action="store_true", help="beside torch.compile, not eager alone")
    parser.add_argument("--cold", action="store_true", help="time first calls in fresh processes")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path, default=None, help="the JSON file to write")
    args = parser.parse_args(argv)
    if unknown := set(args.models) - set(named()):
        parser.error(f"no such models: {', '.join(sorted(unknown))}")
    return args


def _device() -> dict[str, object]:
    properties = torch.cuda.get_device_properties(0)
    return {"device": properties.name, "memory": properties.total_memory, "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda}


def main(argv: list[str] | None = None) -> None:
    """Run what the arguments ask for; print tables, write JSON after each model."""
    args = _arguments(argv)
    console = Console(width=None if sys.stdout.isatty() else 200)
    who = run.contenders(args.modes, args.peers)
    results: dict = {"date": datetime.date.today().isoformat(), "machine": {**machine.describe(), **_device()}, "peers": list(who),
                     "training": args.training, "precision": args.precision, "models": []}
    kind = "training" if args.training else "inference"
    out = args.out or RESULTS / f"{kind}-gpu-{args.precision}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    given = {"contenders": who, "rounds": args.rounds, "training": args.training, "precision": args.precision}
    for name in args.models or named():
        found = run.measure(name, given, args.cold, lambda what, name=name: print(f"{name}: {what}", file=sys.stderr))
        results["models"].append(found)
        out.write_text(json.dumps(results, indent=1) + "\n")
    console.print(tables.terminal(f"{kind}, {args.precision}; × eager", *table.rows_of(results)))
    console.print(tables.terminal("of the device's ceilings", *table.roofline(results)))
    for line in [*tables.failures(results), *_refusals(results)]:
        console.print(line, markup=False)


def _refusals(results: dict) -> list[str]:
    return [f"{one['model']}: {text}" for one in results["models"] for row in one["peers"].values() for text in row.get("refused", ())]


if __name__ == "__main__":
    main()
