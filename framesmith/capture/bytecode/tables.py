"""The table of the running Python version: rows that normalise instructions, jump directions, inline-cache sizes."""

from __future__ import annotations

import sys

from . import py311, py312

VERSIONS = {(3, 11): py311, (3, 12): py312}
_version = VERSIONS.get(sys.version_info[:2])
if _version is None:
    raise ImportError(f"framesmith has no bytecode table for Python {sys.version_info[0]}.{sys.version_info[1]}")

ROWS = _version.ROWS
"""name -> function(instr, code, localsplus) that sets `op` and `val`."""
JUMPS = _version.JUMPS
"""name -> +1 (forward) or -1 (backward): relative jumps."""
CACHES = _version.CACHES
"""name -> number of inline cache units that follow the instruction."""
emit = _version.emit
"""The names of the instructions that continuations and bridges are made of, by operation."""
PLAIN = _version.PLAIN
"""Instructions that may push a NULL or a self beside their value: (the name, the bit to clear) of the form that pushes
the value only."""
