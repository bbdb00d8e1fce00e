"""The figures as tables: ratios to eager, and how near a call is to the device's ceilings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import kernels
from benchmarks.gpu.models import named
from benchmarks.gpu.results import Entry, Results
from benchmarks.run import geometric_mean
from framesmith.config import MODES

Table = tuple[str, list[str], list[list[str]]]
"""Title, header and rows; the last row is of means."""
KINDS = ((False, "inference"), (True, "training"))
PRECISIONS = (("bf16", "bfloat16 autocast"), ("tf32", "float32 with TF32"))
PEERS = ("framesmith", "torch.compile")


def brief(found: dict[str, Any]) -> Any:
    """What a run says of a row when it is done."""
    if "peers" not in found:
        return found
    digits = {"speedup": 2, "first": 1, "memory": 2, "errors": 2}
    return {
        label: {k: round(row[k], n) for k, n in digits.items() if k in row} | {k: row[k] for k in ("failed", "refused") if k in row}
        for label, row in found["peers"].items() if label != "eager"
    } | {k: found[k] for k in ("graphs", "breaks", "in eager") if k in found}  # fmt: skip


def speeds(results: Results, training: bool, precision: str) -> Table | None:
    """A row a model, two columns a mode, then first calls, error and memory of the default mode."""
    by_mode = {mode: {e["model"]: e for e in results.of(training=training, precision=precision, mode=mode)} for mode in MODES}
    modes = [mode for mode, found in by_mode.items() if found]
    if not modes:
        return None
    header = ["model", "eager ms", *[f"{mode}: {peer}" for mode in modes for peer in PEERS]]
    header += ["1st call s", "torch.compile's", "warm s", "error", "memory", "torch.compile's", "graphs/breaks"]
    rows = []
    for model in named():
        entries = [by_mode[mode].get(model) for mode in modes]
        if any(entries):
            rows.append([model, *_speeds_of(entries)])
    means = [_mean(by_mode[mode].values(), peer) for mode in modes for peer in PEERS]
    return f"{dict(KINDS)[training]}, {dict(PRECISIONS)[precision]}", header, [*rows, ["geometric mean", "", *means, *[""] * 7]]


def _speeds_of(entries: list[Entry | None]) -> list[str]:
    first = next(e for e in entries if e is not None)
    ours, theirs, eager = (_peer(first, label) for label in (*PEERS, "eager"))
    cells = [_number(eager, "seconds", ".3f", 1e3), *[_speed(_peer(e, peer)) for e in entries for peer in PEERS]]
    cells += [_number(row, "first", ".1f") for row in (ours, theirs)]
    cells += [_number(ours, "warm", ".1f"), _number(ours, "errors", ".2f")]
    cells += [_number(row, "memory", ".2f") for row in (ours, theirs)]
    return [*cells, f"{first.get('graphs', '–')}/{first.get('breaks', '–')}"]


def _peer(entry: Entry | None, label: str) -> dict[str, Any]:
    return entry["peers"].get(label, {}) if entry is not None else {}


def _number(row: dict[str, Any], name: str, form: str, scale: float = 1.0) -> str:
    return format(row[name] * scale, form) if row.get(name) is not None else "–"


def _speed(row: dict[str, Any]) -> str:
    return "fails" if "failed" in row else f"{row['speedup']:.2f} ×" if "speedup" in row else "–"


def _mean(entries: Any, peer: str) -> str:
    """Over the models that every contender has run."""
    whole = [e for e in entries if all("speedup" in row for row in e["peers"].values())]
    ratios = [e["peers"][peer]["speedup"] for e in whole if peer in e["peers"]]
    return f"{geometric_mean(ratios):.2f} × of {len(ratios)}" if ratios else "–"


def pools(results: Results) -> Table | None:
    """What the two hold between calls in the modes with CUDA graphs."""
    rows = []
    for entry in results.of(mode="reduce-overhead"):
        cells = [_number(_peer(entry, peer), name, ".0f", 1e-6) for name in ("held", "pool") for peer in PEERS]
        rows.append([f"{entry['model']}, {dict(KINDS)[entry['training']]}, {entry['precision']}", *cells])
    header = ["reduce-overhead", *[f"{name} MB: {peer}" for name in ("held", "pool") for peer in PEERS]]
    return ("memory between calls", header, rows) if rows else None


def roofline(results: Results) -> Table | None:
    """For each model the bytes and operations that it must do, the rates reached, and the least time over framesmith's."""
    header = ["model", "GB", "TFLOP", "ms", "TB/s", "of the copy", "TFLOP/s", "of the product", "least time / ours", "/ eager's"]
    rows = []
    for entry in results.of(mode="default", precision="bf16"):
        ours, work, limits = _peer(entry, "framesmith"), entry.get("work"), entry.get("ceilings")
        if "seconds" not in ours or not work or not limits:
            continue
        seconds = ours["seconds"]
        moved, done = work["bytes"] / seconds, work["operations"] / seconds
        rows.append([
            f"{entry['model']}, {dict(KINDS)[entry['training']]}", f"{work['bytes'] / 1e9:.2f}", f"{work['operations'] / 1e12:.3f}",
            f"{seconds * 1e3:.3f}", f"{moved / 1e12:.2f}", f"{moved / limits['copy']:.0%}",
            f"{done / 1e12:.0f}", f"{done / limits['bf16']:.0%}",
            f"{work['seconds'] / seconds:.0%}", f"{work['seconds'] / entry['peers']['eager']['seconds']:.0%}",
        ])
    return ("of the device's ceilings, default mode, bfloat16 autocast", header, rows) if rows else None


