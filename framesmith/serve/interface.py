"""The interface of a package: names, dtypes and sizes of its inputs and outputs, some of which are named dimensions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from framesmith.util.errors import PackageError, RequestRefused

BAD_REQUEST = 400


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or an output. A size is a number, the name of a dimension, or an expression over dimensions."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Interface:
    """Of one package. `dimensions`: inclusive ranges by name; no greatest size is None."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    dimensions: Mapping[str, tuple[int, int | None]]

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Interface:
        """Raises `PackageError` for tensors of a dtype that NumPy lacks, and for a model that keeps state."""
        if kept := ", ".join(s["name"] for s in manifest["state"]):
            raise PackageError(f"calls write {kept}, which later calls read; but requests do not follow each other")
        inputs, outputs = (tuple([Tensor(t["name"], t["dtype"], tuple(t["shape"])) for t in manifest[part]])
                           for part in ("inputs", "outputs"))
        for tensor in (*inputs, *outputs):
            if tensor.dtype == "bfloat16":
                raise PackageError(f"{tensor.name} is bfloat16, which NumPy lacks: convert it to float32 in the model")
        return cls(manifest["name"], inputs, outputs,
                   {d["name"]: (d["min"], d["max"]) for d in manifest["dimensions"]})

    def ordered(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the arrays of a request in the order of the inputs. Raises `RequestRefused` for missing or unknown
        ones."""
        names = [t.name for t in self.inputs]
        if missing := [name for name in names if name not in arrays]:
            raise RequestRefused(BAD_REQUEST, f"input {', '.join(missing)} is missing; the model takes "
                                              f"{', '.join(names)}")
        if unknown := arrays.keys() - set(names):
            raise RequestRefused(BAD_REQUEST, f"input {', '.join(sorted(unknown))} is unknown; the model takes "
                                              f"{', '.join(names)}")
        return [arrays[name] for name in names]

    def sizes(self, arrays: list[np.ndarray]) -> dict[str, int]:
        """Return the sizes of the named dimensions in a request. Raises `RequestRefused` where dtypes or shapes do not
        fit."""
        found: dict[str, tuple[int, str]] = {}
        for tensor, array in zip(self.inputs, arrays, strict=True):
            if array.dtype.name != tensor.dtype:
                raise RequestRefused(BAD_REQUEST, f"input {tensor.name} is {array.dtype.name}, not {tensor.dtype}")
            if array.ndim != len(tensor.shape):
                raise RequestRefused(BAD_REQUEST, f"input {tensor.name} has {array.ndim} dimensions, not "
                                                  f"{len(tensor.shape)}: {list(tensor.shape)}")
            for size, now in zip(tensor.shape, array.shape, strict=True):
                if isinstance(size, int) and size != now:
                    raise RequestRefused(BAD_REQUEST, f"input {tensor.name} has shape {list(array.shape)}, not "
                                                      f"{list(tensor.shape)}")
                if size in self.dimensions:
                    before, where = found.setdefault(str(size), (now, tensor.name))
                    if before != now:
                        raise RequestRefused(BAD_REQUEST, f"{size} is {before} in input {where} and {now} in "
                                                          f"{tensor.name}")
        return {name: now for name, (now, _) in found.items()}

    def stands_alone(self, dimension: str) -> bool:
        """Return whether each size that depends on the dimension is the dimension itself, so that padding can be cut
        off."""
        sizes = [size for t in (*self.inputs, *self.outputs) for size in t.shape]
        return not any(isinstance(size, str) and size != dimension and re.search(rf"\b{re.escape(dimension)}\b", size)
                       for size in sizes)

    def batch_dimension(self) -> str | None:
        """Return the dimension that is the first of every input and output, and of none another; None if there is
        none."""
        tensors = (*self.inputs, *self.outputs)
        first = {t.shape[:1] for t in tensors}
        if len(first) != 1 or not (names := first.pop()) or names[0] not in self.dimensions:
            return None
        name = str(names[0])
        inner = any(name == size for t in tensors for size in t.shape[1:])
        return name if self.stands_alone(name) and not inner else None
