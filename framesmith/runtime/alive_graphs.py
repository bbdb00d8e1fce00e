"""The compiled graphs that are alive, and what each of their constants is."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace

from framesmith._C import CompiledGraph
from framesmith.util import events


@dataclass(frozen=True, slots=True)
class Facts:
    """The description of a compiled graph: its event, the names of its steps for profilers, and for each constant its
    expression over parameters."""

    compiled: events.GraphCompiled
    steps: tuple[str, ...]
    constants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """A graph's number, name, user's file and line, kind of device, and for each constant its expression over
    parameters."""

    number: int
    name: str
    place: tuple[str, int]
    device: str
    constants: tuple[str, ...]


_alive: dict[weakref.ref[CompiledGraph], Described] = {}


def announce(call: CompiledGraph, facts: Facts, library: str) -> None:
    """Name a graph whose code was loaded of the file `library`, remember it as long as it lives, and emit its event."""
    compiled, now = facts.compiled, events.current()
    call.name(compiled.name, facts.steps)
    _alive[weakref.ref(call, lambda ref: _alive.pop(ref, None))] = Described(
        compiled.number, compiled.name, (now.file, now.line) if now is not None else ("", 0), compiled.device,
        facts.constants)
    events.emit(replace(compiled, library=library))


def alive() -> list[tuple[CompiledGraph, Described]]:
    """Return the graphs that are alive, in the order of their compiles."""
    return [(call, what) for ref, what in _alive.copy().items() if (call := ref()) is not None]
