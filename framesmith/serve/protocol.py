"""The JSON of the Open Inference Protocol: tensors (a datatype, a shape and numbers), answers, metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from framesmith.serve.interface import BAD_REQUEST, Interface, Tensor
from framesmith.util.errors import RequestRefused

DATATYPES = {"bool": "BOOL", "uint8": "UINT8", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
             "float16": "FP16", "float32": "FP32", "float64": "FP64"}
"""By NumPy's name of a dtype."""
_DTYPES = {datatype: np.dtype(name) for name, datatype in DATATYPES.items()}
_TAKEN = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}
"""Kinds of numbers that an array is made of, by the kind of its dtype."""


def decode(name: str, datatype: str, shape: Sequence[int], data: Any) -> np.ndarray:
    """Return the array of the input `name`. Raises `RequestRefused` where the data are not of the datatype and shape:
    no number is rounded or wrapped around."""
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


def decode_raw(name: str, datatype: str, shape: Sequence[int], data: bytes) -> np.ndarray:
    """Return the array of the input `name`, whose elements are in memory as the protocol has them: row-major,
    little-endian. It is not written. Raises `RequestRefused` where the bytes are not of the datatype and shape."""
    dtype = _DTYPES.get(datatype)
    if dtype is None:
        raise RequestRefused(BAD_REQUEST, f"input {name} is {datatype}, which is not taken")
    try:
        array = np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape)
    except ValueError as e:
        raise RequestRefused(BAD_REQUEST, f"input {name} of {len(data)} bytes: {e}") from None
    if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
        raise RequestRefused(BAD_REQUEST, f"input {name} has data that are not {datatype}")
    return array


def wanted(outputs: Mapping[str, np.ndarray], names: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return the outputs of these names, or all where there is none. Raises `RequestRefused` for unknown ones."""
    if unknown := [name for name in names if name not in outputs]:
        raise RequestRefused(BAD_REQUEST, f"the model has no output {', '.join(unknown)}; it has {', '.join(outputs)}")
    return {name: outputs[name] for name in names} or outputs


def answer(model: str, outputs: Mapping[str, np.ndarray], names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the answer to a request for the outputs `names`, or for all. Raises `RequestRefused` for unknown ones."""
    return {"model_name": model, "outputs": [
        {"name": name, "shape": list(x.shape), "datatype": DATATYPES[x.dtype.name], "data": x.ravel().tolist()}
        for name, x in wanted(outputs, names).items()]}


def metadata(model: str, interface: Interface) -> dict[str, Any]:
    """Names, datatypes and shapes; a size that varies is -1."""
    def tensor(t: Tensor) -> dict[str, Any]:
        return {"name": t.name, "datatype": DATATYPES[t.dtype],
                "shape": [size if isinstance(size, int) else -1 for size in t.shape]}

    return {"name": model, "platform": "framesmith", "versions": [], "inputs": list(map(tensor, interface.inputs)),
            "outputs": list(map(tensor, interface.outputs))}
