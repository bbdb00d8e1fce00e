"""Marks by which a program tells the compiler about itself, under the names that capture looks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

DYNAMIC, STATIC = "_framesmith_dynamic", "_framesmith_static"
"""Attributes of a tensor: the dimensions marked, with their ranges or None."""
_DYNAMIC = DYNAMIC, "_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices"
_STATIC = STATIC, "_dynamo_static_indices"


def graph_break() -> None:
    """End the graph here; outside of captured code it does nothing."""


def is_compiling() -> bool:
    """Return whether this code is being captured."""
    return torch.compiler.is_compiling()


def mark_dynamic(tensor: torch.Tensor, index: int | Iterable[int], *, min: int | None = None,
                 max: int | None = None) -> None:
    """Say that the size of dimension `index` (or of each of several) of `tensor` varies between calls: it is a symbol
    from the first compile on, unless it is 0 or 1.

    The range from `min` to `max` is recorded, and without effect as yet. Raises IndexError where there is no such
    dimension.
    """
    _mark(tensor, DYNAMIC, index, (min, max))


def mark_static(tensor: torch.Tensor, index: int | Iterable[int] | None = None) -> None:
    """Say that the size of dimension `index` (of each of several; None: of all) is a constant, whatever was seen to
    vary: each size is a variant. Raises IndexError where there is no such dimension."""
    _mark(tensor, STATIC, range(tensor.dim()) if index is None else index, None)


def _mark(tensor: torch.Tensor, name: str, index: int | Iterable[int], value: Any) -> None:
    for i in (index,) if isinstance(index, int) else index:
        if not -tensor.dim() <= i < tensor.dim():
            raise IndexError(f"dimension {i} of a tensor with {tensor.dim()} dimensions")
        marks = tensor.__dict__.setdefault(name, {})
        marks[i % tensor.dim()] = value


def marked_dimensions(tensor: torch.Tensor) -> tuple[set[int], set[int]]:
    """The dimensions of a tensor that are marked to vary, and those that are marked not to, also by PyTorch's names."""
    own = tensor.__dict__
    dynamic, static = ({d for name in names for d in own.get(name, ())} for names in (_DYNAMIC, _STATIC))
    return {d % tensor.dim() for d in dynamic if tensor.dim()}, {d % tensor.dim() for d in static if tensor.dim()}


def is_disabled(fn: Callable[..., Any]) -> bool:
    """Return whether PyTorch's own `torch.compiler.disable` was put on `fn`."""
    return getattr(fn, "_torchdynamo_disable", False) is True
