"""The share that passes, and why the others do not, grouped."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from rich.table import Table

Outcomes = dict[str, dict[str, Any]]


def share(outcomes: Outcomes) -> tuple[int, int]:
    """(passed, architectures that could be built and run by eager)."""
    counted = [o for o in outcomes.values() if o["status"] != "no model"]
    return sum(o["status"] == "pass" for o in counted), len(counted)


def groups(outcomes: Outcomes) -> list[tuple[str, str, list[str]]]:
    """(status, reason, names) of all that do not pass, the most frequent first; numbers in reasons do not tell them
    apart."""
    by: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, o in outcomes.items():
        if o["status"] != "pass":
            by[o["status"], re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "N", o["reason"])].append(name)
    ordered = sorted(by.items(), key=lambda item: (item[0][0] == "no model", -len(item[1])))
    return [(status, outcomes[names[0]]["reason"], names) for (status, _), names in ordered]


def terminal(suite: str, outcomes: Outcomes, *, built_too: bool = False) -> Table:
    """A rich table of the groups; `built_too`: also of what could not be built."""
    passed, counted = share(outcomes)
    table = Table(title=f"{suite}: {passed} of {counted} architectures ({100 * passed / max(counted, 1):.1f} %)",
                  show_lines=True)
    for column, style in (("", "bold"), ("", None), ("reason", None), ("architectures", "dim")):
        table.add_column(column, style=style)
    for status, reason, names in groups(outcomes):
        if status != "no model" or built_too:
            at = sorted({outcomes[n].get("at", "") for n in names} - {""})
            where = f"\n[dim]{', '.join(at[:4])}{' …' if at[4:] else ''}[/dim]" if at else ""
            table.add_row(str(len(names)), status, reason.replace("[", "\\[") + where, ", ".join(names))
    return table


def sentence(suite: str, results: dict[str, Any], dynamic: bool = False) -> str:
    """The share that passes, in a line of Markdown."""
    what = "are compiled once and equal eager at three sizes" if dynamic else "become one graph and equal eager"
    m, passed, counted = results["machine"], results["passed"], results["architectures"]
    return (f"{passed} of {counted} architectures of {suite} ({100 * passed / max(counted, 1):.0f} %) {what} "
            f"({results['backend']} back end, PyTorch {m['torch']}, Python {m['python']}, {results['date']}).")
