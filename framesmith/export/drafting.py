"""Draft mode: all that stands in the way of an export, at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from framesmith import _C
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.export.build import build, prepare
from framesmith.export.exported import Program
from framesmith.export.trace import trace
from framesmith.export.trees import flatten
from framesmith.ledger import Ledger
from framesmith.util.advice import advice
from framesmith.util.errors import ExportError


@dataclass(frozen=True, slots=True)
class Obstacle:
    """`kind`: "break" (the program cannot be captured there), "dimension" (it ties one down), "effect" (it changes
    something outside, which is left out), "operator" (one that has no form in the set), "error". `remedy`: what to
    change."""

    kind: str
    text: str
    place: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" + (f", at {self.place}" if self.place else "") + f"\n  -> {self.remedy}"


@dataclass(slots=True)
class Draft:
    """The result of a draft. `program`: the export as far as it goes, with dimensions that the program ties down made
    constants; None where it breaks."""

    obstacles: list[Obstacle] = field(default_factory=list)
    program: Program | None = None

    def __str__(self) -> str:
        head = f"{len(self.obstacles)} obstacles" if self.obstacles else "no obstacle"
        return "\n".join([head, *map(str, self.obstacles)])


def draft(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any,
          operators: str) -> Draft:
    """Go on past each obstacle, and report all of them. The model runs: what cannot be captured runs in eager."""
    out = Draft()
    try:
        given, named, shapes, labels = prepare(model, tuple(args), dict(kwargs or {}), dynamic_shapes)
        traced = trace(model, given, named, shapes, labels)
    except ExportError as error:
        out.obstacles += _breaks(model, tuple(args), dict(kwargs or {})) or [
            Obstacle("error", str(error), "", "see the message")]
        return out
    for v in traced.constraints.violations:
        out.obstacles.append(Obstacle("dimension", v.text, v.place, v.proposal))
    for note in traced.dropped:
        out.obstacles.append(Obstacle("effect", f"{note} is changed, which the exported program does not do", "",
                                      "return the value, or register it as a buffer"))
    leaves, tree = flatten((given, named))
    try:
        out.program = build(traced, operators, leaves, labels, tree, type(model).__name__)
    except ExportError as error:
        out.obstacles.append(Obstacle("error", str(error), "", "see the message"))
        return out
    for name in out.program.beyond:
        out.obstacles.append(Obstacle("operator", f"{name} has no form in {operators}", "",
                                      "a consumer must know it, or the model must do without"))
    return out


def _breaks(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Obstacle]:
    """Find all places at which the program cannot be captured, by running it in pieces."""

    def call_model(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    ledger = Ledger()
    config = Config.from_env().with_(backend="eager", dynamic=False, warn=False, keep_graphless=True)
    _C.CompiledFunction(call_model, FrameCompiler(config, ledger))(*args, **kwargs)
    found = [Obstacle("break", b.reason, f"{b.file}:{b.line} in {b.function}", b.hint or advice(b.reason))
             for record in ledger.records for b in record.breaks]
    found += [Obstacle("break", r.reason, f"{r.file}:{r.line} in {r.function}", r.hint or advice(r.reason))
              for r in ledger.refusals]
    return list(dict.fromkeys(found))
