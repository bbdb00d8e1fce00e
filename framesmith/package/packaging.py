"""`package`: a model as one file that runs without Python, compiler and PyTorch."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from framesmith.export.exported import Program
from framesmith.export.trace import Leaf
from framesmith.package.archive import write_archive
from framesmith.package.captured import Captured, capture, captured_program
from framesmith.package.compiling import Compiled, compile_for, dtype_name, elements
from framesmith.package.machines import machines_of
from framesmith.package.sizes import size_over
from framesmith.prims.core import size_of
from framesmith.util.errors import PackageError

FORMAT = 2
TARGETS = ("x86-64-v4", "x86-64-v3", "x86-64")


def package(model: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *,
            path: str | os.PathLike[str], dynamic_shapes: Any = None, targets: Sequence[str] = TARGETS) -> None:
    """Write `model`, as `model(*args, **kwargs)` runs it, to the file `path`, with code for each of `targets`.

    `model`: a module or function; or what `framesmith.export` returned, which needs no arguments. `dynamic_shapes`:
    which sizes vary (see `export.dims`). `targets`: names of `machines.MACHINES`; a runtime takes the best that its
    processor runs.

    Raises `ExportError` where the program cannot be captured whole, and `PackageError` where an operator has no kernel
    outside of PyTorch, with all such operators and their lines.
    """
    machines = machines_of(targets)
    captured = captured_program(model) if isinstance(model, Program) else capture(model, tuple(args), kwargs or {},
                                                                                  dynamic_shapes)
    interface = _interface(captured)
    compiled = [compile_for(machine, captured) for machine in machines]
    name = model.name if isinstance(model, Program) else type(model).__name__
    write_archive(path, *_contents({"format": FORMAT, "name": name, **interface}, captured.state, compiled))


def _interface(c: Captured) -> dict[str, Any]:
    """Return the interface as JSON: sizes, inputs, outputs, and how arguments and results are made of them."""
    names = [d.name for d in c.constraints.dimensions]
    return {
        "dimensions": [{"name": d.name, "min": d.lo, "max": d.hi} for d in c.constraints.dimensions],
        "inputs": [{**_tensor(name, spec), "sizes": [size_over(size_of(n), names) for n in spec.shape]}
                   for name, spec in zip(c.names, c.specs, strict=True)],
        "outputs": [_tensor(name, value) for name, value in zip(_names(c), c.outputs, strict=True)],
        "arguments": {"tree": c.arguments.to_json(), "fixed": {str(i): _plain(x) for i, x in c.fixed.items()}},
        "results": {"tree": c.tree.to_json(), "leaves": [_leaf(leaf, c) for leaf in c.results]},
        "notes": c.notes,
    }


def _tensor(name: str, value: Any) -> dict[str, Any]:
    shape = [size if type(size) is int else str(size) for size in map(size_of, value.shape)]
    return {"name": name, "dtype": dtype_name(value.dtype), "shape": shape}


def _names(c: Captured) -> list[str]:
    """Return the names of the outputs: the keys of the result, or numbers."""
    keys = c.tree.keys if all(part.kind == "leaf" for part in c.tree.parts) else ()
    names = {leaf.value: str(key) for key, leaf in zip(keys, c.results) if leaf.kind == "output"}
    return [names.get(k, f"output_{k}") for k in range(len(c.outputs))]


def _leaf(leaf: Leaf, c: Captured) -> list[Any]:
    """["output", number], ["input", number], ["constant", value], or ["dtype" or "device", its name]."""
    if leaf.kind == "input":
        return ["input", sum(i not in c.fixed for i in range(leaf.value))]
    if isinstance(leaf.value, torch.dtype):
        return ["dtype", dtype_name(leaf.value)]
    if isinstance(leaf.value, torch.device):
        return ["device", str(leaf.value)]
    return [leaf.kind, leaf.value if leaf.kind == "output" else _plain(leaf.value)]


def _plain(value: Any) -> Any:
    if value is not None and not isinstance(value, bool | int | float | str):
        raise PackageError(f"{value!r} among arguments or results: a package has tensors, numbers and text")
    return value


def _contents(manifest: dict[str, Any], state: Mapping[str, torch.Tensor],
              compiled: list[Compiled]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest and the members. Constants that targets share are there once."""
    members: dict[str, bytes] = {}
    names: dict[str, str] = {}

    def stored(tensor: torch.Tensor) -> str:
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        name = names.setdefault(hashlib.sha256(data).hexdigest(), f"constants/{len(names)}")
        members[name] = data
        return name

    kept = []
    for name, tensor in state.items():
        flat = elements(tensor, tensor.shape, tensor.stride())
        kept.append({**_tensor(name, tensor), "bytes": flat.numel() * flat.itemsize,
                     "initial": stored(flat) if flat.view(torch.uint8).any() else None})
    entries = []
    for code in compiled:
        machine = code.machine
        library, plan = f"{machine.name}/code.so", f"{machine.name}/plan.json"
        members[library] = code.library
        members[plan] = json.dumps({**code.plan, "constants": list(map(stored, code.constants))}).encode()
        entries.append({"name": machine.name, "machine": machine.machine, "features": list(machine.features),
                        "code": library, "plan": plan})
    return {**manifest, "state": kept, "targets": entries}, members
