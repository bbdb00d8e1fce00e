"""Code object -> instructions.

A `Decoded` is computed once per code object and kept as long as the code lives.  Each instruction carries its raw
opcode and argument (for reassembly) and a normalised operation `op` with a decoded argument `val` (for interpretation):
the version tables (`py311`, `py312`) say how.  Jump targets are indices into `Decoded.instrs`.
"""

from __future__ import annotations

import opcode
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

from framesmith.util.stack import is_foreign

from ..code_cache import kept_with_code
from . import tables

EXTENDED_ARG = opcode.opmap["EXTENDED_ARG"]
CACHE = opcode.opmap["CACHE"]
HAVE_ARGUMENT = opcode.HAVE_ARGUMENT


class Instr:
    """One instruction.  `target` is the index jumped to, or -1."""

    __slots__ = ("arg", "line", "name", "offset", "op", "target", "val")

    def __init__(self, name: str, arg: int, offset: int, line: int) -> None:
        self.name = name
        self.arg = arg
        self.offset = offset
        self.line = line
        self.op = name
        self.val: Any = arg
        self.target = -1

    def __repr__(self) -> str:
        goes = f" -> {self.target}" if self.target >= 0 else ""
        return f"{self.name} {self.val!r}{goes}"


class Handler(NamedTuple):
    """A row of the exception table over instruction indices: start <= i < end."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


@dataclass(slots=True)
class Decoded:
    """The instructions of a code object."""

    instrs: list[Instr]
    handlers: list[Handler]
    localsplus: tuple[str, ...]
    """Names by the index that LOAD_FAST and LOAD_DEREF use: locals, then cells that are no arguments, then free
    variables."""
    n_free: int
    foreign: bool = False
    """Not the user's own code."""
    bound: Any = None
    """The interpreter's own bound form: [(handler, argument), …]."""

    def handler_at(self, index: int) -> Handler | None:
        """Return the innermost exception handler that covers instruction `index`."""
        found = None
        for row in self.handlers:
            if row.start <= index < row.end:
                found = row
        return found


def localsplus_names(code: CodeType) -> tuple[str, ...]:
    """Names in the order of the frame's fast slots."""
    names = code.co_varnames
    own = set(names)
    return names + tuple(n for n in code.co_cellvars if n not in own) + code.co_freevars


def _raw(code: CodeType) -> tuple[list[Instr], dict[int, int]]:
    raw = code.co_code
    lines: dict[int, int] = {}
    for start, end, line in code.co_lines():
        for off in range(start, end, 2):
            lines[off] = line or code.co_firstlineno
    opname = opcode.opname
    instrs: list[Instr] = []
    at: dict[int, int] = {}
    ext = 0
    begin = -1
    first = code.co_firstlineno
    for off in range(0, len(raw), 2):
        op = raw[off]
        if op == CACHE:
            continue
        if begin < 0:
            begin = off
        arg = raw[off + 1] | ext
        if op == EXTENDED_ARG:
            ext = arg << 8
            continue
        for o in range(begin, off + 2, 2):
            at[o] = len(instrs)
        instrs.append(Instr(opname[op], arg, off, lines.get(off, first)))
        ext = 0
        begin = -1
    at[len(raw)] = len(instrs)
    return instrs, at


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    b = data[pos]
    pos += 1
    value = b & 63
    while b & 64:
        b = data[pos]
        pos += 1
        value = (value << 6) | (b & 63)
    return value, pos


def parse_exception_table(code: CodeType) -> list[tuple[int, int, int, int, bool]]:
    """Rows (start, end, target, depth, lasti), in byte offsets."""
    data = code.co_exceptiontable
    rows = []
    pos = 0
    while pos < len(data):
        start, pos = _varint(data, pos)
        length, pos = _varint(data, pos)
        target, pos = _varint(data, pos)
        dl, pos = _varint(data, pos)
        rows.append((start * 2, (start + length) * 2, target * 2, dl >> 1, bool(dl & 1)))
    return rows


def decode(code: CodeType) -> Decoded:
    """Decode without the cache."""
    instrs, at = _raw(code)
    names = localsplus_names(code)
    rows = tables.ROWS
    caches = tables.CACHES
    for ins in instrs:
        row = rows.get(ins.name)
        if row is not None:
            row(ins, code, names)
        jump = tables.JUMPS.get(ins.name)
        if jump is not None:
            ins.target = at[ins.offset + 2 + 2 * caches.get(ins.name, 0) + jump * 2 * ins.arg]
    order = sorted(at)

    def index(off: int) -> int:
        while off not in at:
            off += 2
            if off > order[-1]:
                return len(instrs)
        return at[off]

    handlers = [Handler(index(s), index(e), index(t), d, la) for s, e, t, d, la in parse_exception_table(code)]
    return Decoded(instrs, handlers, names, len(code.co_freevars), is_foreign(code.co_filename))


decoded = kept_with_code(decode)
"""The decoded form of a code object; kept while the code lives."""
