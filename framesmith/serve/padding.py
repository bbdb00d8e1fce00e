"""Requests joined into one run, and its results taken apart: rows one behind the other, other sizes padded to the
greatest of the run.

Rows that fill a batch up are copies of a request's row, so they are always valid. Along another dimension a model is
padded only where the operator of the service says that it may be, and `probe.py` compares results before it is ready.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from framesmith.serve.interface import BAD_REQUEST, Interface
from framesmith.util.errors import PackageError, RequestRefused

Sizes = Mapping[str, int]
Group = tuple[tuple[str, int], ...]
"""Buckets of the named dimensions, without the batch: requests of one group can be joined."""


@dataclass(frozen=True)
class Padding:
    """`batch`: the dimension that requests are joined along, or None. `padded`: other dimensions that may be padded,
    each input with its number in `fills`, or with 0. `buckets`, in order: the sizes that the batch is padded to; of a
    padded dimension, the greatest sizes of requests that are joined, powers of two where none are given."""

    interface: Interface
    batch: str | None
    padded: Collection[str] = ()
    fills: Mapping[str, float] = field(default_factory=dict)
    buckets: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises `PackageError` for dimensions and inputs that the package lacks, and for such as cannot be padded."""
        known = self.interface.dimensions
        for dimension in (*self.padded, *self.buckets):
            if dimension not in known:
                raise PackageError(f"the package has no dimension {dimension}; it has {', '.join(known) or 'none'}")
            if not self._paddable(dimension):
                raise PackageError(f"buckets of {dimension}, which is not padded")
            if not self.interface.stands_alone(dimension):
                raise PackageError(f"{dimension} cannot be padded: other sizes are computed of it")
        if self.padded and self.batch is None:
            raise PackageError(f"{', '.join(self.padded)} cannot be padded: requests are run one by one")
        if self.batch in self.padded:
            raise PackageError(f"{self.batch} is the batch, which is filled up with rows of requests")
        if unknown := self.fills.keys() - {t.name for t in self.interface.inputs}:
            raise PackageError(f"the package has no input {', '.join(sorted(unknown))}")

    def _paddable(self, dimension: str) -> bool:
        return dimension == self.batch or dimension in self.padded

    def bucket(self, dimension: str, size: int) -> int:
        """Return the greatest size of what a request of `size` is joined with; of the batch, the size of a run. Raises
        `RequestRefused` if it is out of the range."""
        least, most = self.interface.dimensions[dimension]
        paddable = self._paddable(dimension)
        if size < (1 if paddable else least) or most is not None and size > most:
            raise RequestRefused(BAD_REQUEST, f"{dimension} is {size}, out of its range from "
                                              f"{1 if paddable else least} to {'any' if most is None else most}")
        if not paddable:
            return size
        if dimension in self.buckets:
            size = next((bucket for bucket in self.buckets[dimension] if bucket >= size), size)
        elif dimension != self.batch:
            size = 1 << (size - 1).bit_length()
        return max(least, size if most is None else min(size, most))

    def most_rows(self, limit: int) -> int:
        """Rows of the largest batch of at most `limit` that the package runs; 1 without a batch."""
        if self.batch is None:
            return 1
        most = self.interface.dimensions[self.batch][1]
        return limit if most is None else min(limit, most)

    def group(self, sizes: Sizes) -> Group:
        """Return the group of a request of these sizes: requests of one group can be joined. Raises `RequestRefused` if
        one is out of its range."""
        run = [(name, self.bucket(name, size)) for name, size in sizes.items()]
        return tuple([(name, size) for name, size in run if name != self.batch])

    def join(self, requests: Sequence[tuple[Sequence[np.ndarray], Sizes]]) -> list[np.ndarray]:
        """Return the inputs of one run for requests of one group, in memory of its own, since a model may write its
        inputs; for one request if there is no batch."""
        sizes = {name: max(self.interface.dimensions[name][0], *(s[name] for _, s in requests))
                 for name in requests[0][1]}
        if self.batch is not None:
            sizes[self.batch] = self.bucket(self.batch, sum(s[self.batch] for _, s in requests))
        return [self._joined(k, [arrays[k] for arrays, _ in requests], sizes)
                for k in range(len(self.interface.inputs))]

    def _joined(self, number: int, parts: Sequence[np.ndarray], sizes: Sizes) -> np.ndarray:
        tensor = self.interface.inputs[number]
        shape = tuple([sizes.get(str(size), now) for size, now in zip(tensor.shape, parts[0].shape, strict=True)])
        out = np.full(shape, self.fills.get(tensor.name, 0), parts[0].dtype)
        row = 0
        for part in parts:
            places = [slice(n) for n in part.shape]
            if self.batch is not None:
                places[0] = slice(row, row + len(part))
                row += len(part)
            out[tuple(places)] = part
        if self.batch is not None:
            out[row:] = out[:1]
        return out

    def split(self, outputs: Sequence[np.ndarray], requests: Sequence[Sizes]) -> list[list[np.ndarray]]:
        """Return each request's part of the results, without what padding has added."""
        rows = [0 if self.batch is None else sizes[self.batch] for sizes in requests]
        starts = itertools.accumulate(rows, initial=0)
        return [[self._cut(number, x, start, sizes) for number, x in enumerate(outputs)]
                for start, sizes in zip(starts, requests)]

    def _cut(self, number: int, output: np.ndarray, start: int, sizes: Sizes) -> np.ndarray:
        places = [slice(sizes[str(size)]) if size in self.padded else slice(None)
                  for size in self.interface.outputs[number].shape]
        if self.batch is not None:
            places[0] = slice(start, start + sizes[self.batch])
        return output[tuple(places)]
