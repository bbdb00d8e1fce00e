"""Values that are passed on without being inspected."""

from __future__ import annotations

from typing import Any

from ..sources import Source
from .base import Holder


class Opaque(Holder):
    """An object from outside whose C code implements its attributes, or forwards to another object: a weak proxy, a
    thread's locals."""

    __slots__ = ("cls", "value")

    def __init__(self, cls: type, value: Any, source: Source | None) -> None:
        self.cls = cls
        self.value = value
        self.source = source
