"""The loop graph: what lowering hands to the scheduler, before fusion.

A `Compute` is one loop nest over its own axes that writes one or more buffers; a `Call` is an operator of eager
PyTorch. Items stand in an order in which they may run. Element offsets are flat (strides are chosen), so two nests
access the same element where their index expressions agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from framesmith.graph.raising import may_raise
from framesmith.loops.ir import Axis, Indirect, Load, Op, Origin, SizeOf, Store, ValueOf
from framesmith.loops.repeats import Repeats
from framesmith.loops.text import body_text, dtype_name
from framesmith.symbolic.expr import Symbol

Size = Any  # an int, or an Expr where it is symbolic


@dataclass(slots=True, eq=False)
class Storage:
    """A buffer before its place is planned; fields as in `ir.Buffer`. `kind` may still turn from "arena" to "output".
    `device`: None is the graph's. `given_up`: an input that usually dies with its last use."""

    name: str
    dtype: torch.dtype
    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    kind: str
    index: int = -1
    base: str | None = None
    offset: Size = 0
    device: torch.device | None = None
    given_up: bool = False

    @property
    def is_host_number(self) -> bool:
        """True for a CPU scalar, which kernels on another device receive by value."""
        return self.device is not None and self.device.type == "cpu" and all(type(s) is int and s == 1
                                                                             for s in self.size)


@dataclass(slots=True, eq=False)
class Compute:
    """A nest: for each point of `axes`, run `inner` over `raxes` (it ends in `Reduce` operations), then `ops`, which
    end in stores.

    Without `raxes`, `inner` is empty. `loads` and `stores` list the memory operations of both blocks. `opaque`: must
    not be fused with accesses to the buffers it writes (scatter into an existing buffer). `window`: adjacent results
    share loads, so no reduction may be fused with it on a machine with tile kernels. `contract`: None, or a contraction
    row's request for this nest (see `schedule.emit`). `parts`: see `ir.Kernel`; without `raxes`, the outer nest being
    the first of `axes`.
    """

    axes: tuple[Axis, ...]
    raxes: tuple[Axis, ...]
    inner: tuple[Op, ...]
    ops: tuple[Op, ...]
    origins: tuple[Origin, ...] = ()
    opaque: bool = False
    contract: Any = None
    window: bool = False
    parts: int = 0
    loads: tuple[Load, ...] = field(init=False)
    stores: tuple[Store, ...] = field(init=False)
    reads: frozenset[str] = field(init=False)
    writes: frozenset[str] = field(init=False)
    raises: bool = field(init=False)
    """It checks an index that it loads."""

    def __post_init__(self) -> None:
        every = self.inner + self.ops
        self.loads = tuple(op for op in every if type(op) is Load)
        self.stores = tuple(op for op in every if type(op) is Store)
        self.reads = frozenset(op.buffer for op in self.loads)
        self.writes = frozenset(op.buffer for op in self.stores)
        self.raises = any(type(op) is Indirect and op.check for op in every)
        if self.contract is not None:
            self.reads |= frozenset(self.contract.reads)


@dataclass(slots=True, eq=False)
class Call:
    """An extern call; fields as in `ir.Extern`, buffers by name (views included). `reads` and `writes` name base
    buffers, never views; a call that draws random numbers writes `GENERATOR` as well, a collective `COLLECTIVES`."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[str | None, ...]
    mutates: tuple[str, ...]
    reads: frozenset[str]
    writes: frozenset[str]
    origins: tuple[Origin, ...] = ()

    @property
    def raises(self) -> bool:
        """True if it may raise for the data of its arguments."""
        return may_raise(self.target)


Item = Compute | Call


GENERATOR = "generator"
"""A pseudo-buffer for the generators, which keeps calls that draw in order."""

COLLECTIVES = "collectives"
"""Stands among buffers for the process groups: all processes must begin collectives in the same order."""


@dataclass(slots=True, eq=False)
class LoopGraph:
    """The lowered graph; `inputs`, `symbols`, `constants`, `outputs` as in `ir.Program`. `repeats`: it is the
    graph of a few of many parts."""

    inputs: tuple[str | None, ...]
    symbols: dict[Symbol, SizeOf | ValueOf]
    storages: dict[str, Storage]
    constants: dict[str, torch.Tensor]
    items: list[Item]
    outputs: tuple[Any, ...]
    repeats: Repeats | None = None


def _axes_text(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{a.symbol}<{a.extent}" for a in axes)


def compute_text(c: Compute) -> str:
    """Return the nest as text."""
    lines = [f"for {_axes_text(c.axes)}:"]
    body = c.ops
    if c.raxes:
        lines.append(f"  reduce {_axes_text(c.raxes)}:  # {len(c.inner)} operations")
        body = c.inner + c.ops
    return "\n".join([*lines, body_text(body, 2)])


def graph_text(g: LoopGraph) -> str:
    """Return the whole loop graph as text."""
    out = []
    for s in g.storages.values():
        size, stride = (", ".join(map(str, t)) for t in (s.size, s.stride))
        out.append(f"{s.name}: {dtype_name(s.dtype)}[{size}] strides ({stride}) {s.kind} {s.base or ''}".rstrip())
    for item in g.items:
        if isinstance(item, Compute):
            out.append(compute_text(item))
        else:
            out.append(f"{item.outputs} = {item.target}({item.args}, {item.kwargs})")
    out.append(f"return {g.outputs}")
    return "\n".join(out) + "\n"
