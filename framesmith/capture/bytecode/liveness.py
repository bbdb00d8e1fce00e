"""Liveness: which locals may still be read."""

from __future__ import annotations

from types import CodeType

from ..code_cache import kept_with_code
from .decode import Decoded, decoded

_READS = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "DELETE_FAST"})
ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})


def _successors(dec: Decoded, i: int) -> list[int]:
    ins = dec.instrs[i]
    out = []
    if ins.op != "JUMP" and ins.name not in ENDS and i + 1 < len(dec.instrs):
        out.append(i + 1)
    if ins.target >= 0:
        out.append(ins.target)
    row = dec.handler_at(i)
    if row is not None:
        out.append(row.target)
    return out


@kept_with_code
def _solve(code: CodeType) -> list[int]:
    """Return for the point before each instruction the slots (as bits) that a path from there reads before writing
    them."""
    dec, n_locals = decoded(code), code.co_nlocals
    reads, keeps = [], []
    before: list[list[int]] = [[] for _ in dec.instrs]
    successors = [_successors(dec, i) for i in range(len(dec.instrs))]
    for i, ins in enumerate(dec.instrs):
        own = 1 << ins.arg if ins.arg < n_locals else 0
        # super() takes what is in slot 0
        reads.append(own if ins.name in _READS else ins.val == "super" and ins.name == "LOAD_GLOBAL")
        keeps.append(~own if ins.name == "STORE_FAST" else -1)
        for j in successors[i]:
            before[j].append(i)
    live = [0] * len(dec.instrs)
    work = list(range(len(dec.instrs)))
    while work:
        i = work.pop()
        out = 0
        for j in successors[i]:
            out |= live[j]
        new = reads[i] | out & keeps[i]
        if new != live[i]:
            live[i] = new
            work.extend(before[i])
    return live


_SEES = frozenset({"locals", "vars", "dir", "exec", "eval"})
"""Names of functions that can read all locals of their caller's frame."""


def liveness(code: CodeType, index: int) -> frozenset[str]:
    """Return the fast locals that a path from instruction `index` reads before writing them, or that a function called
    there can read."""
    bits = _solve(code)[index] if _SEES.isdisjoint(code.co_names) else -1
    return frozenset(name for slot, name in enumerate(code.co_varnames) if bits >> slot & 1)
