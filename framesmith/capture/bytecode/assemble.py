"""Instructions -> code object.

`assemble` lays instructions out again: it places EXTENDED_ARG prefixes and inline caches, solves jump distances, and
writes the exception table and the line table.  Fast-slot arguments are rewritten by name, so that slots may be added or
moved.
"""

from __future__ import annotations

import opcode
from collections.abc import Sequence
from types import CodeType
from typing import Any

from . import tables
from .decode import Decoded, Handler, Instr

_FAST = {"LOAD_FAST", "STORE_FAST", "DELETE_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "MAKE_CELL",
         "LOAD_CLOSURE",
         "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}


def instr(name: str, arg: int = 0, line: int = 0, target: int = -1) -> Instr:
    """Return a new instruction for a prologue."""
    ins = Instr(name, arg, -1, line)
    ins.target = target
    return ins


def _units(arg: int) -> int:
    return 1 if arg < 256 else 2 if arg < 65536 else 3 if arg < 1 << 24 else 4


def _layout(instrs: Sequence[Instr]) -> tuple[list[int], list[int]]:
    """Arguments and start units of all instructions, with jumps solved."""
    caches = tables.CACHES
    args = [i.arg for i in instrs]
    widths = [_units(a) for a in args]
    tail = [1 + caches.get(i.name, 0) for i in instrs]
    while True:
        starts = []
        pos = 0
        for width, t in zip(widths, tail):
            starts.append(pos)
            pos += width - 1 + t
        starts.append(pos)
        changed = False
        for k, ins in enumerate(instrs):
            if ins.target < 0:
                continue
            sign = tables.JUMPS[ins.name]
            distance = (starts[ins.target] - starts[k + 1]) * sign
            if distance < 0:
                raise ValueError(f"jump of the wrong direction: {ins!r}")
            if distance != args[k]:
                args[k] = distance
                widths[k] = max(widths[k], _units(distance))  # never shrinks: the iteration ends
                changed = True
        if not changed:
            return args, starts


def _emit_varint(value: int, first: bool) -> bytes:
    out = [value & 63]
    value >>= 6
    while value:
        out.append((value & 63) | 64)
        value >>= 6
    out.reverse()
    # continuation bits belong on all bytes but the last
    out = [b | 64 for b in out[:-1]] + [out[-1] & 63]
    if first:
        out[0] |= 128
    return bytes(out)


def exception_table(rows: Sequence[Handler], starts: Sequence[int]) -> bytes:
    """Return the exception table over laid out instructions."""
    out = b""
    for r in rows:
        s, e = starts[r.start], starts[r.end]
        out += _emit_varint(s, True) + _emit_varint(e - s, False)
        out += _emit_varint(starts[r.target], False) + _emit_varint(r.depth << 1 | int(r.lasti), False)
    return out


def _line_varint(value: int) -> bytes:
    out = b""
    while value >= 64:
        out += bytes((value & 63 | 64,))
        value >>= 6
    return out + bytes((value,))


def line_table(lines: Sequence[tuple[int, int]], first: int) -> bytes:
    """Return the location table of (line, units) runs: lines without columns."""
    out = bytearray()
    now = first
    for line, units in lines:
        while units > 0:
            n = min(units, 8)
            delta = line - now
            out += bytes((0x80 | (13 << 3) | (n - 1),))
            out += _line_varint(-delta * 2 + 1 if delta < 0 else delta * 2)
            now = line
            units -= n
    return bytes(out)


def assemble(code: CodeType, instrs: Sequence[Instr], handlers: Sequence[Handler], names: tuple[str, ...], *,
             argcount: int,
             cellvars: tuple[str, ...], freevars: tuple[str, ...], old: Decoded, stacksize: int,
             consts: tuple[Any, ...] = ()) -> CodeType:
    """Return a code object of `instrs`.

    `names` are the plain locals (arguments first); instructions that come from `old` (offset >= 0) have their fast
    slots mapped by name into the new layout, while new ones (offset < 0) already use new slots.  `consts` stand behind
    those of `code`.
    """
    own = set(names)
    slots = {n: i for i, n in enumerate(names + tuple(c for c in cellvars if c not in own) + freevars)}
    placed = []
    for ins in instrs:
        if ins.offset >= 0 and ins.name in _FAST:
            moved = Instr(ins.name, slots[old.localsplus[ins.arg]], ins.offset, ins.line)
            placed.append(moved)
        else:
            placed.append(ins)
    args, starts = _layout(placed)
    out = bytearray()
    lines: list[tuple[int, int]] = []
    caches = tables.CACHES
    ext = opcode.opmap["EXTENDED_ARG"]
    for ins, arg, begin, end in zip(placed, args, starts, starts[1:]):
        n_cache = caches.get(ins.name, 0)
        for k in range(end - begin - 1 - n_cache, 0, -1):
            out += bytes((ext, (arg >> (8 * k)) & 255))
        out += bytes((opcode.opmap[ins.name], arg & 255)) + b"\0\0" * n_cache
        lines.append((ins.line or code.co_firstlineno, end - begin))
    return code.replace(
        co_code=bytes(out), co_argcount=argcount, co_posonlyargcount=0, co_kwonlyargcount=0, co_nlocals=len(names),
        co_varnames=names, co_cellvars=cellvars, co_freevars=freevars, co_stacksize=stacksize,
        co_consts=code.co_consts + consts,
        co_flags=code.co_flags & ~0x0C, co_linetable=line_table(lines, code.co_firstlineno),
        co_exceptiontable=exception_table(handlers, starts))
