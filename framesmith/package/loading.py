"""`framesmith.load`: a package as a function of PyTorch's tensors; nothing is captured or compiled."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from framesmith import _C
from framesmith.export.exported import Program
from framesmith.export.exported import load as load_program
from framesmith.export.trees import Tree, flatten, unflatten
from framesmith.package.archive import is_package
from framesmith.package.binding import (
    BAD_ARGUMENT,
    BAD_INDEX,
    DTYPES,
    REMEMBERED,
    Array,
    Model,
    RuntimeFailure,
    runtime,
)
from framesmith.util.errors import PackageError

ERRORS = {BAD_ARGUMENT: ValueError, BAD_INDEX: IndexError}
"""By status; others are `PackageError`."""


_Layout = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]


class _Call(NamedTuple):
    """What calls with inputs of the same layouts share: the inputs that are copied, since all their strides are 0,
    which C takes for row-major; the sizes and dtypes of the outputs; and the layouts of both as C has them."""

    overlapping: list[int]
    inputs: list[bytes]
    made: list[tuple[tuple[int, ...], torch.dtype]]
    outputs: list[bytes]


class Packaged:
    """A package, called as the model was. Results have no autograd history. A model that writes its buffers keeps them
    from one call to the next. A call runs on PyTorch's threads, which would compete with others; calls at the same time
    share those of the runtime."""

    def __init__(self, path: str | os.PathLike[str], target: str | None = None) -> None:
        try:
            self._take(Model(runtime(library_path()), path, target))
        except RuntimeFailure as e:
            raise PackageError(str(e)) from None

    def _take(self, model: Model) -> None:
        self.model, manifest = model, model.manifest
        self._calls: dict[tuple[_Layout, ...], _Call] = {}
        self._arguments = Tree.from_json(manifest["arguments"]["tree"])
        self._fixed = {int(k): value for k, value in manifest["arguments"]["fixed"].items()}
        args, kwargs = self._arguments.parts
        flat = not kwargs.parts and not self._fixed and all(p.kind == "leaf" for p in args.parts)
        self._flat = len(args.parts) if flat else None
        self._result = Tree.from_json(manifest["results"]["tree"])
        self._leaves = manifest["results"]["leaves"]
        self._dtypes = [getattr(torch, output["dtype"]) for output in manifest["outputs"]]

    @property
    def dimensions(self) -> dict[str, tuple[int, int | None]]:
        """The sizes that vary, with their inclusive ranges."""
        return {d["name"]: (d["min"], d["max"]) for d in self.model.manifest["dimensions"]}

    @property
    def notes(self) -> list[str]:
        """What the model changed outside of tensors, which calls of the package do not."""
        return list(self.model.manifest["notes"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it. Raises TypeError, ValueError or IndexError for arguments that it does not take."""
        inputs = self._bind(args, kwargs)
        layouts = tuple([(x.dtype, x.shape, x.stride()) for x in inputs])
        try:
            call = self._calls.get(layouts) or self._prepared(layouts)
            for k in call.overlapping:
                inputs[k] = inputs[k].clone(memory_format=torch.contiguous_format)
            outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in call.made]
            self.model.run_at([x.data_ptr() for x in inputs], call.inputs, [x.data_ptr() for x in outputs],
                              call.outputs, _C.openmp_team())
        except RuntimeFailure as e:
            raise ERRORS.get(e.status, PackageError)(str(e)) from None
        made = [_LEAVES[kind](value, outputs, inputs) for kind, value in self._leaves]
        return unflatten(made, self._result)

    def _prepared(self, layouts: tuple[_Layout, ...]) -> _Call:
        """Return, and remember, what calls with inputs of these layouts share."""
        overlapping = [k for k, (_, size, stride) in enumerate(layouts) if size and not any(stride)]
        given = [_array(dtype, size, () if k in overlapping else stride)
                 for k, (dtype, size, stride) in enumerate(layouts)]
        made = list(zip(self.model.shapes(given), self._dtypes, strict=True))
        outputs = [_array(dtype, size, ()) for size, dtype in made]
        if len(self._calls) >= REMEMBERED:
            self._calls.clear()
        call = _Call(overlapping, [x.layout for x in given], made, [x.layout for x in outputs])
        self._calls[layouts] = call
        return call

    def instance(self) -> Packaged:
        """Another instance, which shares code and weights, and whose buffers are as they were packaged."""
        made = object.__new__(Packaged)
        made._take(self.model.instance())
        return made

    def reset(self) -> None:
        """Make the buffers that calls write what they were when they were packaged."""
        self.model.reset()

    def verify(self) -> None:
        """Compare each member of the file with its digest, weights included. Raises `PackageError`."""
        try:
            self.model.verify()
        except RuntimeFailure as e:
            raise PackageError(str(e)) from None

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """Return the tensors among the arguments, in order."""
        if len(args) == self._flat and not kwargs and all(type(x) is torch.Tensor and x.is_cpu for x in args):
            return [_in_memory(x) for x in args]
        leaves, tree = flatten((args, kwargs))
        if not self._arguments.accepts(tree):
            raise TypeError(f"the model was packaged for arguments {self._arguments}, not {tree}")
        for i, value in self._fixed.items():
            if type(leaves[i]) is not type(value) or leaves[i] != value:
                raise ValueError(f"argument {i} is {leaves[i]!r}; the model was packaged for {value!r}")
        inputs = [x for i, x in enumerate(leaves) if i not in self._fixed]
        for x in inputs:
            if not isinstance(x, torch.Tensor) or x.device.type != "cpu":
                raise TypeError(f"a tensor on the CPU is needed, not {type(x).__name__}")
        return [_in_memory(x) for x in inputs]


_LEAVES: dict[str, Callable[..., Any]] = {
    "output": lambda value, outputs, inputs: outputs[value], "input": lambda value, outputs, inputs: inputs[value],
    "constant": lambda value, outputs, inputs: value, "dtype": lambda value, outputs, inputs: getattr(torch, value),
    "device": lambda value, outputs, inputs: torch.device(value),
}


def _in_memory(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor without history, and with its values in memory."""
    if x.requires_grad:
        x = x.detach()
    return x.resolve_conj().resolve_neg() if x.is_conj() or x.is_neg() else x


_NAMES = {getattr(torch, name): name for name in DTYPES}


def _array(dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...]) -> Array:
    return Array(0, _NAMES.get(dtype) or str(dtype), size, stride)


def library_path() -> str:
    """Return the runtime library that is installed with the package."""
    found = os.environ.get("FRAMESMITH_RUNTIME") or next(
        map(str, sorted(Path(__file__).parent.parent.glob("_runtime*.so"))), None)
    if found is None:
        raise PackageError("the runtime library is not installed: build it (native/README.md)")
    return found


def load(path: str | os.PathLike[str]) -> Packaged | Program:
    """Load a file: a package, as a function; or an exported program. Raises `PackageError` or `ExportError` for a file
    that is damaged, of another kind, or of a newer format."""
    return Packaged(path) if is_package(path) else load_program(path)
