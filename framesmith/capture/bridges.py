"""Bridges: small code objects that run one instruction of a user's function in plain Python, and go on in
continuations.

    prologue      the operands on the stack, the exceptions in whose handlers the instruction stands
    instruction   or, for a frame that waits for a call, the call of what goes on below it
    exits         one for each way out: the next instruction, a jump, the handler that covers it

Each exit returns a tail call of the continuation from there.  A bridge is as long as what it must do, not as the user's
code.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from framesmith import _C

from .bytecode import Decoded, Handler, Instr, assemble, decoded, instr
from .bytecode.layout import HANDLED, LASTI, NULL, VALUE, Layout, leave, parameters, push
from .bytecode.liveness import liveness
from .bytecode.stack import effect, pushes, reads
from .bytecode.tables import PLAIN, emit
from .code_cache import forgetter, kept_with_code
from .resume import cell_names, cells_in, continuation, free_names, leading

STAYS = frozenset({"STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR", "YIELD_VALUE", "SEND", "RETURN_GENERATOR",
                   "RETURN_VALUE",
                   "RETURN_CONST", "MAKE_CELL", "COPY_FREE_VARS", "RESUME", "GET_AWAITABLE", "END_ASYNC_FOR",
                   "ASYNC_GEN_WRAP"})
"""Instructions that change or leave the frame itself, which no other frame can run for it."""

_ENDS = frozenset({"RAISE_VARARGS", "RERAISE"})


class Later:
    """The code of a continuation, made when it is first asked for."""

    __slots__ = ("code", "index", "layout", "made", "names")

    def __init__(self, code: CodeType, index: int, layout: Layout, names: tuple[str, ...]) -> None:
        self.code = weakref.ref(code)
        self.index = index
        self.layout = layout
        self.names = names
        self.made: CodeType | None = None

    def __call__(self) -> CodeType:
        if self.made is None:
            code = self.code()
            assert code is not None  # it is running
            self.made = _C.aside(continuation, code, self.index, self.layout, self.names)
        return self.made


_C.skip_code(Later.__call__.__code__)


@dataclass(frozen=True, slots=True)
class Place:
    """The instruction at which a frame is left.

    `names` are the locals that live there, `kw_names` the keywords of its call.  The layout of a frame that waits for a
    call is without the call's operands.
    """

    code: CodeType
    index: int
    layout: Layout
    names: tuple[str, ...]
    kw_names: tuple[str, ...] = ()


def bridge(place: Place, waits: bool) -> CodeType:
    """Return the code of a bridge.

    Parameters: what the place's layout takes, then its locals; if it `waits` for a call, then that as a TailCall, whose
    result stands for the instruction's.
    """
    return _bridge(place.code, place.index, place.layout, place.names, place.kw_names, waits)


@kept_with_code
def _bridge(code: CodeType, *rest: Any) -> CodeType:
    made = _Builder(Place(code, *rest[:-1]), rest[-1]).build()
    _C.skip_code(made)
    key = id(made)
    _made[key] = weakref.ref(made, forgetter(_made, key)), weakref.ref(code), rest
    return made


_made: dict[int, tuple[weakref.ref[CodeType], weakref.ref[CodeType], tuple[Any, ...]]] = {}
"""By the identity of a bridge: the user's code, and what else it was made of."""


def place_of(code: CodeType) -> tuple[Place, bool] | None:
    """Return the arguments of `bridge` that gave `code`; None: it is no bridge."""
    hit = _made.get(id(code))
    user = None if hit is None else hit[1]()
    return None if hit is None or user is None else (Place(user, *hit[2][:-1]), hit[2][-1])


def group(dec: Decoded, index: int, kw_names: Sequence[str], n_consts: int) -> list[Instr]:
    """Return an instruction and those that belong to it, in the form that pushes values only."""
    ins = dec.instrs[index]
    if ins.name == "CALL":
        head = [instr("KW_NAMES", n_consts, ins.line)] if kw_names else []
        return head + [instr(name, ins.arg, ins.line) for name in emit["call"]]
    if pushes_null(ins):
        name, bit = PLAIN[ins.name]
        return [Instr(name, ins.arg & ~bit, ins.offset, ins.line)]
    name = emit["jump"][0] if ins.op == "JUMP" else ins.name.replace("_BACKWARD_IF", "_FORWARD_IF")
    return [Instr(name, ins.arg, ins.offset, ins.line)]


