"""Results as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table

from benchmarks.cold import KEPT
from benchmarks.run import geometric_mean


def _cell(row: dict[str, Any] | None) -> str:
    if not row:
        return "–"
    if "seconds" not in row:
        return "fails" if "failed" in row else "–"
    text = f"{row['speedup']:.2f} ×"
    return f"{text} ({row['cold']:.1f} s)" if row.get("cold") is not None else text


def rows_of(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: model, eager's time, then each peer as speed-up (cold first call)."""
    names = [n for n in results["peers"] if n != "eager"]
    warm = [n for n in KEPT if n in names]
    header = ["model", "eager ms", *names, "error", "graphs/breaks", *[f"{n}: warm s" for n in warm]]
    rows = []
    for one in results["models"]:
        by = one["peers"]
        ours = by.get("framesmith", {})
        rows.append([
            one["model"], f"{by['eager']['seconds'] * 1e3:.3f}", *(_cell(by.get(n)) for n in names),
            f"{ours.get('error', float('nan')):.0e}", f"{ours.get('graphs', '–')}/{ours.get('breaks', '–')}",
            *(f"{by[n]['warm']:.2f}" if by.get(n, {}).get("warm") is not None else "–" for n in warm),
        ])
    means = []
    for n in names:
        means.append(mean(one["peers"][n]["speedup"]
                          for one in results["models"] if "speedup" in one["peers"].get(n, {})))
    rows.append(["geometric mean", "", *means, "", "", *("" for _ in warm)])
    return header, rows


def terminal(title: str, header: list[str], rows: list[list[str]]) -> Table:
    """A rich table; the last row stands apart."""
    table = Table(title=title)
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row, end_section=row is rows[-2])
    return table


def mean(ratios: Iterable[float]) -> str:
    """The cell of a geometric mean."""
    done = list(ratios)
    return f"{geometric_mean(done):.2f} × of {len(done)}" if done else "–"


def failures(results: dict[str, Any]) -> list[str]:
    """A line for each contender that failed on a model."""
    rows = [(one["model"], name, row) for one in results["models"] for name, row in one["peers"].items()]
    return [f"{model}, {name}: {row['failed']}" for model, name, row in rows if "failed" in row]


def ablation(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: speed-up over eager with each option off."""
    columns = list(results["models"][0]["ablation"])
    rows = [[one["model"], *(f"{one['ablation'][c]:.2f}" for c in columns)] for one in results["models"]]
    means = (geometric_mean(one["ablation"][c] for one in results["models"]) for c in columns)
    return ["model", *columns], [*rows, ["geometric mean", *(f"{m:.2f}" for m in means)]]
