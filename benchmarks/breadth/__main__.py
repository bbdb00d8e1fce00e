"""How many architectures `framesmith.compile(model, fullgraph=True)` takes, equal to eager; each that fails with its reason.

    python -m benchmarks.breadth transformers|timm [--only PATTERN] [--backend eager|native] [--failed] [--limit SECONDS] [--out FILE]
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import re
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks import machine
from benchmarks.breadth import report, runner

RESULTS = Path(__file__).parents[1] / "results"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.breadth", description=__doc__)
    parser.add_argument("suite", choices=("timm", "transformers"))
    parser.add_argument("--only", default="", help="a regular expression that names must match; results of others stay in the file")
    parser.add_argument("--backend", default="native", help="native, or eager to look at capture alone")
    parser.add_argument("--failed", action="store_true", help="only those that failed in the file")
    parser.add_argument("--unbuilt", action="store_true", help="list what could not be built, too")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one architecture")
    parser.add_argument("--out", type=Path, default=None, help="the JSON file to write")
    return parser.parse_args()


def main() -> None:
    """Judge what the arguments ask for; print a table, write JSON."""
    args = _arguments()
    console = Console()
    suite = importlib.import_module(f"benchmarks.breadth.{args.suite}")
    out = args.out or RESULTS / f"breadth-{args.suite}{'' if args.backend == 'native' else '-' + args.backend}.json"
    known: report.Outcomes = json.loads(out.read_text())["outcomes"] if out.exists() and (args.only or args.failed) else {}
    failed = {n for n, o in known.items() if o["status"] not in ("pass", "no model")}
    names = [n for n in suite.names() if re.search(args.only, n) and (not args.failed or n in failed)]
    outcomes = dict(known)
    chosen: report.Outcomes = {}
    for name, outcome in track(runner.judged(args.suite, names, args.backend, args.limit), args.suite, len(names), console=console):
        outcomes[name] = chosen[name] = outcome
        if outcome["status"] not in ("pass", "no model"):
            console.print(f"{name}: {outcome['status']}: {outcome['reason']}", markup=False, highlight=False)
    console.print(report.terminal(args.suite, chosen, built_too=args.unbuilt))
    passed, counted = report.share(outcomes)
    results = {
        "date": datetime.date.today().isoformat(), "machine": machine.describe(), "backend": args.backend,
        "passed": passed, "architectures": counted, "outcomes": dict(sorted(outcomes.items())),
    }  # fmt: skip
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
