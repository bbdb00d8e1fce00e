"""Results as tables: for the terminal, and for the README (between two markers)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.run import geometric_mean

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


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
    header = ["model", "eager ms", *names, "error", "graphs/breaks", "warm s"]
    rows = []
    for one in results["models"]:
        by = one["peers"]
        ours = by.get("framesmith", {})
        rows.append([
            one["model"], f"{by['eager']['seconds'] * 1e3:.3f}", *(_cell(by.get(n)) for n in names),
            f"{ours.get('error', float('nan')):.0e}", f"{ours.get('graphs', '–')}/{ours.get('breaks', '–')}",
            f"{ours['warm']:.2f}" if ours.get("warm") is not None else "–",
        ])
    means = []
    for n in names:
        done = [one["peers"][n]["speedup"] for one in results["models"] if "speedup" in one["peers"].get(n, {})]
        means.append(f"{geometric_mean(done):.2f} × of {len(done)}" if done else "–")
    rows.append(["geometric mean", "", *means, "", "", ""])
    return header, rows


def terminal(results: dict[str, Any]) -> Table:
    """A rich table of `results`."""
    header, rows = rows_of(results)
    table = Table(title="speed-up over eager (seconds of the first call with an empty cache)")
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row, end_section=row is rows[-2])
    return table


def markdown(results: dict[str, Any]) -> str:
    """The same table for the README."""
    header, rows = rows_of(results)
    m = results["machine"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    machine = f"{m['processor']}, {m['threads']} threads, {m['vectors']}, Python {m['python']}, PyTorch {m['torch']}"
    note = f"{machine}; measured {results['date']}."
    return "\n".join([*lines, "", note])


def write_into(readme: Path, results: dict[str, Any]) -> None:
    """Replace what stands between the markers in `readme`."""
    text = readme.read_text()
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    readme.write_text(f"{before}{BEGIN}\n{markdown(results)}\n{END}{after}")


def ablation(results: dict[str, Any]) -> Table:
    """Speed-up over eager with each option off."""
    table = Table(title="speed-up over eager, one option off at a time")
    columns = list(results["models"][0]["ablation"])
    for name in ("model", *columns):
        table.add_column(name, justify="left" if name == "model" else "right")
    for one in results["models"]:
        table.add_row(one["model"], *(f"{one['ablation'][c]:.2f}" for c in columns))
    means = (geometric_mean(one["ablation"][c] for one in results["models"]) for c in columns)
    table.add_row("geometric mean", *(f"{m:.2f}" for m in means))
    return table
