"""The state of one Python frame under capture, and its loop over instructions."""

from __future__ import annotations

from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .bytecode import Decoded
from .registry import OPS
from .sources import Pinned
from .tracing import raised_at, trace

STOPPED = object()
"""The result of `run` when it stops before the frame is done."""
RETURN = object()
"""A handler's signal that the frame is done (`frame.result` holds the value, `frame.yielded` tells a yield from a
return)."""


class Frame:
    """Locals (by fast slot), stack and position of a function that is interpreted symbolically.

    `direct`: what this frame returns is exactly the result of the caller's present instruction.
    """

    __slots__ = ("again", "code", "tracer", "dec", "direct", "end", "fn", "globals", "gvalues", "ip", "kw_names",
                 "locals", "ops", "place", "result",
                 "space", "stack", "step", "yielded")

    def __init__(self, tracer: Any, fn: t.Function, dec: Decoded, slots: list[t.Tracker | None], direct: bool) -> None:
        self.tracer = tracer
        self.fn = fn
        self.code = fn.code
        self.dec = dec
        self.locals = slots
        self.globals = fn.globals
        self.gvalues = tracer.globals_of(fn.globals)
        self.stack: list[t.Tracker] = []
        self.ip = 0
        self.step = 0
        self.direct = direct
        self.result: t.Tracker | None = None
        self.yielded = False
        self.again = -1
        """The instruction that raised the exception which the present instruction re-raises."""
        self.end: t.FrameEnd | None = None
        """The state of the frame for tracebacks."""
        self.space: t.Tracker | None = None
        """The namespace of a class body."""
        self.kw_names: tuple[str, ...] = ()
        self.place: tuple[int, tuple[tuple[str, int, str], ...]] | None = None
        """An instruction, and its place in the user's code: see `Tracer.user_place`."""
        self.ops = dec.bound if dec.bound is not None else bind_ops(dec)
        cells = fn.closure
        if cells:
            slots[len(slots) - len(cells):] = cells

    def run(self, *stops: int) -> Any:
        """Run to the return or the next yield and return its value; or to one of these instructions, and return
        STOPPED."""
        ops = self.ops
        tracer = self.tracer
        while True:
            try:
                while True:
                    ip = self.ip
                    if ip in stops:
                        return STOPPED
                    self.ip = ip + 1
                    tracer.steps = self.step = step = tracer.steps + 1
                    if step == tracer.break_step:
                        tracer.break_here(self)
                    handler, arg = ops[ip]
                    if handler(self, arg) is RETURN:
                        return self.result
            except t.CapturedError as e:
                trace(self, e.tracker)
                if not self.unwind(e):
                    raise

    def unwind(self, e: t.CapturedError) -> bool:
        """Continue at the handler that covers the present instruction; return False if there is none.

        (It does not raise `e`: a frame that holds the exception which passed through it is a circle of references.)
        """
        at = self.ip - 1
        row = self.dec.handler_at(at)
        if row is None:
            return False
        stack = self.stack
        del stack[row.depth:]
        if row.lasti:
            stack.append(t.Lasti(raised_at(self)))
        stack.append(e.tracker)
        self.ip = row.target
        return True

    def throw(self, error: t.Tracker) -> Any:
        """Resume a suspended generator by raising `error` at its yield."""
        trace(self, error)
        if not self.unwind(t.CapturedError(error)):
            raise t.CapturedError(error)
        return self.run()

    def owns(self, slot: int) -> bool:
        """Return whether the cell in a fast slot is the frame's own, not one that it closes over."""
        return slot < len(self.locals) - self.dec.n_free

    @property
    def line(self) -> int:
        """The user's line of the present instruction."""
        return self.dec.instrs[max(self.ip - 1, 0)].line


_COROUTINES = "the await protocol: the body of an async function"
UNCAPTURED: dict[str, str] = {
    **dict.fromkeys(("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "END_ASYNC_FOR", "BEFORE_ASYNC_WITH", "ASYNC_GEN_WRAP"),
                    _COROUTINES),
    "PRINT_EXPR": "an expression printed at the prompt",
    "IMPORT_STAR": "import * (at module level only)",
}
"""Instructions that are always left to plain Python, and why."""


def _unknown(frame: Frame, arg: Any) -> Any:
    op = frame.dec.instrs[frame.ip - 1].op
    raise Unsupported(UNCAPTURED.get(op) or f"instruction {op}")


def bind_ops(dec: Decoded) -> list[tuple[Any, Any]]:
    """Bind each instruction to its handler, once per code."""
    bound = []
    constants: dict[int, t.Tracker] = {}
    for ins in dec.instrs:
        handler = OPS.get(ins.op, _unknown)
        val = ins.target if ins.target >= 0 else ins.val
        if ins.op == "LOAD_CONST" or ins.op == "RETURN_CONST":
            val = constants.get(id(ins.val))
            if val is None:
                val = constants[id(ins.val)] = constant(ins.val)
        bound.append((handler, val))
    dec.bound = bound
    return bound


def constant(value: Any) -> t.Tracker:
    """Return the tracker of an entry of co_consts."""
    if value is None:
        return t.NONE
    if type(value) is tuple:
        return t.Tuple([constant(v) for v in value], value=value, source=Pinned(value))
    if type(value) is frozenset:
        return t.Set(value, cls=frozenset)
    return t.Const(value)
