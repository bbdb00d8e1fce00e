"""The compiled graphs that are alive, and what each of their constants is."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from framesmith._C import CompiledGraph


@dataclass(frozen=True, slots=True)
class Described:
    """A graph's number, its name, the user's file and line, the kind of device, and of each constant what computes it
    of which parameters."""

    number: int
    name: str
    place: tuple[str, int]
    device: str
    constants: tuple[str, ...]


_alive: dict[weakref.ref[CompiledGraph], Described] = {}


def describe(call: CompiledGraph, what: Described) -> None:
    """Remember what a graph is, as long as it lives."""
    _alive[weakref.ref(call, lambda ref: _alive.pop(ref, None))] = what


def alive() -> list[tuple[CompiledGraph, Described]]:
    """The graphs that are alive, in the order of their compiles."""
    return [(call, what) for ref, what in _alive.copy().items() if (call := ref()) is not None]
