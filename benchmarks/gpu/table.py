"""The figures as tables: ratios to eager, and how near a call is to the device's ceilings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
COSTLY = ("default", "max-autotune")
"""Modes whose first calls differ."""


def brief(found: dict[str, Any]) -> Any:
    """What a run says of a row when it is done."""
    if "kernels" in found:
        return {one["kernel"]: round(one["reached"], 2) for one in found["kernels"]}
    if "peers" not in found:
        return found
    digits = {"speedup": 2, "first": 1, "late": 0, "memory": 2, "errors": 2}
    return {
        label: {k: round(row[k], n) for k,
                n in digits.items() if k in row} | {k: row[k] for k in ("failed", "refused") if k in row}
        for label, row in found["peers"].items() if label != "eager"
    } | {k: found[k] for k in ("graphs", "breaks", "in eager", "quiet", "work failed",  # fmt: skip
                               "explained failed") if k in found}


def speeds(results: Results, training: bool, precision: str) -> Table | None:
    """A row a model, two columns a mode: speed-up over eager of framesmith and of torch.compile."""
    by_mode = _by_mode(results, training, precision)
    if not by_mode:
        return None
    header = ["model", "eager ms"]
    for mode in by_mode:
        header += [mode, "torch.compile"]
    rows = []
    for model in named():
        entries = [found.get(model) for found in by_mode.values()]
        if any(entries):
            eager = next(_peer(e, "eager") for e in entries if e is not None)
            rows.append([model, _number(eager, "seconds", ".3f", 1e3),
                         *[_speed(_peer(e, peer)) for e in entries for peer in PEERS]])
    means, ratios = ["geometric mean", ""], ["over torch.compile", ""]
    for found in by_mode.values():
        ours, theirs = (_mean(found.values(), peer) for peer in PEERS)
        means += [f"{ours:.2f} × of {len(_whole(found.values()))}" if ours else "–",
                  f"{theirs:.2f} ×" if theirs else "–"]
        ratios += [f"{ours / theirs:.2f} ×" if theirs else "–", ""]
    return f"{dict(KINDS)[training]}, {dict(PRECISIONS)[precision]}: speed-up over eager", header, [*rows, means,
                                                                                                    ratios]


def _by_mode(results: Results, training: bool, precision: str) -> dict[str, dict[str, Entry]]:
    found = {mode: {e["model"]: e for e in results.of(training=training, precision=precision, mode=mode)}
             for mode in MODES}
    return {mode: entries for mode, entries in found.items() if entries}


def costs(results: Results, training: bool, precision: str, mode: str) -> Table | None:
    """First calls, error and memory; the means are of those that both have."""
    entries = _by_mode(results, training, precision).get(mode)
    if not entries:
        return None
    header = ["model", "1st call s", "torch.compile's", "part", "warm s", "part", "error", "memory", "torch.compile's",
              "graphs/breaks"]
    rows, parts = [], []
    for model in named():
        if (entry := entries.get(model)) is not None:
            ours, theirs = (_peer(entry, peer) for peer in PEERS)
            firsts = [_ratio(ours.get(name), theirs.get("first")) for name in ("first", "warm")]
            parts.append(firsts)
            rows.append([
                model, _number(ours, "first", ".1f"), _late(theirs) or _number(theirs, "first", ".1f"),
                _bound(ours, theirs) or _part(firsts[0]), _number(ours, "warm", ".1f"), _part(firsts[1]),
                _number(ours, "errors", ".2f"), _number(ours, "memory", ".2f"),
                _number(theirs, "memory", ".2f"), f"{entry.get('graphs', '–')}/{entry.get('breaks', '–')}",
            ])  # fmt: skip
    first, warm = (geometric_mean([found[k] for found in parts if found[k] is not None]) for k in (0, 1))
    means = ["geometric mean", "", "", _part(first), "", _part(warm), *[""] * 4]
    title = f"{dict(KINDS)[training]}, {dict(PRECISIONS)[precision]}, mode {mode}: first calls, error and memory"
    return title, header, [*rows, means]


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours and theirs else None


def _part(ratio: float | None) -> str:
    return f"{ratio:.0%}" if ratio is not None and ratio == ratio else "–"


def _bound(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    """Below which part of theirs our first call is, where theirs did not come to its end."""
    return f"< {ours['first'] / theirs['late']:.0%}" if "late" in theirs and "first" in ours else None


def _peer(entry: Entry | None, label: str) -> dict[str, Any]:
    return entry["peers"].get(label, {}) if entry is not None else {}


def _number(row: dict[str, Any], name: str, form: str, scale: float = 1.0) -> str:
    return format(row[name] * scale, form) if row.get(name) is not None else "–"


def _late(row: dict[str, Any]) -> str | None:
    return f"> {row['late']:.0f}" if "late" in row else None


def _speed(row: dict[str, Any]) -> str:
    if "failed" in row or "late" in row:
        return "fails" if "failed" in row else f"not in {row['late']:.0f} s"
    return f"{row['speedup']:.2f} ×" if "speedup" in row else "–"


def _whole(entries: Iterable[Entry]) -> list[Entry]:
    """The models that every contender has run, torch.compile too if it has run any."""
    found = [e for e in entries if all("speedup" in row for row in e["peers"].values())]
    return [e for e in found if "torch.compile" in e["peers"]] or found


def _mean(entries: Iterable[Entry], peer: str) -> float | None:
    ratios = [e["peers"][peer]["speedup"] for e in _whole(entries) if peer in e["peers"]]
    return geometric_mean(ratios) if ratios else None


def pools(results: Results) -> Table | None:
    """What the two hold between calls in the modes with CUDA graphs."""
    rows = []
    for entry in results.of(mode="reduce-overhead"):
        cells = [_number(_peer(entry, peer), name, ".0f", 1e-6) for name in ("held", "pool") for peer in PEERS]
        rows.append([f"{entry['model']}, {dict(KINDS)[entry['training']]}, {entry['precision']}", *cells])
    header = ["reduce-overhead", *[f"{name} MB: {peer}" for name in ("held", "pool") for peer in PEERS]]
    return ("memory between calls", header, rows) if rows else None


def roofline(results: Results) -> Table | None:
    """For each model the bytes and operations that it must do, the rates reached, and the least time over
    framesmith's."""
    header = ["model", "GB", "TFLOP", "ms", "TB/s", "of the copy", "TFLOP/s", "of the product", "least time / ours",
              "/ eager's"]
    rows = []
    for entry in results.of(mode="default", precision="bf16"):
        ours, work, limits = _peer(entry, "framesmith"), entry.get("work"), entry.get("ceilings")
        if "seconds" not in ours or not work or not limits:
            continue
        seconds = ours["seconds"]
        moved, done = work["bytes"] / seconds, work["operations"] / seconds
        rows.append([
            f"{entry['model']}, {dict(KINDS)[entry['training']]}", f"{work['bytes'] / 1e9:.2f}",
            f"{work['operations'] / 1e12:.3f}",
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
        [f"{e['model']}, {dict(KINDS)[e['training']]}", *[_speed(e["peers"].get(name, {})) for name in columns]]
        for e in entries
    ]
    means = [f"{mean:.2f} ×" if (mean := _mean(entries, name)) is not None else "–" for name in columns]
    return "one option changed at a time", ["model", *columns], [*rows, ["geometric mean", *means]]


def all_of(results: Results) -> Iterator[Table]:
    """Every table for which there are figures."""
    for training, _ in KINDS:
        for precision, _ in PRECISIONS:
            parts = [speeds(results, training, precision),
                     *[costs(results, training, precision, mode) for mode in COSTLY]]
            yield from filter(None, parts)
    for whole in (pools, roofline, ablations):
        if (found := whole(results)) is not None:
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
            found += [f"{key}, {label}: {text}"
                      for text in (*row.get("refused", ()), *([row["failed"]] if "failed" in row else ()))]
    return found
