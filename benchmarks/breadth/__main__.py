"""How many architectures `framesmith.compile(model, fullgraph=True)` takes, equal to eager; each that fails with its
reason. `--dynamic`: compiled once with `dynamic=True`, and equal at three sizes.

    python -m benchmarks.breadth transformers|timm [--dynamic] [--only PATTERN] [--backend eager|native]
                                [--failed | --new] [--every N] [--limit SECONDS] [--jobs N] [--out FILE]
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
    parser.add_argument("--only", default="",
                        help="a regular expression that names must match; results of others stay in the file")
    parser.add_argument("--backend", default="native", help="native, or eager to look at capture alone")
    parser.add_argument("--dynamic", action="store_true", help="one compilation for three sizes")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only one of N names, evenly spread")
    parser.add_argument("--failed", action="store_true", help="only those that failed in the file")
    parser.add_argument("--new", action="store_true", help="only those that the file does not have")
    parser.add_argument("--unbuilt", action="store_true", help="list what could not be built, too")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one architecture")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, default=None, help="the JSON file to write")
    return parser.parse_args()


def main() -> None:
    """Judge what the arguments ask for; print a table, write JSON."""
    args = _arguments()
    console = Console()
    suite = importlib.import_module(f"benchmarks.breadth.{args.suite}")
    kind = ["dynamic"] if args.dynamic else []
    parts = ["breadth", args.suite, *kind, *([] if args.backend == "native" else [args.backend])]
    out = args.out or RESULTS / f"{'-'.join(parts)}.json"
    keep = args.only or args.failed or args.new
    outcomes: report.Outcomes = json.loads(out.read_text())["outcomes"] if keep and out.exists() else {}
    names = [n for n in suite.names()[::args.every] if _wanted(n, args, outcomes)]
    chosen: report.Outcomes = {}
    judged = runner.judged([args.suite, args.backend, *kind], names, args.limit, args.jobs)
    for name, outcome in track(judged, args.suite, len(names), console=console):
        outcomes[name] = chosen[name] = outcome
        _write(out, args.backend, outcomes)
        if outcome["status"] not in ("pass", "no model"):
            console.print(f"{name}: {outcome['status']}: {outcome['reason']}", markup=False, highlight=False)
    console.print(report.terminal(args.suite, chosen, built_too=args.unbuilt))
    console.print("{} of {} in {}".format(*report.share(outcomes), out.name))


def _wanted(name: str, args: argparse.Namespace, known: report.Outcomes) -> bool:
    if (args.failed and known.get(name, {"status": "pass"})["status"] in ("pass", "no model") or args.new
        and name in known):
        return False
    return re.search(args.only, name) is not None


def _write(out: Path, backend: str, outcomes: report.Outcomes) -> None:
    passed, counted = report.share(outcomes)
    results = {
        "date": datetime.date.today().isoformat(), "machine": machine.describe(), "backend": backend,
        "passed": passed, "architectures": counted, "outcomes": dict(sorted(outcomes.items())),
    }  # fmt: skip
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
