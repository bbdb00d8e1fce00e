"""Seeds that a program sets: before the graph as long as it draws nothing, after it from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framesmith.fake import Recorder
from framesmith.fake.schema import draws
from framesmith.util.errors import Unsupported


class Seeds:
    """`before` and `behind`: (function that sets a seed, the seed), in order."""

    __slots__ = ("before", "behind", "drawn", "recorder")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.before: list[tuple[Callable[[int], Any], int]] = []
        self.behind: list[tuple[Callable[[int], Any], int]] = []
        self.drawn = 0
        """The number of nodes that drew random numbers before the first seed that is set after the graph."""

    def set(self, setter: Callable[[int], Any], seed: int) -> None:
        self.drawn = self.draws()
        (self.behind if self.drawn else self.before).append((setter, seed))

    def draws(self) -> int:
        """Count the nodes of the graph that draw random numbers."""
        calls = [node for node in self.recorder.graph.nodes if node.op == "call_function"
                 and hasattr(node.target, "_schema")]
        return sum(draws(node.target, node.args, dict(node.kwargs)) for node in calls)  # type: ignore[arg-type]

    def note(self) -> None:
        """Note that a call has been recorded."""
        if self.behind and self.draws() > self.drawn:
            raise Unsupported("random numbers before and after a seed is set", hint="set the seed before the call")
