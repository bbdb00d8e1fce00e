"""`report`: the compiler's work in this process, as a page, as JSON, and as tables on the console."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import jinja2
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from framesmith.tools import plots
from framesmith.tools.collect import Facts
from framesmith.tools.plots import count, seconds, size
from framesmith.util.errors import FramesmithError

FORMATS = ("html", "json", "console")
SHOWN = 12  # rows of the console's longer tables
TEMPLATE = Path(__file__).with_name("report.html.j2")


class Report:
    """A report of the compiler's work. `facts`: all of it, as plain data. `str()` and `rich.print` give tables, a
    notebook the page."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Report:
        """Return the report that `save` wrote as JSON. Raises FramesmithError for another file."""
        try:
            facts = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise FramesmithError(f"{path} is no report in JSON: {error}") from None
        if not isinstance(facts, dict) or not str(facts.get("format", "")).startswith("framesmith report"):
            raise FramesmithError(f"{path} is no report of framesmith's")
        return cls(facts)

    def json(self) -> str:
        """Return all of it as JSON."""
        return json.dumps(self.facts, indent=1)

    def html(self) -> str:
        """Return a self-contained page: it loads nothing, and has no script."""
        environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        environment.filters.update(seconds=seconds, size=size, count=count, short=short_path, percent=percent)
        return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(self.facts, plots=plots)

    def console(self, width: int | None = None) -> str:
        """Tables, as plain text."""
        out = Console(width=width or 110, record=True, file=open(os.devnull, "w"), color_system=None)  # noqa: SIM115
        with out.file:
            out.print(self)
        return out.export_text(styles=False)

    def save(self, path: str | os.PathLike[str], format: str | None = None) -> None:
        """Write it to a file; by default in the format of the file's ending (`.html`, `.json`, `.txt`)."""
        Path(path).write_text(self.text(format or format_of(path)), encoding="utf-8")

    def text(self, format: str) -> str:
        """Return the report in one of `FORMATS`. Raises FramesmithError for another."""
        writers: dict[str, Callable[[], str]] = {"html": self.html, "json": self.json, "console": self.console}
        if format not in writers:
            raise FramesmithError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
        return writers[format]()

    def __str__(self) -> str:
        return self.console()

    def _repr_html_(self) -> str:
        """Show the page in a frame of its own: its style is not the notebook's."""
        page = self.html().replace("&", "&amp;").replace('"', "&quot;")
        return f'<iframe srcdoc="{page}" style="width:100%;height:640px;border:0" title="framesmith report"></iframe>'

    def __rich__(self) -> RenderableType:
        """Return the tables that `rich.print(report)` shows."""
        return Group(*[part for make in _PARTS if (part := make(self.facts)) is not None])


def format_of(path: str | os.PathLike[str]) -> str:
    """Return the format that a file's ending stands for; "html" for endings that stand for none."""
    return {".json": "json", ".txt": "console"}.get(Path(path).suffix, "html")


def short_path(file: str) -> str:
    """Return a file's path relative to the working directory, or its last two parts."""
    here = os.getcwd() + os.sep
    return file.removeprefix(here) if file.startswith(here) else os.sep.join(file.rsplit(os.sep, 2)[-2:])


def percent(part: float | None) -> str:
    """Return a share as per cent."""
    return "–" if part is None else f"{100 * part:.0f} %"


# -------------------------------------------------------------------------------------------------------- the console


def _where(row: Facts) -> str:
    source = f"\n  {row['source']}" if row.get("source") else ""
    return escape(f"{short_path(row['file'])}:{row['line']} in {row['function']}{source}")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_lines=True, expand=True)
    for name in columns:
        number = name in ("times", "seconds", "uses", "graphs", "bytes", "roofline", "operators", "kernels")
        table.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=number)
    return table


def _summary(facts: Facts) -> RenderableType:
    t, measured = facts["totals"], facts["measured"] or {}
    lines = [f"{t['compiles']} compiles in {seconds(t['seconds'])}: {t['graphs']} graphs, {t['operators']} operators, "
             f"{t['kernels']} kernels, {t['calls']} library calls",
             f"{t['breaks']} breaks, {t['recompiles']} recompiles, {t['fallbacks']} fallbacks to eager, "
             f"{t['variants']} variants used {t['uses']} times",
             f"cache: {t['hits']} hits, {t['misses']} misses; constants: {size(t['constants'])}"]
    if "speedup" in measured:
        lines.append(f"eager {seconds(measured['eager'])}, compiled {seconds(measured['compiled'])}: "
                     f"{measured['speedup']:.2f} times as fast")
    return Panel("\n".join(lines), title="framesmith report", title_align="left")


