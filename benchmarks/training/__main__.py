"""A training step beside eager and torch.compile: forward, loss and backward, and of `mlp+adam` the optimiser's step
too.

    python -m benchmarks.training [MODEL ...] [--peers] [--cold] [--memory] [--ablate] [--rounds N] [--out FILE]

Contenders run in turn in one process a model. `error`: the largest relative error of any gradient (of any buffer, and
with an optimiser of any parameter) against eager's, in the Frobenius norm; `vs f64`: the same against eager in float64;
of eager, the largest of five runs whose parameters and inputs differ by an ulp. `roundings`: the largest distance from
float64 of any tensor in units of eager's own, or of 1e-5.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from pathlib import Path

from rich.console import Console

from benchmarks import machine
from benchmarks import table as tables
from benchmarks.training import run, table
from benchmarks.training.tasks import NAMES

RESULTS = Path(__file__).parents[1] / "results"


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.training", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("models", nargs="*", help=f"all by default: {', '.join(NAMES)}")
    parser.add_argument("--peers", action="store_true", help="beside torch.compile, not eager alone")
    parser.add_argument("--cold", action="store_true", help="time first steps in fresh processes")
    parser.add_argument("--memory", action="store_true", help="count the peak memory of a step in fresh processes")
    parser.add_argument("--ablate", action="store_true", help="turn framesmith's options off one by one instead")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=None, help="the JSON file to write")
    args = parser.parse_args(argv)
    if unknown := set(args.models) - set(NAMES):
        parser.error(f"no such models: {', '.join(sorted(unknown))}")
    return args


def main(argv: list[str] | None = None) -> None:
    """Run what the arguments ask for; print a table, write JSON after each model."""
    args = _arguments(argv)
    console = Console(width=None if sys.stdout.isatty() else 240)
    contenders = run.ABLATIONS if args.ablate else run.PEERS if args.peers else run.OURS
    results: dict = {"date": datetime.date.today().isoformat(), "machine": machine.describe(),
                     "load": os.getloadavg()[0],
                     "peers": list(contenders), "models": []}
    out = args.out or RESULTS / ("training-ablation-cpu.json" if args.ablate else "training-cpu.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    with console.status("") as status:
        for name in args.models or NAMES:
            def report(what: str, name: str = name) -> None:
                status.update(f"{name}: {what}")

            found = run.measure(name, contenders, rounds=args.rounds, cold=args.cold, peaks=args.memory, report=report)
            results["models"].append(found)
            out.write_text(json.dumps(results, indent=1) + "\n")
    header, rows = table.rows_of(results)
    console.print(tables.terminal("a training step; × eager", header, rows))
    for line in tables.failures(results):
        console.print(line, markup=False)


if __name__ == "__main__":
    main()
