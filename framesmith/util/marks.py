"""Marks by which a program tells the compiler about itself, under the names that capture looks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

DYNAMIC, STATIC = "_framesmith_dynamic", "_framesmith_static"
"""Attributes of a tensor: the dimensions marked, with their ranges or None."""


def graph_break() -> None:
    """End the graph here; outside of captured code it does nothing."""


def is_compiling() -> bool:
    """Return whether this code is being captured."""
    return torch.compiler.is_compiling()


def mark_dynamic(tensor: torch.Tensor, index: int | Iterable[int], *, min: int | None = None,
                 max: int | None = None) -> None:
    """Note that dimension `index` (or each of several) of `tensor` varies between calls, from `min` to `max`.

    Recorded, and without effect as yet: every size is compiled as a constant, and another size makes another variant.
    """
    _mark(tensor, DYNAMIC, index, (min, max))


def mark_static(tensor: torch.Tensor, index: int | Iterable[int] | None = None) -> None:
    """Note that dimension `index` (each of several; None: all) never varies. That is how every size is compiled at
    present."""
    _mark(tensor, STATIC, range(tensor.dim()) if index is None else index, None)


def _mark(tensor: torch.Tensor, name: str, index: int | Iterable[int], value: Any) -> None:
    for i in (index,) if isinstance(index, int) else index:
        if not -tensor.dim() <= i < tensor.dim():
            raise IndexError(f"dimension {i} of a tensor with {tensor.dim()} dimensions")
        marks = tensor.__dict__.setdefault(name, {})
        marks[i % tensor.dim()] = value


def is_disabled(fn: Callable[..., Any]) -> bool:
    """Return whether PyTorch's own `torch.compiler.disable` was put on `fn`."""
    return getattr(fn, "_torchdynamo_disable", False) is True