def operands(code: CodeType, index: int) -> int:
    """Count the stack entries that a call instruction takes."""
    dec = decoded(code)
    return 1 - sum(effect(ins, False) for ins in group(dec, index, (), 0))


def pushes_null(ins: Instr) -> bool:
    """Return whether a NULL comes below the value that the instruction pushes."""
    return ins.op in ("LOAD_METHOD", "LOAD_GLOBAL_NULL") or ins.op == "LOAD_SUPER_ATTR" and ins.val[1]


_ROOM = 4
"""The maximal number of temporaries of an instruction that reads or writes a cell."""


class _Builder:
    """Writes one bridge."""

    def __init__(self, place: Place, waits: bool) -> None:
        self.place = place
        self.waits = waits
        self.code = place.code
        self.dec = decoded(place.code)
        self.line = self.dec.instrs[place.index].line
        self.cells = cell_names(place.code)
        self.n_stack = parameters(place.layout)
        self.scratch = self.n_stack + len(place.names) + waits
        self.consts: list[Any] = [place.kw_names, 0, _C.run, _C.tail_call]
        self.out: list[Instr] = []
        ins = self.dec.instrs[place.index]
        # it may be read for the last time, and holds on
        last = {place.code.co_varnames[ins.arg]} if ins.name == "LOAD_FAST" else set()
        self.kept = {*place.names} - (liveness(place.code, place.index) - last)
        """Locals that only keep their values alive."""
        self.height = 0
        """Temporaries in use, at most."""

    def const(self, value: Any) -> int:
        self.consts.append(value)
        return len(self.code.co_consts) + len(self.consts) - 1

    def emit(self, name: str, arg: int = 0) -> None:
        self.out.append(instr(name, arg, self.line))

    def build(self) -> CodeType:
        place, dec = self.place, self.dec
        base = len(self.code.co_consts)
        ins = dec.instrs[place.index]
        body = group(dec, place.index, place.kw_names, base)
        depth = len(place.layout)
        change = sum(effect(x, False) for x in body)
        takes = reads(body[-1]) if len(body) == 1 else 1 - change
        new = pushes(body[-1], False)
        first = depth if self.waits else depth - min(takes, depth)
        window = () if self.waits else place.layout[first:]
        held = [kind for kind in place.layout[:first] if kind == HANDLED]
        own = body[-1].name.endswith("_DEREF")  # whose errors tell a function's own variables from those around it
        if own:
            self.height = _ROOM
            self.out += cells_in(self.code, self.scratch + _ROOM + 1, self.line)
        elif self.cells:
            self.emit("COPY_FREE_VARS", len(self.cells))
        self.emit("RESUME")
        left = depth + change - new
        after_jump = depth + effect(body[-1], True) if ins.target >= 0 else 0
        row = self.dec.handler_at(place.index)
        stay = 0 if self.waits else max(left, after_jump, row.depth if row is not None else 0) - first
        self.prologue(first, window, base + 1, stay)
        start = len(self.out)
        if self.waits:
            self.emit("PUSH_NULL")
            self.emit("LOAD_CONST", base + 2)
            self.emit("LOAD_FAST", self.scratch - 1)
            self.emit("DELETE_FAST", self.scratch - 1)
            self.call(1)
        else:
            self.out += body
        last, end = self.out[-1], len(self.out)
        below = [*held, *window]
        if self.waits:
            self.exit(place.index + 1, place.layout[:first], held, 1)
        elif ins.name not in _ENDS:
            null = (NULL,) if pushes_null(ins) else ()
            self.exit(place.index + 1, place.layout[:left] + null, below[:len(below) + change - new], new)
        if ins.target >= 0 and not self.waits:
            self.jump_exit(last, ins, below)
        handlers = self.handler_exit(first, held, window, start, end)
        names = tuple(f"__fs_s{i}" for i in range(self.n_stack)) + place.names + ("__fs_inner",) * self.waits
        names += tuple(f"__fs_t{i}" for i in range(self.height + 1))
        room = self.code.co_stacksize + depth + len(names) + len(self.cells) + 8
        cellvars, freevars = (self.code.co_cellvars, free_names(self.code)) if own else ((), self.cells)
        return assemble(self.code, self.out, handlers, names, argcount=self.scratch, cellvars=cellvars,
                        freevars=freevars, old=dec,
                        stacksize=room, consts=tuple(self.consts))

    def prologue(self, first: int, window: Layout, zero: int, stay: int) -> None:
        """Push the handled exceptions, then the operands, of which the exits pass on the lowest `stay`."""
        slot = 0
        for kind in self.place.layout[:first]:
            if kind == HANDLED:
                self.out += push((HANDLED,), self.line, zero, slot, stay=1)
            slot += kind in (VALUE, HANDLED)
        self.out += push(window, self.line, zero, slot, stay)

    def jump_exit(self, last: Instr, ins: Instr, below: Layout | list[int]) -> None:
        change = effect(last, True)
        target, left = ins.target, len(self.place.layout) + change
        last.target = len(self.out)
        if ins.op == "FOR_ITER_END":  # lands behind the END_FOR that it names
            self.emit("END_FOR")
            target += 1
        self.exit(target, self.place.layout[:left], below[:len(below) + change], 0)

    def handler_exit(self, first: int, held: list[int], window: Layout, start: int, end: int) -> list[Handler]:
        """Return the exit for an exception, and the row that leads to it."""
        row = self.dec.handler_at(self.place.index)
        if row is None:
            return []
        here = sum(kind == HANDLED for kind in self.place.layout[:min(row.depth, first)])
        below = [*held[:here], *window[:max(0, row.depth - first)]]
        target = len(self.out)
        lasti = (LASTI,) if row.lasti else ()
        self.emit("STORE_FAST", self.scratch)
        self.out += leave(lasti, self.line, self.scratch + 1)
        self.exit(row.target, self.place.layout[:row.depth] + lasti, below, 1, stored=True)
        return [Handler(start, end, target, len(below), row.lasti)]

    def exit(self, index: int, kept: Layout, below: Sequence[int], new: int, stored: bool = False) -> None:
        """Go on at `index` with the entries `kept` of the place's stack and the `new` ones on top, which lie over
        `below`."""
        self.height = max(self.height, new + 1)
        if not stored:
            for k in reversed(range(new)):
                self.emit("STORE_FAST", self.scratch + k)
        self.out += leave(below, self.line, self.scratch + new)
        live = liveness(self.code, index)
        first = leading(self.code)
        names = tuple(n for n in self.place.names if (n in live or n in self.kept) and n != first)
        self.emit("PUSH_NULL")
        self.emit("LOAD_CONST", len(self.code.co_consts) + 3)
        self.function(Later(self.code, index, kept + (VALUE,) * new, names))
        count = 1 + (first is not None)
        if first is not None:
            self.first(first)
        for slot in range(parameters(kept)):
            self.emit("LOAD_FAST", slot)
            count += 1
        for k in range(new):
            self.emit("LOAD_FAST", self.scratch + k)
        for name in names:
            self.emit("LOAD_FAST", self.n_stack + self.place.names.index(name))
        self.call(count + new + len(names))
        self.emit("RETURN_VALUE")

    def first(self, name: str) -> None:
        """Push the leading argument; None where it is no longer read."""
        if name in self.cells:
            self.out.append(Instr("LOAD_DEREF", self.dec.localsplus.index(name), 0, self.line))
        elif name in self.place.names:
            self.emit("LOAD_FAST", self.n_stack + self.place.names.index(name))
        else:
            self.emit("LOAD_CONST", self.const(None))

    def function(self, later: Later) -> None:
        """Push the function of a continuation."""
        for name in self.cells:
            # an offset: the slot is found by name
            self.out.append(Instr("LOAD_CLOSURE", self.dec.localsplus.index(name), 0, self.line))
        if self.cells:
            self.emit("BUILD_TUPLE", len(self.cells))
        self.emit("PUSH_NULL")
        self.emit("LOAD_CONST", self.const(later))
        self.call(0)
        self.emit("MAKE_FUNCTION", 8 if self.cells else 0)

    def call(self, n: int) -> None:
        for name in emit["call"]:
            self.emit(name, n)
