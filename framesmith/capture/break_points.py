"""The points at which capture can stop: the instruction and the frame at which plain Python can take over."""

from __future__ import annotations

from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .bridges import STAYS
from .frame import Frame
from .frame_introspection import calls_super, looks_at_itself
from .origins import origin

GENERATORS = 0x20 | 0x80 | 0x100 | 0x200

Stop = tuple[int, int]
"""The step before which capture stops, and the depth of its frame."""


class StopAt(Unsupported):
    """The refusal to capture an earlier step, `stop`, that plain Python must execute; None: capture cannot stop
    there."""

    def __init__(self, reason: str, stop: Stop | None, at: tuple[str, int] | None = None) -> None:
        super().__init__(reason, at=at)
        self.stop = stop


class ResultAsked(Unsupported):
    """The program asks for the gradient of a tensor that the graph has both made and used. `span`: the torch calls that
    made it and that used it first, between which the graph must end: one call of a graph is one node of autograd."""

    def __init__(self, reason: str, span: tuple[int, int]) -> None:
        super().__init__(reason)
        self.span = span


def choose_stop(frames: list[Frame], limit: int, after: int | None = None) -> Stop | None:
    """Return the deepest instruction before which capture can stop, earlier than `limit` if that failed; or None.
    `after`: the outermost one that began behind this step, if there is one."""
    best = None
    for depth, frame in enumerate(frames):
        if frame.code.co_flags & GENERATORS or depth and not frame.direct or looks_at_itself(frame.code):
            break
        own = origin(frame.code, frame.ip - 1)[1] >= 0  # a continuation's own head cannot be gone on from
        stays = frame.dec.instrs[frame.ip - 1].name in STAYS or calls_super(frame.dec, frame.ip - 1)
        if own and not stays and frame.step <= limit:
            best = (frame.step, depth)
            if after is not None and frame.step > after:
                break
    return best


def refuse_abandoned(tracer: Any, made: dict[int, str]) -> None:
    """Refuse generators that the frame created and dropped before their end (they are not among those that were `made`
    again): a generator that dies is closed, which runs its `finally` and `with` blocks, so it must be a real one from
    its start."""
    for gen, stop in tracer.cleaning:
        if id(gen) not in made and gen.started and not gen.done and _cleans_up(gen):
            raise StopAt(f"generator {gen.frame.fn.qualname} is dropped before its end", stop)


def _cleans_up(gen: t.Generator) -> bool:
    """Return whether closing a suspended generator runs code of the program's: its own handlers', or a `close` of what
    it delegates to."""
    frame = gen.frame
    row = frame.dec.handler_at(frame.ip - 1)
    while row is not None:
        at = _passed(frame, row.target)
        if at < 0:
            return True
        row = frame.dec.handler_at(at)
    return isinstance(gen.delegate(), t.Object)


def _passed(frame: Frame, at: int) -> int:
    """Return the instruction by which a GeneratorExit leaves the handler at `at` without any other effect; -1 if it may
    have one."""
    instrs = frame.dec.instrs
    kind: Any = None
    while instrs[at].op not in _LEAVES:
        ins = instrs[at]
        if ins.op == "LOAD_GLOBAL":
            kind = frame.tracer.read_global(frame.globals, ins.val)
        elif ins.op == "CHECK_EXC_MATCH":
            if not isinstance(kind, t.Class) or issubclass(GeneratorExit,
                                                           kind.value) or not issubclass(kind.value, BaseException):
                return -1
        elif ins.op not in _QUIET:
            return -1
        at = ins.target if ins.op == "POP_JUMP_IF_FALSE" else at + 1
    return at


_LEAVES = ("RERAISE", "CLEANUP_THROW")
_QUIET = frozenset(("PUSH_EXC_INFO", "POP_EXCEPT", "COPY", "SWAP", "POP_TOP", "NOP", "LOAD_CONST", "STORE_FAST",
                    "DELETE_FAST",
                    "POP_JUMP_IF_FALSE", "CALL_INTRINSIC_1"))
"""The instructions in handlers of `except` clauses, in those that restore the state, and in those that cover a whole
generator (from 3.12 on)."""
