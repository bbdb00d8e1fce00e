"""The figures as tables: ratios to eager, and how near a call is to the device's ceilings."""

from __future__ import annotations

from typing import Any

from benchmarks.table import mean


def _cell(row: dict[str, Any] | None) -> str:
    if not row or "seconds" not in row:
        return "fails" if row and "failed" in row else "–"
    first = row.get("cold") or row.get("first")
    return f"{row['speedup']:.2f} ×" + (f" ({first:.1f} s)" if first is not None else "")


def rows_of(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Model, eager's time, each contender's speed-up (first call), then framesmith's error and memory in units of eager's."""
    names = [n for n in results["peers"] if n != "eager"]
    header = ["model", "eager ms", *names, "error / eager's", "memory / eager's", "graphs/breaks"]
    rows = []
    for one in results["models"]:
        by = one["peers"]
        ours, eager = by.get("framesmith", {}), by.get("eager", {})
        rows.append([
            one["model"], f"{eager.get('seconds', float('nan')) * 1e3:.3f}", *(_cell(by.get(n)) for n in names),
            f"{ours.get('errors', float('nan')):.2f}", f"{ours.get('memory', float('nan')):.2f}",
            f"{one.get('graphs', '–')}/{one.get('breaks', '–')}",
        ])
    means = [mean(one["peers"][n]["speedup"] for one in results["models"] if "speedup" in one["peers"].get(n, {})) for n in names]
    return header, [*rows, ["geometric mean", "", *means, "", "", ""]]


def roofline(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """For each model, the least time by bytes (against the copy) and by operations (against the product), over framesmith's time."""
    header = ["model", "GB", "TFLOP", "ours ms", "by bytes", "by operations"]
    rows = []
    for one in results["models"]:
        seconds = one["peers"].get("framesmith", {}).get("seconds")
        if seconds is None or "work" not in one:
            continue
        work, limits = one["work"], one["ceilings"]
        by_bytes = work["bytes"] / limits["copy"] / seconds
        by_operations = work["operations"] / limits[results["precision"]] / seconds
        rows.append([
            one["model"], f"{work['bytes'] / 1e9:.2f}", f"{work['operations'] / 1e12:.3f}", f"{seconds * 1e3:.3f}", f"{by_bytes:.0%}",
            f"{by_operations:.0%}",
        ])
    return header, [*rows, ["", "", "", "", "", ""]]
