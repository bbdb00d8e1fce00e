"""The record of what a compiler did: frames it captured, frames it left to plain Python, and its own faults."""

from __future__ import annotations

import os
import traceback
from collections import Counter
from dataclasses import dataclass, field

from framesmith.capture.entry import Break
from framesmith.pipeline import Report

REPORT = "Please report it to framesmith's maintainers with this message, the program and its input."


@dataclass(slots=True)
class Record:
    """One captured frame, for `explain`."""

    function: str
    file: str
    line: int
    breaks: list[Break]
    guards: list[str]
    operators: Counter[str]
    report: Report | None
    instructions: int


@dataclass(slots=True)
class Refusal:
    """One frame that runs in plain Python."""

    function: str
    file: str
    line: int
    reason: str
    hint: str | None = None
    internal: bool = False
    """True for an internal fault, not a known limitation."""


@dataclass(frozen=True, slots=True)
class Use:
    """The number of calls that took a variant, the first call included."""

    compile: int
    function: str
    file: str
    line: int
    uses: int
    alive: bool
    guards: list[str]


@dataclass(slots=True)
class Ledger:
    """The record of a compiler's work, kept on demand."""

    records: list[Record] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    """Frames without dynamic code, which have a variant for each size, and the reason."""


def internal_fault(problem: Exception) -> tuple[str, str]:
    """Return what identifies the fault, and what it is in words."""
    where = traceback.extract_tb(problem.__traceback__)[-1]
    fault = f"{type(problem).__name__}: {problem} [in {where.name}, {os.path.basename(where.filename)}:{where.lineno}]"
    return (f"bug:{where.filename}:{where.lineno}", f"an internal fault of framesmith, not of your program: {fault}")
