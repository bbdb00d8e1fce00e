"""Programs without tensors, of what CPython's own tests found: captured code does what plain Python does, from the
cache too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import framesmith


def kept(fn: Any, **options: Any) -> Any:
    """`fn` compiled so that code without a graph is captured and stays so."""
    return framesmith.compile(fn, backend="eager", options={"keep_graphless": True, "warn": False, **options})


def agree(fn: Any, arguments: Callable[[], Any] = tuple, **options: Any) -> None:
    """Three calls, each with fresh arguments, give what plain ones give."""
    fast = kept(fn, **options)
    for _ in range(3):
        assert fast(*arguments()) == fn(*arguments())


def said(*calls: Callable[[], Any], of: Callable[[Any], Any] = lambda value: value) -> list[Any]:
    """What each call gives, as `of` tells it, or the type and the message of what it raises."""
    out = []
    for call in calls:
        try:
            out.append(of(call()))
        except Exception as e:
            out.append((type(e), str(e)))
    return out


def twice(fn: Any, shown: Callable[[Any], Any] = lambda value: value) -> None:
    """A program without arguments gives what it gives plainly, as `shown`, in two calls."""
    fast = kept(fn)
    for _ in range(2):
        assert shown(fast()) == shown(fn())
