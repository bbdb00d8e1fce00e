"""Stages: which members of a cluster share an inner loop nest."""

from __future__ import annotations

from dataclasses import dataclass, field

from framesmith.schedule.fused_nests import FusedNests, Member
from framesmith.symbolic.expr import Symbol

INNER, POST = 0, 1


@dataclass(slots=True, eq=False)
class Stage:
    """One inner nest: `par` loops, inside them `red` loops that run `inner`, and after these `post`."""

    par: frozenset[Symbol]
    red: frozenset[Symbol]
    inner: list[Member] = field(default_factory=list)
    post: list[Member] = field(default_factory=list)

    @property
    def members(self) -> list[Member]:
        return self.inner + self.post


def stages(cluster: FusedNests, outside: frozenset[Symbol]) -> list[Stage]:
    """Place each member in the earliest stage that its dependences and loops allow. `outside`: axes that are not inner
    loops."""
    result: list[Stage] = []
    place: dict[int, tuple[int, int]] = {}
    for k, m in enumerate(cluster.members):
        par, red = frozenset(m.par) - outside, frozenset(m.red)
        earliest = (0, INNER)
        for j in range(k):
            earliest = max(earliest, _after(cluster.members[j], place[j], m, outside))
        place[k] = _place(result, m, par, red, earliest)
    return result


def _after(first: Member, at: tuple[int, int], second: Member, outside: frozenset[Symbol]) -> tuple[int, int]:
    """Return the earliest stage of `second` after `first`, which is placed at `at`."""
    same = _conflicts(first, second)
    if same is None:
        return (0, INNER)
    stage, phase = at
    if not same:
        return (stage + 1, INNER)
    if first.red or phase == POST:
        return (stage, POST)
    covered = (frozenset(first.par) - outside) <= (frozenset(second.par) | frozenset(second.red))
    return (stage, INNER) if covered else (stage + 1, INNER)


def _conflicts(first: Member, second: Member) -> bool | None:
    """Compare the accesses of two members. None: independent. True: they conflict only at equal indices. False:
    otherwise."""
    met: bool | None = None
    pairs = [
        (first.stores, [(n, i) for n, i, _ in second.loads]),
        (first.stores, second.stores),
        ([(n, i) for n, i, _ in first.loads], second.stores),
    ]
    for left, right in pairs:
        for name, index in left:
            for other, at in right:
                if name == other:
                    if index is not at:
                        return False
                    met = True
    return met


def _place(result: list[Stage], m: Member, par: frozenset[Symbol], red: frozenset[Symbol],
           earliest: tuple[int, int]) -> tuple[int, int]:
    every = par | red
    for k in range(earliest[0], len(result)):
        stage = result[k]
        if red:
            if (k, INNER) < earliest:
                continue
            if stage.par == par and stage.red == red:
                stage.inner.append(m)
                return (k, INNER)
            if not stage.red and stage.par == every:
                stage.par, stage.red = par, red
                stage.inner.append(m)
                return (k, INNER)
            continue
        if (k, INNER) >= earliest and stage.par | stage.red == every:
            stage.inner.append(m)
            return (k, INNER)
        if stage.red and stage.par == every:
            stage.post.append(m)
            return (k, POST)
    result.append(Stage(par, red, [m]))
    return (len(result) - 1, INNER)
