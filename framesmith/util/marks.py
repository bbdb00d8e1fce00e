"""Marks by which a program tells the compiler about itself, under the names that capture looks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

DYNAMIC, STATIC, UNBACKED = "_framesmith_dynamic", "_framesmith_static", "_framesmith_unbacked"
"""Attributes of a tensor: the dimensions marked, with their ranges or None."""
DISABLED = "_torchdynamo_disable"
_STRICT, _RANGES = "_dynamo_dynamic_indices", "_dynamo_dynamic_range"
_WEAK = "_dynamo_weak_dynamic_indices", "_dynamo_propagated_dynamic_indices"
_STATIC = STATIC, "_dynamo_static_indices"
_UNBACKED, _BOUNDS = ("_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices"), "_dynamo_unbacked_bounds"


@dataclass(frozen=True, slots=True)
class Mark:
    """A program's declaration of a dynamic size: its range, and whether code that assumes one size is an error.
    `backed`: the program may read the size and branch on it. `seen`: not declared, but seen to vary; if size 1 has a
    visibly different layout, it gets a variant of its own."""

    lo: int | None = None
    hi: int | None = None
    strict: bool = True
    backed: bool = True
    seen: bool = False

    @property
    def small(self) -> bool:
        """Return whether the same code is to serve 0, or 1, and larger sizes."""
        return not self.backed or self.lo is not None and self.lo < 2


def graph_break() -> None:
    """End the graph here; outside of captured code it does nothing."""


def is_compiling() -> bool:
    """Return whether this code is being captured."""
    return torch.compiler.is_compiling()


def mark_dynamic(tensor: torch.Tensor, index: int | Iterable[int], *, min: int | None = None,
                 max: int | None = None) -> None:
    """Say that the size of dimension `index` (or of each of several) of `tensor` varies between calls: it is a symbol
    from the first compile on, unless it is 0 or 1.

    With `min=0` or `min=1` it is a symbol then, too, and the code for other sizes serves these, unless the program
    itself does something else for them. Code may rely on its being in the range from `min` to `max`. A call with a size
    outside of it, and a program that assumes a size (branches on `==`, loops over it), are a `ContradictedMark`. Raises
    IndexError where there is no such dimension. """
    _mark(tensor, DYNAMIC, index, (min, max))


def mark_unbacked(tensor: torch.Tensor, index: int | Iterable[int], *, min: int | None = None,
                  max: int | None = None) -> None:
    """Say that nothing may be assumed of the size of dimension `index` (of each of several) of `tensor`, not even that
    it is not 0 or 1: one variant serves all sizes in the range from `min` to `max`.

    A program that asks for the size (branches on it, loops over it) is a `ContradictedMark`, which names the line. What
    operators require, such as equal sizes, is looked at before each call. Raises IndexError where there is no such
    dimension.
    """
    _mark(tensor, UNBACKED, index, (min, max))


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


def marked_dimensions(tensor: torch.Tensor) -> tuple[dict[int, Mark], set[int]]:
    """Return the dimensions of a tensor that are marked to vary, and those that are marked not to, also by PyTorch's
    names."""
    own, rank = tensor.__dict__, tensor.dim()
    if not rank:
        return {}, set()
    marks = {d % rank: Mark(strict=False) for name in _WEAK for d in own.get(name, ())}
    marks |= {d % rank: Mark() for d in own.get(_STRICT, ())}
    marks |= {r.dim % rank: Mark(r.min, r.max) for r in own.get(_RANGES, ())}
    marks |= {d: Mark(*bounds) for d, bounds in own.get(DYNAMIC, {}).items()}
    bounds = {d % rank: (None, None) for name in _UNBACKED for d in own.get(name, ())}
    bounds |= {d % rank: limits for d, limits in own.get(_BOUNDS, {}).items()} | own.get(UNBACKED, {})
    marks |= {d: Mark(*limits, backed=False) for d, limits in bounds.items()}
    return marks, {d % rank for name in _STATIC for d in own.get(name, ())}


def is_disabled(fn: Callable[..., Any]) -> bool:
    """Return whether PyTorch's own `torch.compiler.disable` was put on `fn`."""
    return getattr(fn, DISABLED, False) is True
