"""Sliding windows over images: their number, and their geometry by dimension."""

from __future__ import annotations

from typing import Any


def window_count(size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool = False) -> Any:
    """Return how many windows fit; with `ceil`, one more may start inside the left-padded input."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil:
        return span // stride + 1
    count = (span + stride - 1) // stride + 1
    return count - 1 if (count - 1) * stride >= size + padding else count


def for_each_dim(value: Any, count: int) -> list:
    """Return an argument for each of `count` dimensions: one number stands for all."""
    if isinstance(value, int):
        return [value] * count
    return list(value) * count if len(value) == 1 else list(value)