def ablations(results: Results) -> Table | None:
    """Speed-up over eager with one option turned off or on."""
    entries = results.of(mode="ablation")
    if not entries:
        return None
    columns = [name for name in entries[0]["peers"] if name != "eager"]
    rows = [
        [f"{e['model']}, {dict(KINDS)[e['training']]}", *[_speed(e["peers"].get(name, {})) for name in columns]] for e in entries
    ]
    whole = [e for e in entries if all("speedup" in row for row in e["peers"].values())]
    means = [f"{geometric_mean([e['peers'][name]['speedup'] for e in whole]):.2f} ×" if whole else "–" for name in columns]
    return "one option changed at a time", ["model", *columns], [*rows, ["geometric mean", *means]]


def all_of(results: Results) -> Iterator[Table]:
    """Every table for which there are figures."""
    for training, _ in KINDS:
        for precision, _ in PRECISIONS:
            if (found := speeds(results, training, precision)) is not None:
                yield found
    for make in (pools, roofline, ablations):
        if (found := make(results)) is not None:
            yield found
    if results.kernels:
        yield "memory-bound kernels", *kernels.rows_of(results.kernels)


def notes(results: Results) -> list[str]:
    """A line for each contender that failed, and for what framesmith refused."""
    found = []
    for key, entry in results.rows.items():
        if "failed" in entry:
            found.append(f"{key}: {entry['failed']}")
        for label, row in entry.get("peers", {}).items():
            found += [f"{key}, {label}: {text}" for text in (*row.get("refused", ()), *([row["failed"]] if "failed" in row else ()))]
    return found


def markdown(results: Results) -> str:
    """The tables for the README, and what they were measured on."""
    parts = []
    for title, header, rows in all_of(results):
        lines = [f"*{title}*", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        parts.append("\n".join([*lines, *["| " + " | ".join(row) + " |" for row in rows]]))
    machines = {f"{m['device']}, CUDA {m['cuda']}, {m['cores']} cores, Python {m['python']}, PyTorch {m['torch']}": None
                for m in (entry["machine"] for entry in results.rows.values())}
    dates = sorted({entry["date"] for entry in results.rows.values()})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return "\n\n".join([*parts, f"{'; '.join(machines)}; measured {when}."])
