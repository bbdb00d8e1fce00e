"""Guards on what an object does not have, as one: names that its instance dict lacks, and attributes that are empty
dicts. Of a module without hooks, twelve guards are of this kind."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from .sources import DictAttr, Guard, Source

Parts = tuple[dict[str, None], dict[tuple[str, type], None]]


def merged(guards: Iterable[Guard]) -> list[Guard]:
    """Return guards that say the same, with one on what each object does not have, in the place of the first."""
    guards = list(guards)
    kinds = {g.source: g.value for g in guards if g.kind == "type" and type(g.source) is DictAttr
             and g.value in (dict, collections.OrderedDict)}
    empty = {g.source for g in guards if g.kind == "bool" and g.value is False and g.source in kinds}
    parts: dict[Source, Parts] = {}
    out: list[Guard] = []
    places: dict[Source, int] = {}
    for g in guards:
        of: Any = g.source
        absent: Iterable[str] = ()
        dicts: Iterable[tuple[str, type]] = ()
        if g.kind == "not_hasattr":
            absent = (g.value,)
        elif g.kind == "bare":
            absent, dicts = g.value
        elif of in empty and g.kind in ("type", "bool"):
            dicts, of = ((of.name, kinds[of]),), of.base
        else:
            out.append(g)
            continue
        if of not in parts:
            parts[of], places[of] = ({}, {}), len(out)
            out.append(g)
        parts[of][0].update(dict.fromkeys(absent))
        parts[of][1].update(dict.fromkeys(dicts))
    for of, (absent, dicts) in parts.items():
        if len(absent) > 1 or dicts:
            out[places[of]] = Guard(of, "bare", (tuple(absent), tuple(dicts)), out[places[of]].stack)
    return out


def parts_of(guard: Guard) -> Iterator[Guard]:
    """Yield the guards that a guard on what an object does not have stands for."""
    source: Any = guard.source
    absent, dicts = guard.value
    for name in absent:
        yield Guard(source, "not_hasattr", name, guard.stack)
    for name, kind in dicts:
        at = DictAttr(source, name)
        yield Guard(at, "type", kind, guard.stack)
        yield Guard(at, "bool", False, guard.stack)
