"""The buffers that steps of a program use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from framesmith.loops.ir import Batch, Extern, Launch, Ref, Step


def names_in(arg: Any) -> list[str]:
    """Yield the buffer names in a nested argument."""
    if type(arg) is Ref:
        return [arg.name]
    return [n for a in arg for n in names_in(a)] if isinstance(arg, (tuple, list)) else []


def uses(step: Step) -> tuple[list[str], list[str]]:
    """Return the buffers, including views, that a step reads, and those that it writes."""
    if isinstance(step, Launch | Batch):
        pairs = [pair for row in rows(step) for pair in zip(row, step.kernel.params, strict=True)]
        return [n for n, p in pairs if "r" in p.mode], [n for n, p in pairs if "w" in p.mode]
    if type(step) is not Extern:
        return [], []
    return (names_in((step.args, tuple(step.kwargs.values()))),
            [*[n for n in step.outputs if n is not None], *step.mutates])


def named(step: Step) -> list[str]:
    """Return the buffers, including views, that a step uses."""
    if isinstance(step, Launch | Batch):
        return [n for row in rows(step) for n in row]
    reads, writes = uses(step)
    return reads + writes


def rows(step: Launch | Batch) -> tuple[tuple[str, ...], ...]:
    """Return the buffers of each run of a step's kernel, one a parameter."""
    return (step.args,) if type(step) is Launch else step.rows  # type: ignore[union-attr]


def renamed(step: Step, name: Callable[[str], str]) -> Step:
    """Return the same step with renamed buffers."""
    def of(arg: Any) -> Any:
        if type(arg) is Ref:
            return Ref(name(arg.name))
        return type(arg)(map(of, arg)) if isinstance(arg, (tuple, list)) else arg

    if type(step) is Launch:
        return replace(step, args=tuple(map(name, step.args)))
    if type(step) is Batch:
        return replace(step, rows=tuple([tuple(map(name, row)) for row in step.rows]))
    assert type(step) is Extern
    return replace(step, args=of(step.args), kwargs={key: of(value) for key, value in step.kwargs.items()},
                   outputs=tuple([n if n is None else name(n) for n in step.outputs]),
                   mutates=tuple(map(name, step.mutates)))
