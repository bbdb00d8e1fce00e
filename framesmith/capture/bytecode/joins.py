"""The joins of a code object: where the ways from a branch come together again (its immediate post-dominator)."""

from __future__ import annotations

import weakref
from types import CodeType

from .decode import decoded
from .liveness import ENDS

_RETURNS = frozenset({"RETURN_VALUE", "RETURN_CONST"})
_cache: dict[int, tuple[weakref.ref[CodeType], list[int]]] = {}


def join_of(code: CodeType, index: int) -> int:
    """The first instruction that all ways from `index` on come to, but for those that raise; the number of
    instructions if that is the end of the code."""
    key = id(code)
    hit = _cache.get(key)
    if hit is None:
        hit = _cache[key] = (weakref.ref(code, lambda _, table=_cache: table.pop(key, None)),  # type: ignore[misc]
                             _solve(code))
    behind = hit[1]
    later = behind[index] & ~(1 << index)
    found = [k for k in _bits(later) if behind[k] & later == later]
    return found[0] if found else len(behind) - 1


def _solve(code: CodeType) -> list[int]:
    """For each instruction, and for the end, those (as bits) that each way from it comes to."""
    instrs = decoded(code).instrs
    end, everything = len(instrs), (1 << len(instrs) + 1) - 1
    after = []
    for k, ins in enumerate(instrs):
        ways = [k + 1] if ins.op != "JUMP" and ins.name not in ENDS else [end] if ins.name in _RETURNS else []
        after.append(ways + [ins.target] * (ins.target >= 0))
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


def _bits(value: int) -> list[int]:
    return [k for k in range(value.bit_length()) if value >> k & 1]
