"""`python -m benchmarks.reliability`: write the README's reliability table from `benchmarks/results/reliability.json`.

Each net (a search for differences between compiled code and eager) adds its last run with `keep`.
"""

from __future__ import annotations

import datetime
import json
import platform
from pathlib import Path
from typing import Any

import torch

from benchmarks.readme import write_between

RESULTS = Path(__file__).parent / "results" / "reliability.json"
HEADER = ("what is compared with eager", "cases", "differences", "left to eager", "command", "measured")


def keep(name: str, cases: int, differences: int, command: str, *, left_out: int = 0, results: Path = RESULTS) -> None:
    """Replace the row `name`: `cases` compared, of which `differences` are unexplained; `left_out` ran in eager by a refusal."""
    rows = load(results)
    rows[name] = {
        "cases": cases, "differences": differences, "left_out": left_out, "command": command,
        "date": datetime.date.today().isoformat(), "python": platform.python_version(), "torch": torch.__version__,
    }
    results.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")


def load(results: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The kept rows by name; none where no net has run."""
    return json.loads(results.read_text()) if results.exists() else {}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    lines = [HEADER, ("---",) * len(HEADER)]
    for name, row in sorted(rows.items()):
        setting = f"{row['date']}, Python {row['python']}, PyTorch {row['torch']}"
        lines.append((name, f"{row['cases']:,}", f"{row['differences']:,}", f"{row['left_out']:,}", f"`{row['command']}`", setting))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    write_between("reliability", table(load()))
