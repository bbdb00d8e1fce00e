"""The control flow of a code object: immediate post-dominators, at which the paths from a branch join, and natural
loops."""

from __future__ import annotations

from types import CodeType

from ..code_cache import kept_with_code
from .decode import decoded
from .liveness import ENDS

_RETURNS = frozenset({"RETURN_VALUE", "RETURN_CONST"})


def join_of(code: CodeType, index: int) -> int:
    """Return the first instruction on all paths from `index`, except for those that raise; the number of instructions
    if that is the end of the code."""
    behind = _post_dominators(code)
    later = behind[index] & ~(1 << index)
    found = [k for k in _bits(later) if behind[k] & later == later]
    return found[0] if found else len(behind) - 1


@kept_with_code
def _post_dominators(code: CodeType) -> list[int]:
    """Return for each instruction, and for the end, the instructions (as bits) on all paths from it."""
    after = _successors(code)
    end = len(after)
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


def _successors(code: CodeType) -> list[list[int]]:
    """Return for each instruction its successors, except for exception handlers; the end of the code is one."""
    instrs = decoded(code).instrs
    after = []
    for k, ins in enumerate(instrs):
        ways = [k + 1] if ins.op != "JUMP" and ins.name not in ENDS else [len(instrs)] if ins.name in _RETURNS else []
        after.append(ways + [ins.target] * (ins.target >= 0))
    return after


def loop_around(code: CodeType, index: int) -> tuple[int, frozenset[int]]:
    """Return the head and all instructions of the innermost loop around instruction `index`; (-1, none) if it is in no
    loop."""
    before: dict[int, list[int]] = {}
    back: dict[int, list[int]] = {}
    for k, ways in enumerate(_successors(code)):
        for way in ways:
            before.setdefault(way, []).append(k)
            if way <= k:
                back.setdefault(way, []).append(k)
    found: tuple[int, frozenset[int]] = -1, frozenset()
    for head, ends in back.items():
        body, todo = {head}, list(ends)
        while todo:
            k = todo.pop()
            if k not in body:
                body.add(k)
                todo += before.get(k, [])
        if index in body and (found[0] < 0 or len(body) < len(found[1])):
            found = head, frozenset(body)
    return found


def _bits(value: int) -> list[int]:
    return [k for k in range(value.bit_length()) if value >> k & 1]
