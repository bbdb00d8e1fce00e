"""Which line of a stack is the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

Place = tuple[str, int, str]
"""File, line, function."""

_NOT_USERS = (next(iter(torch.__path__)) + "/", str(Path(__file__).parents[1]) + "/", "<frozen")


def user_frame(stack: Sequence[Place]) -> Place:
    """The innermost frame outside of torch and framesmith; the innermost of all if there is none. `stack` is not empty, innermost last."""
    for place in reversed(stack):
        if not place[0].startswith(_NOT_USERS):
            return place
    return stack[-1]
