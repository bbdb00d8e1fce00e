"""A compiled model that notes what was done to it."""

from __future__ import annotations

from torch import nn

from benchmarks.comparing import assert_same
from framesmith import _C
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.ledger import Ledger

__all__ = ["Watched", "assert_same"]


class Watched:
    """A model compiled with a ledger of its own: faults of the compiler are raised, not run in eager."""

    def __init__(self, model: nn.Module) -> None:
        self.ledger = Ledger()
        self.run = _C.CompiledFunction(model, FrameCompiler(Config.from_env(suppress_errors=False), self.ledger))

    def assert_whole(self, graphs: int) -> None:
        """So many captured frames, each one graph without a break; nothing was left in eager."""
        assert self.ledger.refusals == []
        assert [b for r in self.ledger.records for b in r.breaks] == []
        assert [bool(r.operators) for r in self.ledger.records] == [True] * graphs
