"""`package`: a model as one file that runs without Python, compiler and PyTorch."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from framesmith.export.build import prepare
from framesmith.export.exported import Program
from framesmith.export.ranges import SpecialisedDimension
from framesmith.export.trace import Leaf, Traced, trace
from framesmith.export.trees import Tree, flatten
from framesmith.package.archive import write_archive
from framesmith.package.compiling import Compiled, compile_for, dtype_name
from framesmith.package.machines import machines_of
from framesmith.prims.core import size_of
from framesmith.util.errors import PackageError

FORMAT = 1
TARGETS = ("x86-64-v4", "x86-64-v3", "x86-64")


def package(model: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *,
            path: str | os.PathLike[str], dynamic_shapes: Any = None, targets: Sequence[str] = TARGETS) -> None:
    """Write `model`, as `model(*args, **kwargs)` runs it, to the file `path`, with code for each of `targets`.

    `model`: a module or function, or what `framesmith.export` returned. `dynamic_shapes`: which sizes vary (see
    `export.dims`). `targets`: names of `machines.MACHINES`; a runtime takes the best that its processor runs.

    Raises `ExportError` where the program cannot be captured whole, and `PackageError` where an operator has no kernel
    outside of PyTorch, with all such operators and their lines.
    """
    machines = machines_of(targets)
    if isinstance(model, Program):
        model = model.module()
    given, named, shapes, labels = prepare(model, tuple(args), dict(kwargs or {}), dynamic_shapes)
    traced = trace(model, given, named, shapes, labels)
    if traced.constraints.violations:
        raise SpecialisedDimension(traced.constraints.violations)
    leaves, tree = flatten((given, named))
    _check(traced, leaves)
    numbers = {leaf: k for k, leaf in enumerate(i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor))}
    inputs = [leaves[target] if kind == "input" else traced.state[target] for kind, target in traced.places]
    places = [numbers[target] if kind == "input" else None for kind, target in traced.places]
    compiled = [compile_for(machine, traced.graph, inputs, places) for machine in machines]
    manifest = {"format": FORMAT, "name": type(model).__name__, **_interface(traced, leaves, labels, tree)}
    write_archive(path, *_contents(manifest, compiled))


def _check(traced: Traced, leaves: list[Any]) -> None:
    """Raise for what a package cannot do."""
    if traced.written:
        raise PackageError(f"the model writes its own buffers ({', '.join(traced.written)}): pass them as arguments, "
                           "and return them")
    if traced.constraints.relations:
        raise PackageError("sizes depend on each other: " + "; ".join(map(str, traced.constraints.relations)))
    for leaf in traced.leaves:
        if leaf.kind in ("state", "size"):
            raise PackageError(f"the model returns {leaf.value}, which no operator computes: return tensors that it "
                               "computes")
    devices = {x.device.type for x in leaves if isinstance(x, torch.Tensor)}
    if devices - {"cpu"}:
        raise PackageError(f"packages are for the CPU, and there are tensors on {', '.join(sorted(devices))}")


def _interface(traced: Traced, leaves: list[Any], labels: list[str], tree: Tree) -> dict[str, Any]:
    """What a caller sees: sizes, inputs, outputs, and how arguments and results are made of them."""
    specs = {target: node.meta["val"] for (kind, target), node in zip(
        traced.places, (n for n in traced.graph.nodes if n.op == "placeholder"), strict=True) if kind == "input"}
    specs.update(traced.unused)
    inputs = [_tensor(labels[i], specs[i]) for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    results = next(n for n in traced.graph.nodes if n.op == "output").args[0]
    outputs = [_tensor(name, node.meta["val"]) for name, node in zip(_names(traced), results, strict=True)]
    return {
        "dimensions": [{"name": d.name, "min": d.lo, "max": d.hi} for d in traced.constraints.dimensions],
        "inputs": inputs, "outputs": outputs,
        "arguments": {"tree": tree.to_json(), "fixed": {str(i): _plain(x) for i, x in enumerate(leaves)
                                                        if not isinstance(x, torch.Tensor)}},
        "results": {"tree": traced.out_tree.to_json(), "leaves": [_leaf(leaf, leaves) for leaf in traced.leaves]},
    }


def _tensor(name: str, value: Any) -> dict[str, Any]:
    shape = [size if type(size) is int else str(size) for size in map(size_of, value.shape)]
    return {"name": name, "dtype": dtype_name(value.dtype), "shape": shape}


def _names(traced: Traced) -> list[str]:
    """What the outputs are called: by the keys of the result, or by number."""
    keys = traced.out_tree.keys if all(part.kind == "leaf" for part in traced.out_tree.parts) else ()
    names = {leaf.value: str(key) for key, leaf in zip(keys, traced.leaves) if leaf.kind == "output"}
    return [names.get(k, f"output_{k}") for k in range(traced.results)]


def _leaf(leaf: Leaf, leaves: list[Any]) -> list[Any]:
    """["output", number], ["input", number], ["constant", value], or ["dtype" or "device", its name]."""
    if leaf.kind == "input":
        return ["input", sum(isinstance(x, torch.Tensor) for x in leaves[: leaf.value])]
    if isinstance(leaf.value, torch.dtype):
        return ["dtype", dtype_name(leaf.value)]
    if isinstance(leaf.value, torch.device):
        return ["device", str(leaf.value)]
    return [leaf.kind, leaf.value if leaf.kind == "output" else _plain(leaf.value)]


def _plain(value: Any) -> Any:
    if value is not None and not isinstance(value, bool | int | float | str):
        raise PackageError(f"{value!r} among arguments or results: a package has tensors, numbers and text")
    return value


def _contents(manifest: dict[str, Any], compiled: list[Compiled]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and the members. Constants that targets share are there once."""
    members: dict[str, bytes] = {}
    constants: dict[str, str] = {}
    entries = []
    for code in compiled:
        names = []
        for tensor in code.constants:
            data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
            digest = hashlib.sha256(data).hexdigest()
            name = constants.setdefault(digest, f"constants/{len(constants)}")
            members[name] = data
            names.append(name)
        machine = code.machine
        entry = {"name": machine.name, "machine": machine.machine, "features": list(machine.features),
                 "code": f"{machine.name}/code.so", "plan": f"{machine.name}/plan.json"}
        members[entry["code"]] = code.library  # type: ignore[index]
        members[entry["plan"]] = json.dumps({**code.plan, "constants": names}).encode()  # type: ignore[index]
        entries.append(entry)
    return {**manifest, "targets": entries}, members
