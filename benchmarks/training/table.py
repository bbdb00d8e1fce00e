"""The figures of training as header and rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.table import mean

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """`show`: the cell of a contender's row. `ratio`: the entry whose geometric mean stands below, if any."""

    title: str
    contender: str
    show: Callable[[Row], str]
    ratio: str = ""


def _milliseconds(row: Row) -> str:
    return f"{row['seconds'] * 1e3:.3f}" if "seconds" in row else "fails"


def _speed(row: Row) -> str:
    return f"{row['seconds'] * 1e3:.3f} ({row['speedup']:.2f} ×)" if "seconds" in row else "fails"


def _number(key: str, form: str) -> Callable[[Row], str]:
    return lambda row: format(row[key], form) if row.get(key) is not None else "–"


def _memory(row: Row) -> str:
    return f"{row['memory']:.2f} ×" if "memory" in row else "–"


def _graphs(row: Row) -> str:
    return f"{row['graphs']}/{row['breaks']}" if "graphs" in row else "–"


def _columns(names: list[str], measured: set[str]) -> list[Column]:
    """Times of all contenders, then what is `measured` of them; errors of those that framesmith compiled."""
    others = [name for name in names if name != "eager"]
    ours = [name for name in others if name != "torch.compile"]
    columns = [Column("eager ms", "eager", _milliseconds), *(Column(f"{n} ms", n, _speed, "speedup") for n in others)]
    if "cold" in measured:
        columns += [Column(f"{n}: 1st step s", n, _number("cold", ".1f")) for n in others]
        columns += [Column(f"{n}: warm s", n, _number("warm", ".1f")) for n in ours if n == "framesmith"]
    if "memory" in measured:
        columns += [Column(f"{n}: peak memory", n, _memory, "memory") for n in others]
    columns += [Column(f"{n}: error", n, _number("error", ".0e")) for n in ours]
    exact = {"eager": "own_error", "framesmith": "exact_error"}
    columns += [Column(f"{n}: vs f64", n, _number(key, ".0e")) for n, key in exact.items() if n in names]
    columns += [Column(f"{n}: roundings", n, _number("beyond", ".1f")) for n in ours]
    return [*columns, *(Column("graphs/breaks", n, _graphs) for n in ours if n == "framesmith")]


def rows_of(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: a line a model; below, geometric means over the rows without an optimiser."""
    models = [one["peers"] for one in results["models"]]
    columns = _columns(results["peers"], {key for by in models for row in by.values() for key in row})
    rows = [[one["model"], *(c.show(one["peers"][c.contender]) for c in columns)] for one in results["models"]]
    bare = [one["peers"] for one in results["models"] if one["optimizer"] is None]
    means = [mean(by[c.contender][c.ratio] for by in bare if by[c.contender].get(c.ratio)) if c.ratio else ""
             for c in columns]
    return ["model", *(c.title for c in columns)], [*rows, ["geometric mean", *means]]
