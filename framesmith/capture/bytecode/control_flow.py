"""The control flow of a code object: immediate post-dominators, at which the paths from a branch join, and natural
loops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType

from ..code_cache import kept_with_code
from .decode import Decoded, decoded
from .liveness import ENDS

_RETURNS = frozenset({"RETURN_VALUE", "RETURN_CONST"})
_PASSED = frozenset({"JUMP", "NOP", "POP_TOP", "END_FOR"})


@dataclass(frozen=True, slots=True)
class NaturalLoop:
    """All instructions of a loop, that to which it jumps back, those that may leave it, and where it is left for: see
    `passed`. `iterates`: it is a `for` loop."""

    head: int
    inside: frozenset[int]
    leaves: frozenset[int]
    exits: tuple[int, ...]
    iterates: bool


def join_of(code: CodeType, starts: Iterable[int], head: int = -1) -> int:
    """Return the first instruction on all paths from these, except for those that raise; the number of instructions if
    that is the end of the code, or of a round of the loop that begins at `head`."""
    behind = _post_dominators(code, head)
    later = (1 << len(behind)) - 1
    for k in starts:
        later &= behind[k]
    found = [k for k in _bits(later) if behind[k] & later == later]
    return found[0] if found else len(behind) - 1


@kept_with_code
def _post_dominators(code: CodeType, head: int) -> list[int]:
    """Return for each instruction, and for the end, the instructions (as bits) on all paths from it, if a jump to
    `head` ends them."""
    end = len(_successors(code))
    after = [[end if way == head else way for way in ways] for ways in _successors(code)]
    everything = (1 << end + 1) - 1
    behind = [everything] * end + [1 << end]
    changed = True
    while changed:
        changed = False
        for k in reversed(range(end)):
            common = everything
            for way in after[k]:
                common &= behind[way]
            new = common | 1 << k
            if new != behind[k]:
                behind[k], changed = new, True
    return behind


@kept_with_code
def _successors(code: CodeType) -> list[list[int]]:
    """Return for each instruction its successors, except for exception handlers; the end of the code is one."""
    instrs = decoded(code).instrs
    after = []
    for k, ins in enumerate(instrs):
        ways = [k + 1] if ins.op != "JUMP" and ins.name not in ENDS else [len(instrs)] if ins.name in _RETURNS else []
        after.append(ways + [ins.target] * (ins.target >= 0))
    return after


def passed(dec: Decoded, at: int) -> tuple[int, int]:
    """Return the first instruction from `at` on that does more than drop a value, and how many are dropped before."""
    drops = 0
    for _ in dec.instrs:
        ins = dec.instrs[at]
        if ins.op not in _PASSED:
            break
        drops += ins.op == "POP_TOP"
        at = ins.target if ins.op == "JUMP" else at + 1
    return at, drops


@kept_with_code
def loops(code: CodeType) -> list[NaturalLoop]:
    """Return the loops, the smallest first. A `while` loop has a copy of its test at its end; if a `continue` jumps to
    the first copy, both are of one loop."""
    dec, after = decoded(code), _successors(code)
    before: dict[int, list[int]] = {}
    back: dict[int, list[int]] = {}
    for k, ways in enumerate(after):
        for way in ways:
            before.setdefault(way, []).append(k)
            if way <= k:
                back.setdefault(way, []).append(k)
    found = []
    for head, ends in back.items():
        body, todo = {head}, list(ends)
        while todo:
            k = todo.pop()
            if k not in body:
                body.add(k)
                todo += before.get(k, [])
        edges = [(k, way) for k in body for way in after[k] if way not in body and way < len(after)]
        exits = sorted({passed(dec, way)[0] for _, way in edges})
        iterates = dec.instrs[head].op.startswith("FOR_ITER")
        found.append(NaturalLoop(head, frozenset(body), frozenset(k for k, _ in edges), tuple(exits), iterates))
    found.sort(key=lambda loop: len(loop.inside))
    return [loop for loop in found if not any(_continues(dec, loop, other) for other in found)]


def _continues(dec: Decoded, loop: NaturalLoop, other: NaturalLoop) -> bool:
    """Return whether a loop is left only for the test of the other one around it, or where that is left."""
    return (loop.inside < other.inside and not other.iterates
            and not other.inside.isdisjoint(loop.exits) and not set(loop.exits) <= other.inside
            and {passed(dec, other.head)[0], *other.exits} >= set(loop.exits))


def on_each_round(code: CodeType, loop: NaturalLoop, place: frozenset[int]) -> bool:
    """Return whether every round of a loop comes to one of the instructions at `place`."""
    after, seen = _successors(code), set(place)
    todo = [loop.head] if loop.head not in place else []
    while todo:
        for way in after[todo.pop()]:
            if way == loop.head:
                return False
            if way in loop.inside and way not in seen:
                seen.add(way)
                todo.append(way)
    return True


def loop_around(code: CodeType, index: int) -> tuple[int, frozenset[int]]:
    """Return the head and all instructions of the innermost loop around instruction `index`; (-1, none) if it is in no
    loop."""
    return next(((loop.head, loop.inside) for loop in loops(code) if index in loop.inside), (-1, frozenset()))


def _bits(value: int) -> list[int]:
    return [k for k in range(value.bit_length()) if value >> k & 1]


__all__ = ["NaturalLoop", "join_of", "loop_around", "loops", "on_each_round", "passed"]
