"""The runtime library by ctypes: `framesmith.h` in Python's terms. Neither PyTorch nor NumPy is needed here."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

ABI = 1
MAX_RANK = 8
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool")
"""By their number in the C interface."""
REMEMBERED = 256
"""Combinations of layouts of inputs for which the sizes of the outputs are kept."""
BAD_ARGUMENT, BAD_FILE, UNSUPPORTED, SYSTEM, NO_MEMORY, BAD_INDEX = range(1, 7)


class RuntimeFailure(Exception):
    """An error of the runtime: `status` is its code, the text says what is wrong."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("size", ctypes.c_int64 * MAX_RANK), ("stride", ctypes.c_int64 * MAX_RANK))


class Array(NamedTuple):
    """Memory of the caller's: `address`, the name of a dtype, sizes, and strides in elements (all of them 0:
    row-major)."""

    address: int
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...] = ()

    @property
    def layout(self) -> bytes:
        """All but the address, as C has it. Raises `RuntimeFailure` for a type or a rank that no package has."""
        return _layout(self.dtype, self.size, self.stride)

    def encode(self) -> bytes:
        """Return it as C has it. Raises `RuntimeFailure` for a type or a rank that no package has."""
        return self.address.to_bytes(8, sys.byteorder) + self.layout


@functools.lru_cache(1024)
def _layout(dtype: str, size: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    if dtype not in DTYPES or len(size) > MAX_RANK:
        raise RuntimeFailure(BAD_ARGUMENT, f"a tensor of {dtype} with {len(size)} dimensions")
    return bytes(_Tensor(0, DTYPES.index(dtype), len(size), size, stride))[_Tensor.dtype.offset:]


@functools.cache
def runtime(path: str) -> Any:
    """Return the runtime library at `path`. Raises OSError, and `RuntimeFailure` if it has another interface."""
    library = ctypes.CDLL(path)
    for name in ("error", "manifest", "target"):
        getattr(library, f"framesmith_{name}").restype = ctypes.c_char_p
    pointer, count = ctypes.c_void_p, ctypes.c_int32
    library.framesmith_load.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(pointer))
    library.framesmith_instance.argtypes = (pointer, ctypes.POINTER(pointer))
    for name in ("manifest", "target", "verify", "reset", "free", "inputs", "outputs"):
        getattr(library, f"framesmith_{name}").argtypes = (pointer,)
    library.framesmith_free.restype = None
    library.framesmith_shapes.argtypes = (pointer, ctypes.c_char_p, count, ctypes.POINTER(_Tensor), count)
    library.framesmith_run_on.argtypes = (pointer, ctypes.c_char_p, count, ctypes.c_char_p, count, pointer)
    library.framesmith_set_threads.argtypes = (count,)
    if library.framesmith_abi() != ABI:
        raise RuntimeFailure(UNSUPPORTED, f"{path} has the interface {library.framesmith_abi()}, not {ABI}")
    return library


class Model:
    """An instance of a loaded package. `manifest`: what it says of itself (see docs/package.md)."""

    def __init__(self, library: Any, path: str | os.PathLike[str], target: str | None = None) -> None:
        name = None if target is None else target.encode()
        self._take(library, lambda handle: library.framesmith_load(os.fsencode(path), name, handle))

    def _take(self, library: Any, make: Callable[[Any], int]) -> None:
        self._library, self._handle = library, ctypes.c_void_p()
        self._shapes: dict[bytes, list[tuple[int, ...]]] = {}
        self._checked(make(ctypes.byref(self._handle)))
        self.manifest: dict[str, Any] = json.loads(library.framesmith_manifest(self._handle))
        self.target: str = library.framesmith_target(self._handle).decode()

    def instance(self) -> Model:
        """Another instance, which shares code and weights, and whose buffers are as they were packaged."""
        made = object.__new__(Model)
        made._take(self._library, lambda handle: self._library.framesmith_instance(self._handle, handle))
        return made

    def reset(self) -> None:
        """Make the buffers that runs write what they were when they were packaged."""
        self._checked(self._library.framesmith_reset(self._handle))

    def _checked(self, status: int) -> None:
        if status:
            raise RuntimeFailure(status, self._library.framesmith_error().decode())

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.framesmith_free(self._handle)
            self._handle = ctypes.c_void_p()

    def verify(self) -> None:
        """Compare each member of the file with its digest, weights included."""
        self._checked(self._library.framesmith_verify(self._handle))

    def shapes(self, inputs: Sequence[Array]) -> list[tuple[int, ...]]:
        """Return the sizes of the outputs of a run on `inputs`."""
        layouts = b"".join([x.layout for x in inputs])
        found = self._shapes.get(layouts)
        if found is None:
            outputs = (_Tensor * len(self.manifest["outputs"]))()
            given = b"".join([x.encode() for x in inputs])
            self._checked(self._library.framesmith_shapes(self._handle, given, len(inputs), outputs, len(outputs)))
            if len(self._shapes) >= REMEMBERED:
                self._shapes.clear()
            found = self._shapes[layouts] = [tuple(t.size[: t.rank]) for t in outputs]
        return found

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], team: int | None = None) -> None:
        """Run it: fills the memory of `outputs`. Other threads run Python meanwhile. `team`: address of a
        `framesmith_team`, the threads to run on; None: those of the runtime."""
        self.run_at([x.address for x in inputs], [x.layout for x in inputs], [x.address for x in outputs],
                    [x.layout for x in outputs], team)

    def run_at(self, inputs: Sequence[int], input_layouts: Sequence[bytes], outputs: Sequence[int],
               output_layouts: Sequence[bytes], team: int | None = None) -> None:
        """Run it on memory at these addresses. `Array.layout` gives the layouts."""
        self._checked(self._library.framesmith_run_on(self._handle, _joined(inputs, input_layouts), len(inputs),
                                                      _joined(outputs, output_layouts), len(outputs), team))


def _joined(addresses: Sequence[int], layouts: Sequence[bytes]) -> bytes:
    return b"".join([x.to_bytes(8, sys.byteorder) + layout for x, layout in zip(addresses, layouts, strict=True)])
