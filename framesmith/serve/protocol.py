"""Tensors as the Open Inference Protocol has them: a datatype, a shape and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from framesmith.serve.interface import BAD_REQUEST
from framesmith.util.errors import RequestRefused

DATATYPES = {"bool": "BOOL", "uint8": "UINT8", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
             "float16": "FP16", "float32": "FP32", "float64": "FP64"}
"""By NumPy's name of a dtype."""
_DTYPES = {datatype: np.dtype(name) for name, datatype in DATATYPES.items()}
_TAKEN = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}
"""Kinds of numbers that an array is made of, by the kind of its dtype."""


def decode(name: str, datatype: str, shape: Sequence[int], data: Any) -> np.ndarray:
    """The array of the input `name`. Raises `RequestRefused` where the data are not of the datatype and shape: no
    number is rounded or wrapped around."""
    dtype = _DTYPES.get(datatype)
    if dtype is None:
        raise RequestRefused(BAD_REQUEST, f"input {name} is {datatype}, which is not taken")
    try:
        raw = np.asarray(data).reshape(shape)
    except ValueError as e:
        raise RequestRefused(BAD_REQUEST, f"input {name}: {e}") from None
    if raw.size and raw.dtype.kind not in _TAKEN[dtype.kind]:
        raise RequestRefused(BAD_REQUEST, f"input {name} has data that are not {datatype}")
    array = raw.astype(dtype)
    if dtype.kind in "iu" and (array != raw).any():
        raise RequestRefused(BAD_REQUEST, f"input {name} has numbers beyond the range of {datatype}")
    return array
