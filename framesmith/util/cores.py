"""The part of the machine that this process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """Processor cores that it may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
