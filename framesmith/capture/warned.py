"""Warnings of functions that capture runs for real: each run of the program is to issue them, at its own place."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from framesmith.util.errors import Unsupported


@contextlib.contextmanager
def refused_in(folding: CodeType) -> Iterator[None]:
    """A warning that is about to be shown beneath a frame of `folding` is refused, as if it had never been issued."""
    shown: Any = warnings._showwarnmsg  # type: ignore[attr-defined]

    def show(message: Any) -> None:
        frame: FrameType | None = sys._getframe(1)
        above = []
        while frame is not None and frame.f_code is not folding:
            above.append(frame)
            frame = frame.f_back
        if frame is None:
            shown(message)
            return
        _forget(message, [*above, frame])
        raise Unsupported(f"a call that warns: {message.message}")

    warnings._showwarnmsg = show  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if warnings._showwarnmsg is show:  # type: ignore[attr-defined]
            warnings._showwarnmsg = shown  # type: ignore[attr-defined]


def _forget(message: Any, frames: list[FrameType]) -> None:
    """Take back that a warning was issued: filters that show it once would keep it from the program."""
    text = str(message.message)
    spaces = [frame.f_globals.get("__warningregistry__", {}) for frame in frames]
    for registry in (*spaces, warnings.onceregistry):  # type: ignore[attr-defined]
        for key in [k for k in registry if isinstance(k, tuple) and k[:2] == (text, message.category)]:
            del registry[key]
