"""Lower a graph of prims to a loop graph."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from framesmith.graph.devices import main_device
from framesmith.graph.digest import target_name
from framesmith.loops.ir import Origin, SizeOf, ValueOf
from framesmith.loops.nest import Compute, LoopGraph, Storage
from framesmith.lower import (
    convolutions,
    factories,
    host_scalars,
    indexing,
    joins,
    pointwise,
    pooling,
    reductions,
    resizing,
    scans,
    views,
)
from framesmith.lower.context import Context
from framesmith.lower.contractions import lowering as contractions
from framesmith.lower.externs import call_extern, call_prim, plain_call
from framesmith.lower.geometry import is_empty, row_major, same_layout
from framesmith.lower.table import PRIM_ROWS, unsupported_dtype
from framesmith.lower.values import Computed, Lowered, Stored, reads_of
from framesmith.prims.core import Prim
from framesmith.symbolic.expr import Symbol, as_expr
from framesmith.util.errors import VerifyError
from framesmith.util.stack import user_frame

FAMILIES = (contractions, convolutions, factories, indexing, joins, host_scalars, pointwise, pooling, reductions,
            resizing, scans, views)
"""Importing them fills the table."""

_COPY = torch.ops.aten.copy_.default


def lower(graph: fx.Graph, constants: Mapping[int, torch.Tensor] | None = None,
          device: torch.device | None = None) -> LoopGraph:
    """Lower a graph of prims and extern calls. `constants` gives, by placeholder index, the tensors that the program
    holds itself.

    Every placeholder keeps its place in `LoopGraph.inputs` (None for those that are constants or symbolic integers).
    `device`: where the nests run (default: the graph's main device).
    """
    return _Lowering(graph, constants or {}, device or main_device(graph)).run()


def _want(ctx: Context, node: fx.Node) -> None:
    stride = node.meta.get("layout") or getattr(node.meta.get("val"), "stride", None)
    if stride is not None:
        ctx.wanted[node] = tuple(stride)


class _Lowering:
    def __init__(self, graph: fx.Graph, constants: Mapping[int, torch.Tensor], device: torch.device) -> None:
        self.graph = graph
        self.given = constants
        self.ctx = Context(device)
        self.ctx.writes = any(node.target is _COPY for node in graph.nodes)
        self.inputs: list[str | None] = []
        self.symbols: dict[Symbol, SizeOf | ValueOf] = {}
        self.mutated: set[str] | None = None
        self.written: dict[Any, Stored] = {}
        """The inputs that epilogues write. What reads one behind the first of them has a copy in its place."""
        self.outputs: tuple[Any, ...] = ()

    def run(self) -> LoopGraph:
        for node in self.graph.nodes:
            if node.op == "output":
                for arg in node.all_input_nodes:
                    _want(self.ctx, arg)
        for node in self.graph.nodes:
            self.ctx.node = node
            self.ctx.env[node] = getattr(self, node.op)(node)
        ctx = self.ctx
        ctx.check_devices()
        items = [item for item in ctx.items if not (isinstance(item, Compute)
                                                    and any(a.extent is as_expr(0) for a in item.axes))]
        return LoopGraph(tuple(self.inputs), self.symbols, ctx.storages, ctx.constants, items, self.outputs)

    # --------------------------------------------------------------------------------------------------- kinds of nodes

    def placeholder(self, node: fx.Node) -> Any:
        position = len(self.inputs)
        val = node.meta["val"]
        if position in self.given:
            self.inputs.append(None)
            return self.ctx.constant(self.given[position], position)
        if not hasattr(val, "shape"):
            self.inputs.append(None)
            if isinstance(val, Symbol):
                self.symbols.setdefault(val, ValueOf(position))
            return val
        name = f"in{position}"
        self.inputs.append(name if node.users else None)
        stride = tuple(val.stride if val.stride is not None else row_major(val.shape))
        for dim, size in enumerate(val.shape):
            if isinstance(size, Symbol):
                self.symbols.setdefault(size, SizeOf(position, dim))
        if node.users:
            device = self.ctx.elsewhere(getattr(val, "device", None))
            given_up = bool(node.meta.get("given up"))
            shape = tuple(val.shape)
            self.ctx.storages[name] = Storage(name, val.dtype, shape, stride, "input", position, device=device,
                                              given_up=given_up)
        return Stored(name, tuple(val.shape), stride, 0, val.dtype)

    def call_function(self, node: fx.Node) -> Any:
        ctx = self.ctx
        args = self.arguments(node.args)
        target = node.target
        if self.mutated is not None and target is not _COPY:
            raise VerifyError(f"{node.format_node()} follows the first write to an input")
        if target is operator.getitem:
            return self.settle(node, args[0][args[1]])
        ctx.origin = (_origin_of(node),)
        if isinstance(target, Prim):
            row = PRIM_ROWS.get(target.name)
            result = row(ctx, node.meta["val"], *self.settled_sources(target, node, args)) if row is not None else None
            if result is None:
                result = call_prim(ctx, target, node, args)
            return self.settle(node, result)
        kwargs = {k: self.arguments(v) for k, v in node.kwargs.items()}
        if target is _COPY:
            if _elsewhere(ctx, args):
                if self.mutated is None:
                    self.prepare_write_backs()
                into = self.written[node.args[0]]
                plain_call(ctx, _COPY, node, (into, ctx.env[node.all_input_nodes[-1]]), {}, None)
                return into
            return self.write_back(node)
        return self.settle(node, call_extern(ctx, node, args, kwargs))

    def settled_sources(self, prim: Prim, node: fx.Node, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Store the source of a view, or of a wider copy, with several users, if it is a costly closure."""
        if len(node.users) > 1 and isinstance(args[0], Computed) and (prim.kind == "view"
                                                                      or _widens(prim, node, args[0])):
            return (self.ctx.settle(args[0], 2), *args[1:])
        return args

    def settle(self, node: fx.Node, result: Any) -> Any:
        """Store a node's value if it is an output of the graph or has many uses."""
        ctx = self.ctx
        if isinstance(result, Computed):
            wanted = ctx.wanted.get(node)
            if wanted is not None or is_empty(result.shape):  # of what has no elements, an index may be divided by zero
                return ctx.materialise(result, wanted)
            if len(node.users) > 1 and result.cost and any(map(_needs_memory, node.users)):
                return ctx.realise(result)
            return ctx.settle(result, len(node.users))
        return result

    def output(self, node: fx.Node) -> None:
        args = node.args[0]
        results = args if isinstance(args, (tuple, list)) else (args,)
        self.outputs = tuple(self.result(a) for a in results)

    # ---------------------------------------------------------------------------------------------------------- helpers

    def arguments(self, arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            value = self.ctx.env[arg]
            return self.ctx.stored(value) if type(value) is Computed else value
        if isinstance(arg, (tuple, list)):
            return tuple(self.arguments(a) for a in arg)
        return arg

    def result(self, arg: Any) -> Any:
        if not isinstance(arg, fx.Node):
            return arg
        ctx, value = self.ctx, self.ctx.env[arg]
        if not isinstance(value, Lowered):
            return value
        wanted = ctx.wanted.get(arg, row_major(value.shape))
        if not isinstance(value, Stored):
            value = ctx.materialise(value, wanted)
        base = ctx.storages[value.buffer]
        same = tuple(value.stride) == tuple(wanted) if is_empty(value.shape) else same_layout(value.shape, value.stride,
                                                                                              wanted)
        if base.kind == "constant" or not (base.kind == "input" or same):
            value = ctx.materialise(value, wanted)
            base = ctx.storages[value.buffer]
        if base.kind != "input":  # dimensions of size 1 have eager's strides, too
            value = Stored(value.buffer, value.shape, tuple(wanted), value.offset, value.dtype)
        ref = ctx.ref(value)
        if base.kind in ("arena", "result") and ref.name == base.name:
            base.stride = value.stride
        if base.kind == "arena":
            base.kind = "output"
        return ref

    def write_back(self, node: fx.Node) -> Any:
        """Lower the epilogue `input.copy_(value)`. Values that read inputs which another epilogue writes are computed
        before the first one."""
        if self.mutated is None:
            self.prepare_write_backs()
        ctx, target = self.ctx, self.written[node.args[0]]
        value = ctx.env[node.all_input_nodes[-1]]  # may have been put into memory just now
        if isinstance(value, Stored) and value.buffer == target.buffer and value.offset == target.offset:
            if same_layout(value.shape, value.stride, target.stride):
                return target
            value = ctx.materialise(value)
        if unsupported_dtype(target.dtype) or unsupported_dtype(value.dtype):
            return call_extern(ctx, node, (target, ctx.realise(value)), {})
        if value.dtype is not target.dtype or value.shape != target.shape:
            small, full = value, target
            value = Computed(
                full.shape,
                full.dtype,
                lambda b, i: b.cast(
                    small.element(b, [0 if s == 1 else v for s, v in zip(small.shape, i[len(i) - len(small.shape) :])]),
                    full.dtype,
                ),
                1,
                reads_of(small),
                ctx.origin,
            )
        ctx.write(value, target, opaque=True)
        return target

    def prepare_write_backs(self) -> None:
        ctx, pairs = self.ctx, []
        for node in self.graph.nodes:
            if node.op == "call_function" and node.target is _COPY:
                self.written[node.args[0]] = ctx.env[node.args[0]]
                pairs.append((ctx.env[node.args[0]].buffer, node.args[1]))
        self.mutated = {name for name, _ in pairs}
        for own, source in pairs:
            value = ctx.env.get(source)
            reads = reads_of(value)
            others = self.mutated & (set(reads) - {own})
            if isinstance(value, Computed) and (others or own in reads):
                ctx.env[source] = ctx.realise(value)
            elif isinstance(value, Stored) and others:
                ctx.env[source] = ctx.materialise(value)


def _elsewhere(ctx: Context, values: tuple[Any, ...]) -> bool:
    """Return whether one of the values is in memory of another device than the graph's."""
    return any(isinstance(v, Stored) and ctx.storages[v.buffer].device is not None for v in values)


def _widens(prim: Prim, node: fx.Node, source: Lowered) -> bool:
    """Return whether a conversion's result takes more memory than its operand."""
    return (prim.name == "convert" and source.dtype.is_floating_point
            and node.meta["val"].dtype.itemsize > source.dtype.itemsize)


def _needs_memory(user: fx.Node, depth: int = 3) -> bool:
    """Return whether a user, directly or through views, is an operator that needs its argument in memory."""
    if user.op != "call_function":
        return False
    if not isinstance(user.target, Prim):
        return user.target is not operator.getitem
    return depth > 0 and user.target.kind == "view" and any(_needs_memory(u, depth - 1) for u in user.users)


def _origin_of(node: fx.Node) -> Origin:
    stack = node.meta.get("stack") or ()
    file, line, function = user_frame(stack) if stack else ("", 0, "")
    return Origin(str(node.meta.get("origin") or target_name(node.target)), file, line, function,
                  node.meta.get("number", -1))


