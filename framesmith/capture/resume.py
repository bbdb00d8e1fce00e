"""Continuation functions: the rest of a code object from one instruction on, with its stack and locals as arguments.

A continuation's code is the user's code with a prologue in front that pushes the stack and jumps.  All cells become free variables.
Continuations of continuations are made from the user's own code again, so a loop that breaks makes finitely many of them.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from types import CodeType
from typing import Any

from .bytecode import Decoded, Handler, Instr, assemble, decoded, instr
from .bytecode.tables import emit


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a continuation came from: its instruction i is instruction i - shift of `code`."""

    code: CodeType
    shift: int


_origins: dict[int, tuple[weakref.ref[CodeType], Origin]] = {}
_made: dict[tuple[int, int, tuple[int, ...], tuple[str, ...]], tuple[weakref.ref[CodeType], CodeType]] = {}


def origin(code: CodeType, index: int) -> tuple[CodeType, int]:
    """The user's code and instruction behind an instruction of a (possible) continuation."""
    hit = _origins.get(id(code))
    return (code, index) if hit is None else (hit[1].code, index - hit[1].shift)


def is_continuation(code: CodeType) -> bool:
    return id(code) in _origins


def cell_names(code: CodeType) -> tuple[str, ...]:
    """All names that live in cells."""
    return code.co_cellvars + code.co_freevars


def continuation(code: CodeType, index: int, kinds: tuple[int, ...], names: tuple[str, ...]) -> CodeType:
    """The code that goes on at instruction `index` of the user's `code`.

    Parameters: the stack entries (`kinds`: 0 a NULL, no parameter; 1 a value; 2 a list to iterate over), then the locals
    `names`.  Free variables: `cell_names(code)`.
    """
    key = (id(code), index, kinds, names)
    hit = _made.get(key)
    if hit is not None:
        return hit[1]
    dec = decoded(code)
    made = _build(code, dec, index, kinds, names)
    _made[key] = (weakref.ref(code, functools.partial(_forget, _made, key)), made)
    return made


def _build(code: CodeType, dec: Decoded, index: int, kinds: tuple[int, ...], names: tuple[str, ...]) -> CodeType:
    cells = cell_names(code)
    stack_names = tuple(f"__fs_s{i}" for i, kind in enumerate(kinds) if kind)
    rest = tuple(n for n in code.co_varnames if n not in names and n not in cells)
    slots = stack_names + names + rest
    line = dec.instrs[index].line
    head: list[Instr] = []
    if cells:
        head.append(instr("COPY_FREE_VARS", len(cells), line))
    head.append(instr("RESUME", 0, line))
    k = 0
    for kind in kinds:
        if kind == 0:
            head.append(instr("PUSH_NULL", 0, line))
            continue
        head.append(instr("LOAD_FAST", k, line))
        k += 1
        if kind == 2:
            head.append(instr("GET_ITER", 0, line))
    shift = len(head) + 1
    head.append(instr(emit["jump"], 0, line, index + shift))
    body = []
    for ins in dec.instrs:
        if ins.target >= 0:
            moved = Instr(ins.name, ins.arg, ins.offset, ins.line)
            moved.target = ins.target + shift
            body.append(moved)
        else:
            body.append(ins)
    handlers = [Handler(h.start + shift, h.end + shift, h.target + shift, h.depth, h.lasti) for h in dec.handlers]
    made = assemble(code, head + body, handlers, slots, argcount=len(stack_names) + len(names), cellvars=(), freevars=cells, old=dec,
                    stacksize=code.co_stacksize + len(kinds) + 2, name=code.co_name)
    key = id(made)
    _origins[key] = (weakref.ref(made, functools.partial(_forget, _origins, key)), Origin(code, shift))
    return made


def _forget(table: dict[Any, Any], key: Any, _: Any) -> None:
    """The code behind an entry is gone. (The table is an argument: at the interpreter's end the module's names are gone too.)"""
    table.pop(key, None)
