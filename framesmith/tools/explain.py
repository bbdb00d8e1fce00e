"""`explain`: what happened to one call, from graphs and breaks to seconds a stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rich.markup import escape
from rich.table import Table

from framesmith import _C
from framesmith.capture.entry import Break
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.ledger import Ledger, Record, Refusal
from framesmith.tools.collect import collect
from framesmith.tools.report import Report
from framesmith.util import timing
from framesmith.util.advice import advice
from framesmith.util.events import Event, UnrolledLoop, on_event


@dataclass(frozen=True)
class Group:
    """Graph breaks (and frames left to plain Python) of one reason. `places`: how often each `file:line in function`
    was one."""

    reason: str
    advice: str
    places: Counter[str]

    @property
    def count(self) -> int:
        return self.places.total()


@dataclass(frozen=True)
class Explanation:
    """`str()` gives the whole as text, `rich.print` the breaks as a table. `output`: what the call returned. `seconds`:
    by stage."""

    records: list[Record]
    refusals: list[Refusal]
    seconds: dict[str, float]
    output: Any
    happened: list[Event] = field(default_factory=list)

    @cached_property
    def report(self) -> Report:
        """The call as a report: see `framesmith.report`."""
        return Report(collect((), self.happened))

    def _repr_html_(self) -> str:
        """Show the report in a notebook."""
        return self.report._repr_html_()

    @property
    def graph_count(self) -> int:
        return sum(1 for r in self.records if r.operators)

    @property
    def break_count(self) -> int:
        return sum(len(r.breaks) for r in self.records)

    @property
    def break_reasons(self) -> Counter[str]:
        """Breaks by reason."""
        return Counter(b.reason for r in self.records for b in r.breaks)

    @property
    def kernel_count(self) -> int:
        return sum(r.report.kernels for r in self.records if r.report)

    @property
    def groups(self) -> list[Group]:
        """Breaks and refusals by reason, the most frequent first."""
        groups: dict[str, Group] = {}
        stops: list[Break | Refusal] = [b for r in self.records for b in r.breaks] + list(self.refusals)
        for stop in stops:
            group = groups.setdefault(stop.reason, Group(stop.reason, stop.hint or advice(stop.reason), Counter()))
            group.places[f"{stop.file}:{stop.line} in {stop.function}"] += 1
        return sorted(groups.values(), key=lambda g: -g.count)

    def __rich__(self) -> Table:
        """Return the table that `rich.print(explanation)` shows: a row for each reason, with how often, where, and what
        to change."""
        title = (f"{self.graph_count} graphs, {self.break_count} breaks, {len(self.refusals)} frames in eager, "
                 f"{self.kernel_count} kernels")
        table = Table(title=title, show_lines=True)
        table.add_column("times", justify="right")
        for name in ("reason", "where", "what to change"):
            table.add_column(name, overflow="fold")
        for g in self.groups:
            table.add_row(str(g.count), escape(g.reason), escape("\n".join(_times(g.places))), escape(g.advice))
        return table

    def __str__(self) -> str:
        lines = [f"{self.graph_count} graphs, {self.break_count} breaks, {self.kernel_count} kernels"]
        lines += [f"{g.count} x {g.reason} -> {g.advice}" for g in self.groups]
        for r in self.records:
            lines += _record_lines(r)
        for f in self.refusals:
            lines.append(f"in eager: {f.function} ({f.file}:{f.line}): {f.reason}")
        lines += [str(e) for e in self.happened if isinstance(e, UnrolledLoop)]
        lines.append("seconds: " + ", ".join(f"{name} {s:.3f}" for name, s in self.seconds.items()))
        return "\n".join(lines)


def _record_lines(r: Record) -> list[str]:
    operators = sum(r.operators.values())
    lines = [f"{r.function} ({r.file}:{r.line}): {operators} operators, {r.instructions} instructions, {len(r.guards)} "
             "guards"]
    if operators:
        lines.append("  operators: " + _counted(r.operators))
    if r.report is not None:
        calls = _counted(Counter(r.report.externs)) or "none"
        lines.append(f"  {r.report.kernels} kernels; {r.report.constants} frozen constants; library calls: {calls}")
        for number, work in enumerate(r.report.work):
            lines += [f"  kernel {number}: {what}" + (f" ({place})" if place else "") for place, what in work]
    lines += [f"  break at {b.file}:{b.line} in {b.function}: {b.reason}" + (f" -> {b.hint}" if b.hint else "")
              for b in r.breaks]
    lines += [f"  guard {g}" for g in r.guards]
    return lines


def _times(names: Counter[str]) -> list[str]:
    return [f"{name} ({n} times)" if n > 1 else name for name, n in names.items()]


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in names.items())


def explain_call(root: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Run `root(*args, **kwargs)` under a compiler of its own and report."""
    ledger = Ledger()
    compiler = FrameCompiler(Config.from_env(), ledger)
    timing.reset()
    happened: list[Event] = []
    with on_event(happened.append):
        output = _C.CompiledFunction(root, compiler)(*args, **kwargs)
    return Explanation(ledger.records, ledger.refusals, timing.by_stage(timing.stages()), output, happened)
