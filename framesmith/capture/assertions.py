"""Assertions on the data of tensors: the graph computes their conditions, residual code looks at them before it changes anything, and where
one does not hold the whole frame runs again in plain Python, which raises what it raises and leaves what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def checks(rb: Any, plain: Callable[[], str]) -> list[str]:
    """The statements of residual code that hold the conditions to their word; `plain` gives the call that runs the user's code instead."""
    if not rb.cx.checks:
        return []
    conditions = " and ".join([f"{rb.hold(bool)}({text})" for text in rb.values(rb.cx.checks)])
    return [f"if not ({conditions}): return {plain()}"]


__all__ = ["checks"]
