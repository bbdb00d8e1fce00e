"""Where capture can stop: at which instruction of which frame plain Python can take over."""

from __future__ import annotations

from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .bridges import STAYS
from .frame import Frame
from .origins import origin

GENERATORS = 0x20 | 0x80 | 0x100 | 0x200

Stop = tuple[int, int]
"""The step before which capture stops, and the depth of the frame that it is a step of."""


class StopAt(Unsupported):
    """What was done at `stop` is known, now, to be plain Python's to do; None: there is no stopping."""

    def __init__(self, reason: str, stop: Stop | None) -> None:
        super().__init__(reason)
        self.stop = stop


def choose_stop(frames: list[Frame], limit: int) -> Stop | None:
    """The deepest instruction before which capture can stop, earlier than `limit` if that failed; or None."""
    best = None
    for depth, frame in enumerate(frames):
        if frame.code.co_flags & GENERATORS or depth and not frame.direct:
            break
        own = origin(frame.code, frame.ip - 1)[1] >= 0  # a continuation's own head cannot be gone on from
        if own and frame.dec.instrs[frame.ip - 1].name not in STAYS and frame.step <= limit:
            best = (frame.step, depth)
    return best


def refuse_abandoned(cx: Any, made: dict[int, str]) -> None:
    """Generators that the frame made and let go of in the middle (they are not among those that were `made` again): when such a one
    dies it is closed, which runs its `finally` and `with` blocks, so it has to be a real one from its beginning."""
    for gen, stop in cx.cleaning:
        if id(gen) not in made and gen.started and not gen.done and _cleans_up(gen):
            raise StopAt(f"generator {gen.frame.fn.qualname} is dropped before its end", stop)


def _cleans_up(gen: t.Generator) -> bool:
    """Whether closing a suspended generator runs code of its, or of what it delegates to."""
    frame = gen.frame
    dec = frame.dec
    row = dec.handler_at(frame.ip - 1)
    while row is not None and dec.instrs[row.target].name in _PASSING:
        row = dec.handler_at(row.target)
    return row is not None or isinstance(gen.delegate(), t.Object)


_PASSING = ("CLEANUP_THROW", "CALL_INTRINSIC_1")
"""How handlers begin that let a GeneratorExit pass: of `yield from`, and of a whole generator (both from 3.12 on)."""

__all__ = ["GENERATORS", "Stop", "StopAt", "choose_stop", "refuse_abandoned"]
