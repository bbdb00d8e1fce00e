"""Passes as data: a row has a name, the form of a program that it transforms, a function, devices and a condition.

`pipeline.PASSES` lists those of the package; passes of the program's own run behind these (see `extensions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from framesmith.config import Config
from framesmith.graph.verifier import verify as verify_graph
from framesmith.loops.nest import LoopGraph
from framesmith.loops.verify import verify as verify_program
from framesmith.util.errors import VerifyError

_VERIFY: dict[str, Callable[[Any], Any]] = {
    "aten": lambda graph: verify_graph(graph, lowered=True), "prims": lambda graph: verify_graph(graph, lowered=True),
    "program": verify_program,
}
"""The verifier of each form. Loop nests have none: their builder checks each operation."""


@dataclass(frozen=True, slots=True)
class Context:
    """The surroundings of a pass: the options; the row of `TARGETS` for the graph's device; the tensors that are
    constants, by placeholder; and the values of a `LoopGraph`'s size symbols in the call that is compiled for."""

    config: Config
    target: Any
    constants: Mapping[int, torch.Tensor] = field(default_factory=dict)
    sizes: Callable[[LoopGraph], Mapping[Any, int]] = lambda loops: {}


@dataclass(frozen=True, slots=True)
class Pass:
    """A transformation within one of the forms, or into it if it is the form's first: "aten" (a graph of functional
    ATen operators), "parts" (a `Repetition` of it, if it has one), "prims" (a graph of primitives), "loops" (a
    `LoopGraph`), "program" (a `Program`). `run` changes a graph in place, or returns another. It runs on devices of the
    types `targets` (none: on all), `when` the condition holds."""

    name: str
    form: str
    run: Callable[[Any, Context], Any]
    targets: tuple[str, ...] = ()
    when: Callable[[Context], bool] | None = None
    makes: bool = False
    """It makes its form from the previous one; such a pass always runs."""

    def applies(self, context: Context) -> bool:
        """Return whether the pass is to run."""
        if self.name in context.config.left_out and not self.makes:
            return False
        there = not self.targets or context.target.device.type in self.targets
        return there and (self.when is None or self.when(context))


def run_passes(passes: Iterable[Pass], form: str, subject: Any, context: Context) -> Any:
    """Run the passes of a form, in order; with `Config.verify`, check the form's invariants after each.

    Raises `VerifyError`, which names the pass."""
    for one in passes:
        if one.form != form or not one.applies(context):
            continue
        changed = one.run(subject, context)
        subject = subject if changed is None else changed
        if context.config.verify and form in _VERIFY:
            try:
                _VERIFY[form](subject)
            except VerifyError as error:
                raise VerifyError(f"after the pass {one.name}: {error}") from None
    return subject


REGISTERED: list[tuple[str, Pass]] = []
"""Passes of the program, each with the name of the one that it follows."""
IDENTITIES: list[str] = []
"""The identities of passes, decompositions and lowerings of the program, parts of the cache key."""


def with_registered(passes: Iterable[Pass]) -> list[Pass]:
    """Return the passes with those of the program, each after the one that it names."""
    out: list[Pass] = []
    for one in passes:
        out.append(one)
        out.extend(own for name, own in REGISTERED if name == one.name)
    return out
