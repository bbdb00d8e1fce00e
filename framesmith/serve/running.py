"""A loaded package, run with NumPy's arrays."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from framesmith.package.binding import BAD_ARGUMENT, BAD_INDEX, Array, Model, RuntimeFailure, runtime
from framesmith.package.loading import library_path
from framesmith.util.errors import PackageError, RequestRefused

STATUS = {BAD_ARGUMENT: 400, BAD_INDEX: 400}
"""HTTP's status of an error of the runtime; others are 500."""


def load(path: str | os.PathLike[str]) -> Model:
    """Return the package in a file; its weights are mapped. Raises `PackageError`."""
    try:
        return Model(runtime(library_path()), path)
    except RuntimeFailure as e:
        raise PackageError(str(e)) from None


def set_threads(count: int) -> None:
    """Let runs of this process share out their work among `count` threads."""
    runtime(library_path()).framesmith_set_threads(count)


def run(model: Model, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of one run; other threads run Python meanwhile. Raises `RequestRefused`."""
    given = [np.asarray(x, order="C") for x in inputs]
    try:
        shapes = model.shapes([_array(x) for x in given])
        outputs = [np.empty(shape, info["dtype"])
                   for shape, info in zip(shapes, model.manifest["outputs"], strict=True)]
        model.run([_array(x) for x in given], [_array(x) for x in outputs])
    except RuntimeFailure as e:
        raise RequestRefused(STATUS.get(e.status, 500), str(e)) from None
    return outputs


def _array(x: np.ndarray) -> Array:
    return Array(x.ctypes.data, x.dtype.name, x.shape)
