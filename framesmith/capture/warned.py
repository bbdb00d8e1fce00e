"""Warnings of functions that capture runs for real: each run of the program must issue them, at the program's own
place."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from framesmith.util.errors import Unsupported


class _Refusing:
    """A replacement of the function that shows warnings, for the time of a capture. `within`: the number of captures
    that rely on it."""

    def __init__(self, folding: CodeType, shown: Any) -> None:
        self.folding, self.shown = folding, shown
        self.within = 0

    def __call__(self, message: Any) -> None:
        frame: FrameType | None = sys._getframe(1)
        above = []
        while frame is not None and frame.f_code is not self.folding:
            above.append(frame)
            frame = frame.f_back
        if frame is None:
            self.shown(message)
            return
        _forget(message, [*above, frame])
        raise Unsupported(f"a call that warns: {message.message}")


@contextlib.contextmanager
def refused_in(folding: CodeType) -> Iterator[None]:
    """Refuse, within the block, a warning that is about to be shown below a frame of `folding`, as if it had never been
    issued."""
    shown: Any = warnings._showwarnmsg  # type: ignore[attr-defined]
    refusing = shown if isinstance(shown, _Refusing) else _Refusing(folding, shown)
    refusing.within += 1
    warnings._showwarnmsg = refusing  # type: ignore[attr-defined]
    try:
        yield
    finally:
        refusing.within -= 1
        if not refusing.within and warnings._showwarnmsg is refusing:  # type: ignore[attr-defined]
            warnings._showwarnmsg = refusing.shown  # type: ignore[attr-defined]


def _forget(message: Any, frames: list[FrameType]) -> None:
    """Undo the record that a warning was issued: filters that show it once would hide it from the program."""
    text = str(message.message)
    spaces = [frame.f_globals.get("__warningregistry__", {}) for frame in frames]
    for registry in (*spaces, warnings.onceregistry):  # type: ignore[attr-defined]
        for key in [k for k in registry if isinstance(k, tuple) and k[:2] == (text, message.category)]:
            del registry[key]
