"""Models on CUDA devices beside eager and torch.compile.

    python -m benchmarks.gpu [MODEL ...] [--kinds inference training] [--precisions bf16 tf32] [--modes MODE ...]
    [--peers] [--warm]
                             [--warm-only] [--everything] [--devices N] [--slots N] [--seconds N] [--patience N]
                             [--only-missing] [--ablate] [--kernels] [--rows ROW ...] [--join FILE] [--out FILE]

A row (a model, inference or training, a precision) is measured in a process of its own: contenders in turn, timed by
the device's events while nothing else runs on the device; the median counts. Rows add up in one file over many runs,
which is written after each row. The first call of each contender has empty caches and comes after eager's, on the cores
of its slot; what torch.compile imports does not count, nor do the seconds in which the process stood still. `--warm`:
framesmith's first call again in a second process (`--warm-only`: nothing else of rows that the file has). `errors`:
against a run in float64, in units of eager's own. `memory`: the height of a call over model and inputs, what is kept
between calls included, over eager's; pools of CUDA graphs stand apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import table as tables
from benchmarks.gpu import plan, table
from benchmarks.gpu.jobs import Machine, devices
from benchmarks.gpu.models import named
from benchmarks.gpu.results import Results
from benchmarks.gpu.row import ABLATION, Row
from benchmarks.gpu.task import PRECISIONS
from framesmith.config import MODES

RESULTS = Path(__file__).parents[1] / "results" / "gpu.json"


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("models", nargs="*", help=f"all by default: {', '.join(named())}")
    parser.add_argument("--kinds", nargs="+", choices=plan.KINDS, default=["inference"])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=["bf16"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["default"])
    parser.add_argument("--peers", action="store_true", help="beside torch.compile, not eager alone")
    parser.add_argument("--warm", action="store_true", help="first calls again in second processes")
    parser.add_argument("--warm-only", action="store_true", help="nothing but these, for rows that are there")
    parser.add_argument("--ablate", action="store_true", help="turn framesmith's options off one by one instead")
    parser.add_argument("--kernels", action="store_true", help="memory-bound kernels against a copy, too")
    parser.add_argument("--everything", action="store_true", help="all that the tables show, the most wanted first")
    parser.add_argument("--rows", nargs="+", metavar="ROW",
                        help="in this order: KIND:PRECISION:MODE,MODE:MODEL,MODEL, or kernels")
    parser.add_argument("--devices", type=int, default=None, help="so many of them; all by default")
    parser.add_argument("--slots", type=int, default=None,
                        help="processes at once on one device; one for three cores by default")
    parser.add_argument("--seconds", type=float, default=None, help="stop after so long")
    parser.add_argument("--patience", type=float, default=None, help="seconds that torch.compile has for a first call")
    parser.add_argument("--only-missing", action="store_true", help="what the file has is not measured again")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--join", type=Path, nargs="*", default=[], help="take the rows of these files, too")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the JSON file")
    args = parser.parse_args(argv)
    if unknown := set(args.models) - set(named()):
        parser.error(f"no such models: {', '.join(sorted(unknown))}")
    return args


def rows_of(args: argparse.Namespace) -> list[Row]:
    """What the arguments ask for."""
    if args.everything:
        return [row for row in plan.everything(args.peers, args.rounds) if not args.models or row.model in args.models]
    if args.rows:
        return plan.spelled(args.rows, args.peers, args.rounds)
    modes = (ABLATION,) if args.ablate else tuple(args.modes)
    rows = [
        row
        for kind in args.kinds
        for precision in args.precisions
        for row in plan.of(args.models or named(), kind, precision, modes, args.peers and not args.ablate, args.rounds)
    ]
    return [plan.kernels(), *rows] if args.kernels else rows


def measure(args: argparse.Namespace, results: Results) -> None:
    """Add to the results what the arguments ask for."""
    asked = rows_of(args)
    rows = list(_missing(asked, results)) if args.only_missing else asked
    if args.warm_only:
        rows = [replace(row, warm=True, peers=False, modes=row.modes[:1]) for row in rows if row.has_first]

    def done(row: Row, found: dict[str, Any]) -> None:
        results.add(row, found)
        print(f"{row}: {json.dumps(table.brief(found))}", flush=True)

    there = devices(args.devices or torch.cuda.device_count(), args.slots)
    Machine(there, args.seconds, args.patience, done,
            lambda text: print(text, file=sys.stderr, flush=True)).run(rows, args.warm)


def _missing(rows: list[Row], results: Results) -> Iterator[Row]:
    for row in rows:
        if (found := results.missing(row)) is not None:
            yield found


def main(argv: list[str] | None = None) -> None:
    """Measure what the arguments ask for; print tables, write JSON after each row."""
    args = _arguments(argv)
    console = Console(width=None if sys.stdout.isatty() else 220)
    results = Results(args.out)
    for other in args.join:
        results.join(other)
    if not args.show:
        measure(args, results)
    for title, header, lines in table.all_of(results):
        console.print(tables.terminal(title, header, [*lines, ["" for _ in header]]))
    for line in table.notes(results):
        console.print(line, markup=False)


if __name__ == "__main__":
    main()
