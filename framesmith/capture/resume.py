"""Continuations: the rest of a code object from one instruction on, with its stack and locals as arguments.

A continuation's code is the user's code with a prologue in front that puts the stack back and jumps; the exception
table moves with it, so it may start inside a try or with block.  All cells come in as free variables; those that were
the user's function's own are put where its cell variables are, so that they still are variables of its own.  A
suspended generator goes on in the same way: its prologue ends in a yield, at which the new generator waits as the old
one did.
"""

from __future__ import annotations

from types import CodeType

from framesmith import _C

from .bytecode import Decoded, Handler, Instr, assemble, decoded, instr
from .bytecode.layout import Layout, parameters, push
from .bytecode.tables import emit
from .code_cache import kept_with_code
from .origins import note_origin
from .sources import OWN

STACK = "__fs_s"
"""The prefix of the names of the parameters for stack slots."""
FIRST = "__fs_first"
"""The parameter for a first argument that lives in a cell."""


def cell_names(code: CodeType) -> tuple[str, ...]:
    """Return all names that live in cells, in the order in which CPython puts the free variables of a continuation."""
    return tuple(sorted(code.co_cellvars + code.co_freevars,
                        key=lambda name: OWN + name if name in code.co_cellvars else name))


def free_names(code: CodeType) -> tuple[str, ...]:
    """Return the names of a continuation's free variables, in the order of `cell_names`."""
    return tuple(OWN + name if name in code.co_cellvars else name for name in cell_names(code))


def leading(code: CodeType) -> str | None:
    """Return the first argument of code that calls `super()`, which reads the first fast slot; else None."""
    return (code.co_varnames[0] if code.co_argcount and "super" in code.co_names
            and "__class__" in code.co_freevars else None)


@kept_with_code
def continuation(code: CodeType, index: int, layout: Layout, names: tuple[str, ...]) -> CodeType:
    """Return the code that continues at instruction `index` of the user's `code`.

    Parameters: `leading(code)`, if it is a name, what `layout` takes, then the locals `names`.  Free variables:
    `cell_names(code)`.
    """
    dec = decoded(code)
    line = dec.instrs[index].line
    made = _assemble(code, dec, _head(code, layout, names, line, []), index, layout, names, ())
    _C.mark_continuation(made)
    return made


@kept_with_code
def suspended(code: CodeType, index: int, layout: Layout, names: tuple[str, ...], started: bool) -> CodeType:
    """Return the code of a generator function with the parameters of `continuation`.

    Its generator goes on at `index`; if `started`, that is where a value is sent to, after `next` was called once.
    """
    dec = decoded(code)
    line = dec.instrs[index].line
    head = _head(code, layout, names, line, [instr("RETURN_GENERATOR", 0, line), instr("POP_TOP", 0, line)])
    covers: tuple[Handler, ...] = ()
    if started:
        # the yield that suspended it, with the RESUME that says whether it delegates
        at = next(i for i in range(index - 1, -1, -1) if dec.instrs[i].name == "YIELD_VALUE")
        start = len(head) + 1
        head += [instr("LOAD_CONST", len(code.co_consts) + 1, line), instr("YIELD_VALUE", dec.instrs[at].arg, line),
                 instr("RESUME", dec.instrs[at + 1].arg, line)]
        row = dec.handler_at(at)
        if row is not None:
            covers = (Handler(start, len(head), row.target + len(head) + 1, row.depth, row.lasti),)
    return _assemble(code, dec, head, index, layout, names, covers)


def slot_names(code: CodeType, layout: Layout, names: tuple[str, ...]) -> tuple[str, ...]:
    """Fast locals: the leading argument, the stack's parameters, the locals that come in, then the others."""
    cells = cell_names(code)
    first = leading(code)
    head = () if first is None else (FIRST if first in cells else first,)
    rest = tuple(n for n in code.co_varnames if n not in names and n not in cells and n not in head)
    return head + tuple(f"{STACK}{i}" for i in range(parameters(layout))) + names + rest


def shifted(dec: Decoded, shift: int) -> tuple[list[Instr], list[Handler]]:
    """Return the user's instructions and handlers, shifted by `shift` places."""
    body = []
    for ins in dec.instrs:
        if ins.target >= 0:
            moved = Instr(ins.name, ins.arg, ins.offset, ins.line)
            moved.target = ins.target + shift
            body.append(moved)
        else:
            body.append(ins)
    return body, [Handler(h.start + shift, h.end + shift, h.target + shift, h.depth, h.lasti) for h in dec.handlers]


def cells_in(code: CodeType, first: int, line: int) -> list[Instr]:
    """Store the incoming cells; those of the user's function itself go into the slots of cell variables, which begin at
    `first`."""
    cells = cell_names(code)
    out = [instr("COPY_FREE_VARS", len(cells), line)] if cells else []
    free = first + len(code.co_cellvars)
    for i, name in enumerate(code.co_cellvars, first):
        # the interpreter takes for a cell's what MAKE_CELL has made one
        out += [instr("MAKE_CELL", i, line), instr("LOAD_CLOSURE", free + cells.index(name), line),
                instr("STORE_FAST", i, line)]
    return out


def _head(code: CodeType, layout: Layout, names: tuple[str, ...], line: int, first: list[Instr]) -> list[Instr]:
    head = cells_in(code, len(slot_names(code, layout, names)), line)
    return [*head, *first, instr("RESUME", 0, line),
            *push(layout, line, len(code.co_consts), leading(code) is not None)]


def _assemble(code: CodeType, dec: Decoded, head: list[Instr], index: int, layout: Layout, names: tuple[str, ...],
              covers: tuple[Handler, ...]) -> CodeType:
    shift = len(head) + 1
    body, handlers = shifted(dec, shift)
    head = [*head, instr(emit["jump"][0], 0, dec.instrs[index].line, index + shift)]
    made = assemble(code, head + body, [*covers, *handlers], slot_names(code, layout, names),
                    argcount=(leading(code) is not None) + parameters(layout) + len(names), cellvars=code.co_cellvars,
                    freevars=free_names(code), old=dec, stacksize=code.co_stacksize + len(layout) + 2, consts=(0, None))
    note_origin(made, code, shift)
    return made