def _compiles(facts: Facts) -> Table | None:
    table = _table("Compiles, by stage", "compile", "why", "seconds", "stages")
    longest = sorted(facts["compiles"], key=lambda c: -c["seconds"])[:SHOWN]
    for c in [c for c in facts["compiles"] if c in longest]:
        stages = sorted(c["stages"].items(), key=lambda row: -row[1])
        table.add_row(_where({**c, "source": ""}), f"{c['why']}\n{c['outcome']}", seconds(c["seconds"]),
                      ", ".join([f"{name} {seconds(spent)}" for name, spent in stages if spent > 1e-4]))
    return table if table.row_count else None


def _breaks(facts: Facts) -> Table | None:
    table = _table("Graph breaks", "times", "cause", "where", "cost", "write instead")
    for b in facts["breaks"]:
        cost = f"{seconds(b['compile_seconds'])} to compile"
        if b["call_seconds"] is not None:
            cost += f"\n{seconds(b['call_seconds'])} a call"
        table.add_row(str(b["count"]), escape(b["reason"]), "\n".join(map(_where, b["places"])), cost,
                      escape(b["remedy"]))
    return table if table.row_count else None


def _recompiles(facts: Facts) -> Table | None:
    table = _table("Recompiles", "times", "function", "guard that failed", "old", "new", "what prevents it")
    for r in facts["recompiles"]:
        assumed = f"\nassumed at {_where(r['assumed'])}" if r["assumed"] else ""
        guard = escape(r["text"] if r["guard"] == "it" else r["guard"]) + assumed
        table.add_row(str(r["count"]), _where(r), guard, escape(r["old"]), escape(r["new"]), escape(r["remedy"]))
    return table if table.row_count else None


def _loops(facts: Facts) -> Table | None:
    table = _table("Loops that are unrolled for each number of rounds", "times", "loop", "cause", "write instead")
    for f in facts.get("loops", ()):
        cause = f"\nat {_where(f['cause'])}" if f["cause"] else ""
        table.add_row(str(f["count"]), _where(f), escape(f["reason"]) + cause, escape(f["remedy"]))
    return table if table.row_count else None


def _fallbacks(facts: Facts) -> Table | None:
    table = _table("What runs in eager", "times", "function", "cause", "what to do")
    for f in facts["fallbacks"]:
        table.add_row(str(f["count"]), _where(f), escape(f["reason"]), escape(f["remedy"]))
    return table if table.row_count else None


def _graphs(facts: Facts) -> Table | None:
    table = _table("Graphs", "graph", "operators", "kernels", "peak memory, eager → planned", "constants", "seconds")
    for g in facts["graphs"]:
        eager, planned = (max(g["memory"][k], default=None) for k in ("eager", "planned"))
        table.add_row(escape(g["name"].removeprefix("framesmith ")), str(len(g["operators"])), str(len(g["kernels"])),
                      f"{size(eager)} → {size(planned)}", size(g["constants"]), seconds(g["seconds"]))
    return table if table.row_count else None


def _kernels(facts: Facts) -> Table | None:
    table = _table("Kernels and library calls that take longest", "kernel", "computes", "bytes", "seconds", "roofline")
    rows = [(row, g) for g in facts["graphs"] for row in (*g["kernels"], *g["externs"])]
    for row, g in sorted(rows, key=lambda r: -(r[0]["seconds"] or 0.0))[:SHOWN]:
        work = "\n".join([f"{w['operators']} {_place_text(w['place'])}" for w in row.get("work", ())]) or row["name"]
        table.add_row(f"graph {g['number']}: {row['name']}", escape(work), size(row["bytes"]), seconds(row["seconds"]),
                      percent(row["share"]))
    return table if table.row_count else None


def _place_text(place: str) -> str:
    file, colon, rest = place.partition(":")
    return f"({short_path(file)}{colon}{rest})" if place else ""


def _variants(facts: Facts) -> Table | None:
    table = _table("Variants", "uses", "function", "guards")
    for v in sorted(facts["variants"], key=lambda v: -v["uses"])[:SHOWN]:
        table.add_row(str(v["uses"]), _where(v), f"{v['guard_count']}" + ("" if v["alive"] else " (gone)"))
    return table if table.row_count else None


def _cache(facts: Facts) -> Table | None:
    table = _table("Cache misses", "times", "what", "why")
    reasons: dict[tuple[str, str], int] = {}
    for c in facts["cache"]:
        if not c["hit"]:
            reasons[c["what"], c["reason"]] = reasons.get((c["what"], c["reason"]), 0) + 1
    for (what, why), times in reasons.items():
        table.add_row(str(times), what, why)
    return table if table.row_count else None


_PARTS: tuple[Callable[[Facts], RenderableType | None], ...] = (
    _summary, _compiles, _breaks, _recompiles, _loops, _fallbacks, _graphs, _kernels, _variants, _cache)
