"""Which locals may still be read."""

from __future__ import annotations

from types import CodeType

from .decode import Decoded, decoded

_READS = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "DELETE_FAST"})
_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_JUMPS_ALWAYS = frozenset({"JUMP"})


def _successors(dec: Decoded, i: int) -> list[int]:
    ins = dec.instrs[i]
    out = []
    if ins.op not in _JUMPS_ALWAYS and ins.name not in _ENDS and i + 1 < len(dec.instrs):
        out.append(i + 1)
    if ins.target >= 0:
        out.append(ins.target)
    row = dec.handler_at(i)
    if row is not None:
        out.append(row.target)
    return out


def liveness(code: CodeType, index: int) -> frozenset[str]:
    """Names of fast locals for which a path from instruction `index` reads before it writes."""
    dec = decoded(code)
    live: set[str] = set()
    for slot, name in enumerate(code.co_varnames):
        if _reads(dec, index, slot):
            live.add(name)
    return frozenset(live)


def _reads(dec: Decoded, index: int, slot: int) -> bool:
    seen = {index}
    work = [index]
    instrs = dec.instrs
    while work:
        i = work.pop()
        ins = instrs[i]
        if ins.arg == slot:
            if ins.name in _READS:
                return True
            if ins.name == "STORE_FAST":
                row = dec.handler_at(i)
                nexts = [] if row is None else [row.target]
                work.extend(n for n in nexts if n not in seen)
                seen.update(nexts)
                continue
        for n in _successors(dec, i):
            if n not in seen:
                seen.add(n)
                work.append(n)
    return False
