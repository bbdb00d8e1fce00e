"""From a captured graph to what a package holds of it for one machine: a shared library, its plan, and its
constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from framesmith.config import Config
from framesmith.package.calls import is_known, print_calls, sources_of
from framesmith.package.captured import Captured
from framesmith.package.machines import Machine
from framesmith.package.sizes import with_plain_symbols
from framesmith.pipeline import Generated, PendingGraph, begin_graph
from framesmith.runtime.cache import Cache, package_identity
from framesmith.runtime.plan import Dyn, Kind
from framesmith.targets import PortableTarget
from framesmith.util.errors import PackageError
from framesmith.util.stack import user_frame

_KINDS = {"input": int(Kind.INPUT), "constant": int(Kind.CONSTANT), "state": len(Kind)}
"""The kind of a value in a package's plan, by that of its place: those of other plans, and the state."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """`plan`: as JSON; its constants are `constants`, in order. `symbols`: of each size that varies, its name."""

    machine: Machine
    library: bytes
    plan: dict[str, Any]
    constants: tuple[torch.Tensor, ...]


def compile_for(machine: Machine, captured: Captured) -> Compiled:
    """Compile a captured graph for a machine.

    Raises `PackageError` where an operator has no kernel of our own, and for what a package cannot hold.
    """
    config = Config.from_env(dynamic=True)
    cache = Cache(config.cache_dir, config.cache, config.cache_limit)
    toolchain = machine.toolchain(cache.toolchain(config.compiler, config.compiler_flags))
    target = PortableTarget(config, toolchain, cache, torch.device("cpu"), machine.unit)
    sized = with_plain_symbols(captured.graph, captured.constraints.dimensions)
    placeholders = (n for n in sized.graph.nodes if n.op == "placeholder")
    for node, (kind, _), value in zip(placeholders, captured.places, captured.values):
        node.meta["param"] = kind == "constant"
        if kind == "constant" and value.dtype is torch.int8 and value.numel() and _fits(value, 4):
            node.meta["bits"] = 4
    with torch.no_grad():
        pending = begin_graph(sized.graph, config, [*captured.values, *sized.numbers], target)
        generated = pending.generate()
        if pending.draft is not None:
            cache.store(pending.key, generated)
    _refuse(pending, generated)
    plan, constants = _plan(generated, pending.constants.complete(), captured, sized.dimensions)
    return Compiled(machine, _library(generated, target), plan, constants)


def _fits(integers: torch.Tensor, bits: int) -> bool:
    """Return whether two's complement of so many bits has all of the integers."""
    return -(1 << bits - 1) <= int(integers.min()) and int(integers.max()) < 1 << bits - 1


def _refuse(pending: PendingGraph, generated: Generated) -> None:
    """Raise for operators that need a library, with the user's lines."""
    plan, lines = generated.plan, []
    for call, (name, number) in zip(plan.externs, plan.places, strict=True):
        if is_known(plan, call):
            continue
        stack = pending.main.stack(number) if number >= 0 else None
        lines.append(f"{name}" + (", {}:{} in {}".format(*user_frame(stack)) if stack else ""))
    if lines:
        raise PackageError("operators that have no kernel outside of PyTorch:\n  " + "\n  ".join(dict.fromkeys(lines)))


def _library(generated: Generated, target: PortableTarget) -> bytes:
    """Compile the kernels, the operators that they call, and the threads that they run on, in one library."""
    names = ("package/code/team.cpp", *sources_of(generated.plan))
    units = [*generated.units, print_calls(generated.plan), *map(_included, names)]
    return target.cache.library(units, target.toolchain).read_bytes()


def _included(name: str) -> str:
    """Return a translation unit that is a source of the package; its digest stands for what it includes."""
    return f'#include "{name}"  // {package_identity()}\n'


def _plan(generated: Generated, frozen: Sequence[torch.Tensor], captured: Captured,
          dimensions: Mapping[str, str]) -> tuple[dict[str, Any], tuple[torch.Tensor, ...]]:
    """Return the plan as JSON, and its constants: what is frozen, and the parameters that code reads as they are.
    `dimensions`: by symbol."""
    plan, given, inputs = generated.plan, captured.places, captured.values
    constants = [frozen[k].contiguous() for k in generated.order]
    values = []
    for value in plan.values:
        kind, ref = value.kind, value.ref
        number = int(kind)
        if kind is Kind.INPUT:
            place, at = given[ref]  # type: ignore[index]
            number, ref = _KINDS[place], at
            if place == "constant":
                ref = len(constants)
                constants.append(elements(inputs[value.ref], value.size, value.stride))  # type: ignore[index]
        values.append({"kind": number, "ref": _integer(ref), "offset": _integer(value.offset),
                       "dtype": dtype_name(value.dtype), "size": list(map(_integer, value.size)),
                       "stride": list(map(_integer, value.stride)), "written": value.written, "late": value.late})
    outputs = [o.value for o in plan.outputs]
    if any(v < 0 for v in outputs):
        raise PackageError("the model's graph gives a number that is no tensor")
    return {"table": plan.table, "arena": _integer(plan.arena), "calls": len(plan.externs),
            "symbols": [dimensions[str(symbol)] for symbol in generated.symbols], "values": values,
            "outputs": outputs}, tuple(constants)


def elements(tensor: torch.Tensor, size: Sequence[Any], stride: Sequence[Any]) -> torch.Tensor:
    """Return the elements of a tensor in memory, from the first to the last, where these strides find them."""
    span = 1 + sum((n - 1) * s for n, s in zip(size, stride)) if tensor.numel() else 0
    return tensor.detach().as_strided((span,), (1,)).contiguous()


def _integer(value: Any) -> Any:
    return [value.index] if isinstance(value, Dyn) else value


def dtype_name(dtype: torch.dtype) -> str:
    """float32"""
    return str(dtype).removeprefix("torch.")
