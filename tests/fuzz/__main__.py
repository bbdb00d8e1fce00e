"""`python -m tests.fuzz --count N --start SEED [--jobs J] [--breaks none|open|any] [--backend eager|native]`; see
`--help`."""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import math
import platform
import sys
import time
from collections import Counter
from itertools import takewhile
from pathlib import Path

import torch

from tests.fuzz.pool import run_all
from tests.fuzz.program import Options, generate
from tests.fuzz.reduce import reduce
from tests.fuzz.runner import Verdict, check

ROUNDINGS = {"eager": 0.0, "native": 16.0}
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz.json"


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m tests.fuzz",
                                description="Random programs, compiled and plain, compared.")
    p.add_argument("--start", type=int, default=0, help="the first seed")
    p.add_argument("--count", type=int, default=100, help="how many seeds")
    p.add_argument("--seconds", type=float, help="begin no more programs after so long")
    p.add_argument("--jobs", type=int, default=1, help="processes")
    p.add_argument("--breaks", choices=("none", "open", "any"), default="any",
                   help="where graphs break (open: not in try, with)")
    p.add_argument("--wide", action="store_true", help="with more kinds of values and statements")
    p.add_argument("--data", action="store_true", help="with control flow on data and sizes, and gradients")
    p.add_argument("--backend", choices=("eager", "native"), default="eager", help="who runs the graphs")
    p.add_argument("--tolerance", type=float,
                   help="roundings that a floating number may be off by (native: 16, eager: 0)")
    p.add_argument("--show", type=int, metavar="SEED", help="print a program and its verdict")
    p.add_argument("--reduce", type=int, metavar="SEED",
                   help="print the smallest program found that fails as this one does")
    p.add_argument("--file", help="the verdict on a program in a file")
    p.add_argument("--keep", action="store_true", help=f"add the result to {RESULTS.name}")
    a = p.parse_args()
    options = Options(a.breaks, a.wide, a.data)
    tolerance = a.tolerance if a.tolerance is not None else ROUNDINGS["native" if a.data else a.backend]
    judge = functools.partial(check, backend=a.backend, tolerance=tolerance)
    if a.file is not None:
        return _report(judge(Path(a.file).read_text()))
    if a.show is not None:
        text = generate(a.show, options)
        print(text)
        return _report(judge(text))
    if a.reduce is not None:
        print(reduce(generate(a.reduce, options), judge))
        return 0
    return _hunt(a, lambda seed: judge(generate(seed, options)))


def _report(verdict: Verdict) -> int:
    print(f"# {verdict.kind}: {verdict.detail}\n# {verdict.captured} frames captured; {dict(verdict.reasons)}")
    return 0 if verdict.good else 1


def _hunt(a: argparse.Namespace, judge: functools.partial[Verdict]) -> int:
    kinds: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    captured = returned = 0
    failed = []
    end = time.monotonic() + (a.seconds or math.inf)
    seeds = takewhile(lambda _: time.monotonic() < end, range(a.start, a.start + a.count))
    for seed, verdict in run_all(judge, seeds, a.jobs):
        kinds[verdict.kind] += 1
        reasons.update(verdict.reasons)
        captured += verdict.captured > 0
        returned += verdict.returned
        if not verdict.good:
            failed.append(seed)
            print(f"{seed}: {verdict.kind}: {verdict.detail}", flush=True)
    print("\n".join(f"{n:6} {reason}" for reason, n in reasons.most_common(25)))
    print(f"{sum(kinds.values())} programs: {dict(kinds)}; {captured} with captured code, {returned} calls that "
          f"return; failed: {failed}")
    if a.keep:
        _keep(a, kinds, captured, failed)
    return 1 if failed else 0


def _keep(a: argparse.Namespace, kinds: Counter[str], captured: int, failed: list[int]) -> None:
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows.append({
        "start": a.start, "count": sum(kinds.values()),
        "breaks": a.breaks, "wide": a.wide, "data": a.data, "backend": a.backend,
        "same": kinds["same"], "left_out": kinds["left out"],
        "captured": captured, "failed": sorted(failed), "date": datetime.date.today().isoformat(),
        "python": platform.python_version(), "torch": torch.__version__,
        "machine": f"{platform.machine()} {platform.system()}",
    })
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")


if __name__ == "__main__":
    sys.exit(main())
