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
        for reason, count in self.break_reasons.most_common():
            lines.append(f"break, {count} x: {reason}")
        lines.append("seconds: " + ", ".join(f"{name} {s:.3f}" for name, s in self.seconds.items()))
        return "\n".join(lines)


def _record_lines(r: Record) -> list[str]:
    lines = [f"{r.function} ({r.file}:{r.line}): {r.operators} operators, {r.instructions} instructions, {len(r.guards)} guards"]
    if r.report is not None:
        externs = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in Counter(r.report.externs).items())
        lines.append(f"  {r.report.kernels} kernels; {r.report.constants} frozen constants; library calls: {externs or 'none'}")
    lines += [f"  break at {b.file}:{b.line} in {b.function}: {b.reason}" + (f" -> {b.hint}" if b.hint else "") for b in r.breaks]
    lines += [f"  guard {g}" for g in r.guards]
    return lines


def explain_call(root: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Run `root(*args, **kwargs)` under a compiler of its own and report."""
    ledger = Ledger()
    compiler = FrameCompiler(Config.from_env(), ledger)
    timing.reset()
    output = _C.CompiledFunction(root, compiler)(*args, **kwargs)
    return Explanation(ledger.records, ledger.refusals, timing.stages(), output)
