"""Capture with the symbols that a code object's state asks for, and with fewer of them where that fails."""

from __future__ import annotations

from collections.abc import Callable

from framesmith.capture.dynamic_sizes import DynamicSizes
from framesmith.capture.entry import Captured
from framesmith.code_state import CodeState
from framesmith.config import Config
from framesmith.ledger import Ledger
from framesmith.util import log
from framesmith.util.errors import BuildError, CompilerMissing, ContradictedMark, DataDependent, UnfitSizes, Unsupported
from framesmith.util.interrupts import raised_by_handler

Capture = Callable[[frozenset[str] | None, DynamicSizes | None], Captured]
"""Captures a frame, given the numbers that vary and the sizes that are symbols."""


def capture_with_symbols(capture: Capture, seen: CodeState, config: Config, ledger: Ledger | None, name: str,
                         narrow: bool = False) -> Captured:
    """Capture a frame. What fails with symbols is tried again without those of data, then of integers, then of sizes;
    `seen` remembers which. `narrow`: sizes of 0 and 1 are specialised where only a mark's range includes them.

    Raises what the last attempt raises, and at once what says nothing of symbols.
    """
    varying, sizes = seen.varying(config), seen.dynamic_sizes(config)
    if sizes is not None:
        sizes.narrow = narrow
    try:
        captured = capture(varying, sizes)
        seen.ones |= sizes is not None and sizes.ones
        return captured
    except (CompilerMissing, BuildError, UnfitSizes, RecursionError, MemoryError):
        raise
    except Exception as problem:
        if raised_by_handler(problem):
            raise
        if sizes is not None and sizes.assumed_large:
            return capture_with_symbols(capture, seen, config, ledger, name, narrow=True)
        if isinstance(problem, ContradictedMark):
            raise
        why = f"{type(problem).__name__}: {problem}".partition("\n")[0]
        if sizes is not None and sizes.made_of_data:
            log.emit("recompiles", f"{name}: no symbols of data: {why}")
            seen.data = False
            try:
                return capture_with_symbols(capture, seen, config, ledger, name, narrow)
            except DataDependent:  # of the two errors, the first says what was not decided
                raise problem from None
        if sizes is not None and sizes.made_of_numbers:
            log.emit("recompiles", f"{name}: no symbols of integers: {why}")
            seen.numbers = False
            return capture_with_symbols(capture, seen, config, ledger, name, narrow)
        resized = sizes is not None and sizes.made
        breaks = isinstance(problem, Unsupported) and config.fullgraph and varying is not None
        if not (resized or breaks):
            raise
    # code that fails for symbolic sizes may work for these; a branch on a number would break, which `fullgraph` forbids
    captured = capture(None if config.fullgraph else varying, None)
    if resized:
        log.emit("recompiles", f"{name}: sizes stay fixed: {why}")
        seen.static = True
        if ledger is not None:
            ledger.fixed.append(why)
    return captured
