"""Packages of framesmith, run with NumPy; neither PyTorch nor framesmith is needed.

    model = framesmith_runtime.load("model.fsm")
    logits, = model(ids)

Arguments are the model's tensors in order, as NumPy arrays or what has `__array_interface__` or `__dlpack__` on the
CPU; what a call returns are the arrays of the outputs in order.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from framesmith_runtime.binding import DTYPES, Array, Model, RuntimeFailure, runtime

__all__ = ["Package", "RuntimeFailure", "load"]

_STORED = {**{name: name for name in DTYPES}, "bfloat16": "uint16"}
"""By the name of a dtype: NumPy's for it. It has no bfloat16: such tensors are bits."""


class Package:
    """A loaded package. `model`: what it says of itself, and memory by addresses. A model that writes its buffers keeps
    them from one call to the next."""

    def __init__(self, path: str | os.PathLike[str], target: str | None = None) -> None:
        library = os.environ.get("FRAMESMITH_RUNTIME") or str(next(Path(__file__).parent.glob("_runtime*.so")))
        self.model = Model(runtime(library), path, target)

    def instance(self) -> Package:
        """Another instance, which shares code and weights, and whose buffers are as they were packaged."""
        made = object.__new__(Package)
        made.model = self.model.instance()
        return made

    def reset(self) -> None:
        """Make the buffers that calls write what they were when they were packaged."""
        self.model.reset()

    def __call__(self, *inputs: Any) -> list[np.ndarray]:
        """Run it. Raises TypeError for another number of inputs, and `RuntimeFailure` for what does not fit."""
        infos, results = self.model.manifest["inputs"], self.model.manifest["outputs"]
        if len(inputs) != len(infos):
            raise TypeError(f"the model takes {len(infos)} tensors, not {len(inputs)}")
        arrays = [_numpy(x) for x in inputs]
        given = [_array(x, info["dtype"]) for x, info in zip(arrays, infos)]
        shapes = self.model.shapes(given)
        outputs = [np.empty(shape, _STORED[info["dtype"]]) for shape, info in zip(shapes, results)]
        self.model.run(given, [_array(x, info["dtype"]) for x, info in zip(outputs, results)])
        return outputs


def _numpy(x: Any) -> np.ndarray:
    array = np.from_dlpack(x) if hasattr(x, "__dlpack__") and not isinstance(x, np.ndarray) else np.asarray(x)
    regular = all(s >= 0 and s % array.itemsize == 0 for s in array.strides) and (any(array.strides) or not array.ndim)
    return array if regular else np.ascontiguousarray(array)


def _array(x: np.ndarray, dtype: str) -> Array:
    """The memory of an array; `dtype`: what its elements are, if they are stored so."""
    name = dtype if x.dtype.name == _STORED[dtype] else x.dtype.name
    return Array(x.ctypes.data, name, x.shape, tuple(s // x.itemsize for s in x.strides))


def load(path: str | os.PathLike[str], target: str | None = None) -> Package:
    """The package in a file. Raises `RuntimeFailure` for one that is damaged or has no code for this processor."""
    return Package(path, target)
