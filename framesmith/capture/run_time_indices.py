"""Tensors indexed by dynamic integers: the graph takes the integer, and computes a copy in place of eager's view.

The copy is equivalent as long as neither it nor its base is written, and it does not leave the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.fake import FakeTensor
from framesmith.fake.dynamic_scalars import Number
from framesmith.symbolic.layout import contiguous_strides
from framesmith.util.errors import Unsupported

from . import data
from . import trackers as t
from .session import Session
from .trackers.symbolic_number import is_symbolic

OBSERVERS = frozenset({"storage_offset", "data_ptr", "untyped_storage", "storage", "is_set_to", "_is_view", "_base",
                       "as_strided",
                       "as_strided_", "set_", "resize_", "share_memory_", "is_shared", "is_pinned", "__dlpack__",
                       "numpy"})
"""Methods and attributes by which a program tells a copy from a view."""


class CopySeen(Unsupported):
    """The program can distinguish the copy from a view: the frame is captured with specialised indices."""


class Copies(Session):
    """The part of the session that tracks the copies."""

    def __init__(self) -> None:
        self.copies: list[tuple[FakeTensor, FakeTensor, int]] = []
        """Triples of the base, its copy, and the version of the base at that time."""
        self.assumes_indices = False
        self.new_leaves: list[FakeTensor] = []
        """Tensors that the frame has made to require grad."""

    def seen_as_copy(self, fake: FakeTensor) -> None:
        """Refuse an operation on `fake` that may distinguish a copy from a view."""
        if any(copy._alias.storage is fake._alias.storage for _, copy, _ in self.copies):
            raise CopySeen("an index that varies gives a view, which the program looks at as such")

    def seen_as_view(self, fake: FakeTensor) -> None:
        """Refuse to tell whether a view requires grad, of a tensor that the frame has made to."""
        if any(leaf._alias.storage is fake._alias.storage and leaf is not fake for leaf in self.new_leaves):
            raise Unsupported("a view of a tensor that was made to require grad")

    def check_copies(self, outputs: list[Any]) -> None:
        """Refuse, at the end of capture, if a copy is an output, or if it or its base was written."""
        for fake in outputs:
            if isinstance(fake, FakeTensor):
                self.seen_as_copy(fake)
                self.seen_as_view(fake)
        for base, copy, version in self.copies:
            if base._alias.storage.version != version or copy._alias.storage.version:
                raise CopySeen("an index that varies gives a view of what is written")


def indexed(tracer: Any, x: t.Tracker, key: t.Tracker,
            number: Callable[[Any, Any], Number]) -> tuple[Any, list[Any]] | None:
    """Return the function to run on fakes for `x[key]`, and its arguments; None if an index is to be specialised, or
    none is dynamic."""
    parts = key.open(tracer) if type(key) is t.Tuple else [key]
    at = [i for i, part in enumerate(parts) if is_symbolic(part)]
    fake = x.real(tracer)
    if (not at or not isinstance(fake, FakeTensor) or tracer.assumes_indices or fake.device.type != "cpu"
        or fake.is_conj() or fake.is_neg()):
        return None
    if any(type(getattr(parts[i].example, "item",  # type: ignore[attr-defined, misc]
                        lambda i=i: parts[i].example)()) is not int  # type: ignore[attr-defined]
           for i in at):
        return None
    rest = [part.real(tracer) if i not in at else slice(None) for i, part in enumerate(parts)]
    if not all(p is None or p is ... or type(p) in (int, slice) for p in rest) or rest.count(...) > 1:
        return None
    dims = _dims(rest, at, fake.dim())
    return (_copied, [tracer, fake, tuple(rest), dims,
                      [number(tracer, parts[i]) for i in at]]) if dims is not None else None


def viewed(tracer: Any, x: t.Tracker, key: t.Tracker) -> tuple[Any, list[Any]] | None:
    """Return the function to run on fakes for the view `x[key]`, of which integers of data are indices, and its
    arguments; None if there is none, or there are other indices than integers and slices."""
    parts = [data.integer_in(tracer, p) for p in (key.open(tracer) if type(key) is t.Tuple else [key])]
    at = [i for i, part in enumerate(parts) if type(part) is t.Data and data.is_size(tracer, part)]
    fake = x.real(tracer) if at else None
    if not isinstance(fake, FakeTensor) or not all(i in at or p.constant or type(p) is t.Slice
                                                   for i, p in enumerate(parts)):
        return None
    rest = [slice(None) if i in at else part.real(tracer) for i, part in enumerate(parts)]
    if not all(p is None or p is ... or type(p) in (int, slice) for p in rest) or rest.count(...) > 1:
        return None
    dims = _dims(rest, at, fake.dim())
    sizes = [data.size(tracer, parts[i]) for i in at]  # type: ignore[arg-type]
    return None if dims is None else (_selected, [fake, tuple(rest), dims, sizes])


def _selected(x: FakeTensor, key: tuple[Any, ...], dims: list[int], sizes: list[Any]) -> Any:
    y = x if all(part == slice(None) for part in key) else x[key]
    for dim, at in sorted(zip(dims, sizes), key=lambda pair: -pair[0]):
        y = y.select(dim, at)
    return y


def selected(tracer: Any, x: t.Tracker, dim: t.Tracker, index: t.Tracker) -> t.Tracker | None:
    """Return the key with which `x[key]` is `x.select(dim, index)`."""
    if not isinstance(x, t.Tensor) or not isinstance(dim, t.Const) or not is_symbolic(index):
        return None
    at = dim.real(tracer)
    if type(at) is not int or not -x.fake.dim() <= at < x.fake.dim():
        return None
    return t.Tuple([*[t.Slice([t.NONE, t.NONE, t.NONE])] * (at % x.fake.dim()), index])


def _dims(rest: list[Any], at: list[int], dim: int) -> list[int] | None:
    """Return the dimension of the result of `x[rest]` at each of some places in `rest`."""
    taken = sum(p is not None and p is not ... for p in rest)
    if taken > dim:
        return None
    dims, now = [], 0
    for i, part in enumerate(rest):
        if i in at:
            dims.append(now)
        now += dim - taken if part is ... else type(part) is not int
    return dims


def _copied(tracer: Any, x: FakeTensor, key: tuple[Any, ...], dims: list[int], numbers: list[Number]) -> Any:
    y = x[key]
    kept = [d for d in range(y.dim()) if d not in dims]
    usual = contiguous_strides([y.shape[d] for d in kept])
    if any(y.shape[d] != 1 and y.stride(d) != stride for d, stride in zip(kept, usual)):
        raise CopySeen("an index that varies, of a tensor whose parts are not dense")
    version = x._alias.storage.version
    for dim, number in sorted(zip(dims, numbers), key=lambda pair: -pair[0]):
        y = torch.ops.aten.index.Tensor(y, [None] * dim + [number.fake()])
    tracer.copies.append((x, y, version))
    return y
