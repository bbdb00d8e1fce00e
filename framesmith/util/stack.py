"""The user's own line in a stack."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch

Place = tuple[str, int, str]
"""File, line, function."""

_NOT_USERS = (next(iter(torch.__path__)) + "/", str(Path(__file__).parents[1]) + "/", "<frozen")


@lru_cache(4096)
def is_foreign(file: str) -> bool:
    """Return whether code belongs to torch, framesmith, or the interpreter."""
    return file.startswith(_NOT_USERS)


def user_frame(stack: Sequence[Place]) -> Place:
    """Return the innermost frame outside of torch and framesmith; the innermost of all if there is none. `stack` is not
    empty, innermost last."""
    for place in reversed(stack):
        if not is_foreign(place[0]):
            return place
    return stack[-1]
