"""The sections on operators compared with eager: totals by dtype, causes, and what is not captured whole."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from benchmarks.document.markers import table
from benchmarks.document.summary import saved
from tests.nets.operator_cases import CANCELLING, DTYPES, UNCOMPARED

_KINDS = ("operators", "samples", "compiled", "empty", "partly", "different")
_TITLES = ("operators", "samples", "one graph", "nothing to compute", "partly in eager", "differ", "errors", "differ")
_UNKNOWN = "not kept: counted by groups of samples"
_NAMED, _LETTERS = 4, 90


def totals() -> str:
    """Print what was run, a row for each dtype, and why samples are partly in eager."""
    results = saved("operators")
    rows, causes = [], defaultdict[str, Counter[str]](Counter)
    for dtype in DTYPES:
        total: Counter[str] = Counter()
        for name, row in results["operators"].items():
            count = _count(row, dtype)
            total.update(count[0], operators=bool(count[0]["samples"]))
            for cause, many in count[1].items():
                causes[cause][name] += many
        if total["samples"]:
            rows.append([dtype, *(f"{total[kind]:,}" for kind in (*_KINDS, "errors", "errors that differ"))])
    why = [[cause, str(sum(names.values())), _some(sorted(names))] for cause, names in causes.items()]
    why.sort(key=lambda row: (-int(row[1]), row[0]))
    about = f"PyTorch {results['torch']}. Last run on {results['date']}. Runs:"
    runs = "\n".join(f"- `{run}`" for run in results["run"])
    causes_of = table(["why partly in eager", "samples", "operators"], why)
    return f"{about}\n\n{runs}\n\n{table(['dtype', *_TITLES], rows)}\n\n{causes_of}"


def samples() -> tuple[int, int]:
    """Count the samples of all operators and dtypes, errors included, and those of them that differ."""
    counts = [_count(row, dtype)[0] for row in saved("operators")["operators"].values() for dtype in DTYPES]
    return (sum(count["samples"] + count["errors"] for count in counts),
            sum(count["different"] + count["errors that differ"] for count in counts))


def partly() -> str:
    """Print a row for each operator that is not captured whole, or that differs, where the cause is known."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for name, row in sorted(saved("operators")["operators"].items()):
        for dtype in DTYPES:
            count, causes = _count(row, dtype)
            if count["different"] or count["partly"] and _UNKNOWN not in causes:
                text = f"{count['compiled'] + count['empty']}/{count['samples']}"
                cells[name][dtype] = f"**{text}, {count['different']} differ**" if count["different"] else text
    dtypes = [dtype for dtype in DTYPES if any(dtype in row for row in cells.values())]
    return table(["operator", *dtypes], [[f"`{n}`", *(row.get(d, "") for d in dtypes)] for n, row in cells.items()])


def _count(row: dict[str, Any], dtype: str) -> tuple[Counter[str], Counter[str]]:
    """Sum the samples of an operator in a dtype, and why some are partly in eager."""
    total: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    for key, count in row.items():
        if key.split()[0] != dtype:
            continue
        if key.endswith("errors"):
            total.update({"errors": count["samples"], "errors that differ": count["different"]})
            continue
        why = Counter({cause.splitlines()[0][:_LETTERS]: many for cause, many in count.get("in eager", {}).items()})
        empty = why.pop("no operators", 0)
        left = count["samples"] - count["compiled"] - count["different"] - empty
        why[_UNKNOWN] += left - sum(why.values())
        causes += why
        total.update({kind: count[kind] for kind in ("samples", "compiled", "different")} | {"empty": empty,
                                                                                             "partly": left})
    return total, causes


def _some(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown


def uncompared() -> str:
    """Print the exceptions, and why."""
    kinds = {"values are not compared": UNCOMPARED, "compared with the rounding of numbers near one": CANCELLING}
    return "\n".join(f"- `{name}`: {how}: {why}" for how, rows in kinds.items() for name, why in rows.items())


__all__ = ["partly", "totals", "uncompared"]
