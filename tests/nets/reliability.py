"""What the searches for differences found: the record of their long runs, and the table of it.

    python -m tests.nets.reliability                    prints the table
    python -m tests.nets.reliability --add NET --command TEXT --cases N --differences N --mended N
                                     [--seeds TEXT] [--note TEXT]

A net has one row in benchmarks/results/reliability.json; `--add` writes or replaces it, with the date, versions and
machine of now. The rows of the language are read from the files that its two programs keep. `python -m
benchmarks.document` writes the table into docs/benchmarks/reliability.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
RECORD, FUZZ, SUITE = RESULTS / "reliability.json", RESULTS / "fuzz.json", RESULTS / "cpython-suite.json"
NETS = {
    "operators": "PyTorch's own samples of its operators and modules",
    "random graphs": "random programs of tensors, with gradients",
    "random graphs, dynamic": "the same compiled for any size, each at several",
    "algebra": "random expressions of sizes, against SymPy and evaluation, with relations and what guards imply",
    "state": "changes between two calls of anything that Python can change",
    "argument grid": "forms of arguments and empty sizes",
    "argument grid, sanitized": "the same under AddressSanitizer and UndefinedBehaviorSanitizer",
    "tests, sanitized": "tests of the C++ core under the same",
    "soak": "models compiled, trained and freed in one process: counts of memory that grow",
    "soak, reset": "models that live on, compiled again after each reset: the same counts",
    "threads": "calls, compiles, training steps, breaks, resets, forks and reports by many threads at once",
    "threads, sanitized": "the same under ThreadSanitizer, without forks: races of the C++ core",
    "interrupts": "first calls that a signal's handler ends at a random moment",
    "language fuzz": "random programs of the language",
    "CPython's suite": "CPython's own tests, with every Python function compiled",
}
"""The nets in the table's order."""
SURROUNDINGS = ("date", "python", "torch", "machine")
Row = dict[str, Any]


def of_fuzz(runs: list[Row]) -> Row:
    """The row of all kept runs; a program that failed is mended if its run says so."""
    cases, failed = sum(r["count"] for r in runs), sum(len(r["failed"]) for r in runs)
    mended = sum(len(r.get("mended", ())) for r in runs)
    return {"net": "language fuzz", "command": "python -m tests.fuzz --count N --breaks any", "cases": cases,
            "differences": failed, "mended": mended, **{key: runs[-1][key] for key in SURROUNDINGS}}


def of_suite(said: dict[str, Any]) -> Row:
    """The row of CPython's tests; a file that was lost counts as one difference."""
    files = said["files"]
    differences = sum(max(len(f["failed"]), not f["passed"]) for f in files)
    return {"net": "CPython's suite", "command": "python tests/cpython_suite.py",
            "cases": sum(f["tests"] for f in files), "differences": differences, "mended": 0,
            **{key: said.get(key, "") for key in SURROUNDINGS}}


def recorded() -> dict[str, Row]:
    """The rows of the record, by net."""
    return {row["net"]: row for row in json.loads(RECORD.read_text())} if RECORD.exists() else {}


def rows() -> list[Row]:
    """One row for each net that was run, in the order of `NETS`."""
    language = (of_fuzz(json.loads(FUZZ.read_text())), of_suite(json.loads(SUITE.read_text())))
    found = recorded() | {row["net"]: row for row in language}
    return [found[net] for net in NETS if net in found]


def table(of: list[Row]) -> str:
    """The rows in markdown."""
    heads = ("net", "cases are", "command", "cases", "differences", "of them mended", "run")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in of:
        torch_version = row["torch"] and f"PyTorch {row['torch']}"
        run = ", ".join(filter(None, [row["date"], f"Python {row['python']}", torch_version, row["machine"]]))
        seeds = f", seeds {row['seeds']}" if row.get("seeds") else ""
        note = f" ({row['note']})" if row.get("note") else ""
        lines.append(f"| {row['net']} | {NETS[row['net']]}{note} | `{row['command']}`{seeds} | {row['cases']:,} | "
                     f"{row['differences']} | {row['mended']} | {run} |")
    return "\n".join(lines)


def machine() -> str:
    """The kind of machine, its processor's maker and the number of its cores."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "")
    return " ".join(filter(None, [platform.machine(), platform.system(), name, f"({os.cpu_count()} cores)"]))


def add(row: Row) -> None:
    """Write the row in the place of the net's last one."""
    now = (datetime.date.today().isoformat(), platform.python_version(), torch.__version__, machine())
    kept = recorded() | {row["net"]: row | dict(zip(SURROUNDINGS, now))}
    RECORD.write_text("[\n" + ",\n".join(json.dumps(kept[net]) for net in NETS if net in kept) + "\n]\n")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--add", choices=list(NETS), metavar="NET", help=f"one of: {', '.join(NETS)}")
    for name in ("cases", "differences", "mended"):
        p.add_argument(f"--{name}", type=int, default=0)
    for name in ("command", "seeds", "note"):
        p.add_argument(f"--{name}", default="")
    a = p.parse_args()
    if a.add:
        fields = ("command", "seeds", "note", "cases", "differences", "mended")
        add({"net": a.add, **{key: getattr(a, key) for key in fields}})
    print(table(rows()))


if __name__ == "__main__":
    main()
