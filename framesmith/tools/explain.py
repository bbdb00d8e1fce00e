"""`explain`: what happened to one call, from graphs and breaks to seconds a stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from framesmith import _C
from framesmith.compiler import FrameCompiler, Ledger, Record, Refusal
from framesmith.config import Config
from framesmith.util import timing


@dataclass(frozen=True)
class Explanation:
    """`str()` gives the whole as text. `output`: what the call returned. `seconds`: by stage."""

    records: list[Record]
    refusals: list[Refusal]
    seconds: dict[str, float]
    output: Any

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

    def __str__(self) -> str:
        lines = [f"{self.graph_count} graphs, {self.break_count} breaks, {self.kernel_count} kernels"]
        for r in self.records:
            lines += _record_lines(r)
        for f in self.refusals:
            lines.append(f"in eager: {f.function} ({f.file}:{f.line}): {f.reason}")
        lines.append("seconds: " + ", ".join(f"{name} {s:.3f}" for name, s in self.seconds.items()))
        return "\n".join(lines)


def _record_lines(r: Record) -> list[str]:
    operators = sum(r.operators.values())
    lines = [f"{r.function} ({r.file}:{r.line}): {operators} operators, {r.instructions} instructions, {len(r.guards)} guards"]
    if operators:
        lines.append("  operators: " + _counted(r.operators))
    if r.report is not None:
        calls = _counted(Counter(r.report.externs)) or "none"
        lines.append(f"  {r.report.kernels} kernels; {r.report.constants} frozen constants; library calls: {calls}")
        for number, work in enumerate(r.report.work):
            lines += [f"  kernel {number}: {what}" + (f" ({place})" if place else "") for place, what in work]
    lines += [f"  break at {b.file}:{b.line} in {b.function}: {b.reason}" + (f" -> {b.hint}" if b.hint else "") for b in r.breaks]
    lines += [f"  guard {g}" for g in r.guards]
    return lines


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in names.items())


def _seconds(clock: dict[str, float]) -> dict[str, float]:
    """The accounts in the order of the pipeline; `capture` is what the back end's stages leave of the total."""
    stages = dict(clock)
    total, back_end, guards = (stages.pop(name, 0.0) for name in ("total", "back end", "guards"))
    return {"capture": total - back_end - guards, "guards": guards, **stages, "total": total}


def explain_call(root: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Run `root(*args, **kwargs)` under a compiler of its own and report."""
    ledger = Ledger()
    compiler = FrameCompiler(Config.from_env(), ledger)
    timing.reset()
    output = _C.CompiledFunction(root, compiler)(*args, **kwargs)
    return Explanation(ledger.records, ledger.refusals, _seconds(timing.stages()), output)
