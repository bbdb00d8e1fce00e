"""Random numbers of Python's own generators: drawn by residual code, each once and in order."""

from __future__ import annotations

from random import Random
from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import CONSTANT_METHODS, opaque


@opaque(Random, "random")
def _drawn(tracer: Any, generator: t.Tracker) -> t.Tracker:
    """Return the next number of a generator, whose seed and state are not guarded."""
    if any(lock.held > 0 for lock in tracer.locks.values()):
        raise Unsupported("a random number drawn under a lock")
    tracer.changes += 1
    draw = t.Draw(generator)
    tracer.draws.append(draw)
    return t.Data(float, (draw,), lambda x: x)


CONSTANT_METHODS[(Random, "random")] = lambda tracer, generator, args, kwargs: None if args or kwargs else _drawn(
    tracer, generator)
