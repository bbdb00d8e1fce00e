"""The origins of continuations. Continuations of continuations are derived from the user's own code, so a loop that
breaks has finitely many of them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import CodeType

from .code_cache import forgetter


@dataclass(frozen=True, slots=True)
class Origin:
    """Instruction i of a continuation is instruction i - shift of `code`."""

    code: weakref.ref[CodeType]
    shift: int


_origins: dict[int, tuple[weakref.ref[CodeType], Origin]] = {}


def note_origin(made: CodeType, code: CodeType, shift: int) -> None:
    """Remember where `made` came from, as long as it lives."""
    key = id(made)
    _origins[key] = (weakref.ref(made, forgetter(_origins, key)), Origin(weakref.ref(code), shift))


def origin(code: CodeType, index: int) -> tuple[CodeType, int]:
    """Return the user's code and instruction behind an instruction of a (possible) continuation."""
    hit = _origins.get(id(code))
    if hit is None:
        return code, index
    user = hit[1].code()
    # a continuation has all of the user's code: it can stand for it
    return (code, index) if user is None else (user, index - hit[1].shift)


def is_continuation(code: CodeType) -> bool:
    """Return whether capture made `code`."""
    return id(code) in _origins
