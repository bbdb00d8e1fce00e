"""Calls of eager's operators: arguments in memory, strided windows without copies, predicted layouts of results."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith.fake.schema import out_variant
from framesmith.graph.attention import Attention, AttentionGradient
from framesmith.graph.launch import Launch
from framesmith.graph.purity import communicates, draws
from framesmith.loops.nest import COLLECTIVES, GENERATOR, Call
from framesmith.lower.attention import lower_attention
from framesmith.lower.context import Context
from framesmith.lower.geometry import Size, is_empty, row_major, same_layout
from framesmith.lower.launches import lower_launch
from framesmith.lower.layouts import ARGUMENT_LAYOUTS, CUDA_ARGUMENT_LAYOUTS, CUDA_PREDICTIONS, RESULT_LAYOUTS
from framesmith.lower.table import EXTERN_ROWS
from framesmith.lower.values import Lowered, Stored
from framesmith.prims.core import Prim
from framesmith.symbolic.expr import Expr
from framesmith.util.errors import Unsupported


def call_extern(ctx: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Lower an operator that was not decomposed: by its row, or as a call."""
    if isinstance(node.target, Launch):
        return lower_launch(ctx, node, args)
    if isinstance(node.target,
                  Attention | AttentionGradient) and (found := lower_attention(ctx, node, args)) is not None:
        return found
    row = EXTERN_ROWS.get(node.target)
    if row is not None:
        result = row(ctx, node, args, kwargs)
        if result is not None:
            return result
    return plain_call(ctx, node.target, node, args, kwargs, node.meta.get("val"))


def call_prim(ctx: Context, prim: Prim, node: fx.Node, args: tuple[Any, ...]) -> Any:
    """Call a prim that kernels cannot compute: its ATen equivalent, or its reference function."""
    found = prim.extern(*args) if prim.extern is not None else None
    target, arguments = found if found is not None else (prim.eager, args)
    val = node.meta["val"]
    specs = val if isinstance(val, tuple) else (val,)
    return plain_call(ctx, target, node, arguments, {}, val, unknown_layout=any(s.stride is None for s in specs))


def plain_call(ctx: Context, target: Any, node: fx.Node, args: Any, kwargs: dict[str, Any], val: Any,
               unknown_layout: bool = False) -> Any:
    """Append a call of `target`; `val` is the spec of its result, or a tuple of specs."""
    call = _Arguments(ctx, node, target)
    call.given = _values(args)
    call.frozen = frozenset(k for k, value in enumerate(call.given) if _is_constant(ctx, value))
    refs = call.convert(args)
    named = {k: call.convert(v) for k, v in kwargs.items()}
    mutated = call.mutated(args, kwargs)
    specs = list(val) if isinstance(val, (tuple, list)) else [val]
    if val is None:
        specs = []
    strides, foreseen = _result_strides(target, specs, call, args, kwargs, unknown_layout)
    into = foreseen and _writes_into(target)  # one that lays out its result otherwise would do so in our memory
    results: list[Any] = []
    for spec, stride in zip(specs, strides):
        if not hasattr(spec, "shape"):
            if isinstance(spec, (float, bool, Expr)) or isinstance(spec, int) and not isinstance(val, (tuple, list)):
                raise Unsupported(f"operator {target} with a result that is no tensor")
            results.append(None)  # an integer beside tensors was known when it was recorded
            continue
        device = getattr(spec, "device", None)
        kind = "arena" if into and ctx.elsewhere(device) is None else "result"
        results.append(ctx.storage(spec.shape, stride, spec.dtype, kind, "b" if kind == "arena" else "r", device))
    written = frozenset(r.buffer for r in results if r is not None).union(
        mutated, [GENERATOR] if draws(node) else (), [COLLECTIVES] if communicates(target) else ())
    names = tuple(r.buffer if r is not None else None for r, spec in zip(results, specs) if not isinstance(spec, int))
    ctx.items.append(Call(target, refs, named, names, tuple(mutated), frozenset(call.reads), written, ctx.origin))
    return tuple(results) if isinstance(val, (tuple, list)) else (results[0] if results else None)


class _Arguments:
    """Turns values into references, and records which buffers are read and whether layouts are eager's."""

    def __init__(self, ctx: Context, node: fx.Node, target: Any) -> None:
        self.ctx, self.node, self.target = ctx, node, target
        self.reads: list[str] = []
        self.values: list[Stored] = []
        self.given: list[Lowered] = []
        self.frozen: frozenset[int] = frozenset()
        self.eager = _eager_strides(node) if draws(node) else None
        self.position = -1

    def convert(self, arg: Any) -> Any:
        if isinstance(arg, Lowered):
            self.position += 1
            value = self.in_memory(arg)
            self.values.append(value)
            self.reads.append(value.buffer)
            return self.ctx.ref(value)
        if isinstance(arg, (tuple, list)):
            return tuple(self.convert(a) for a in arg)
        return arg

    def in_memory(self, arg: Lowered) -> Stored:
        want = self.wanted(arg)
        if self.eager is not None:
            want = self.eager[self.position]
        if want is not None:
            return self.ctx.realise(arg, want)
        return self.ctx.realise(arg)

    def wanted(self, arg: Lowered) -> Any:
        """Return the strides that the operator prefers for its next argument."""
        if self.ctx.device.type == "cuda":
            likes = CUDA_ARGUMENT_LAYOUTS.get(self.target)
            return likes(self.position, self.given) if likes is not None else None
        row = ARGUMENT_LAYOUTS.get(self.target)
        return row(self.position, arg, self.frozen) if row is not None else None

    def mutated(self, args: Any, kwargs: dict[str, Any]) -> list[str]:
        """Buffers behind arguments that the schema marks as written."""
        schema = getattr(self.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            return []
        out = []
        for k, formal in enumerate(schema.arguments):
            if formal.alias_info is None or not formal.alias_info.is_write:
                continue
            given = args[k] if k < len(args) else kwargs.get(formal.name)
            for value in given if isinstance(given, (tuple, list)) else (given,):
                if isinstance(value, Lowered):
                    out.append(self.ctx.realise(value).buffer)
        return out


def _values(arg: Any) -> list[Lowered]:
    """Return the tensor arguments in order."""
    if isinstance(arg, Lowered):
        return [arg]
    return [value for a in arg for value in _values(a)] if isinstance(arg, (tuple, list)) else []


def _is_constant(ctx: Context, value: Lowered) -> bool:
    return isinstance(value, Stored) and ctx.storages[value.buffer].kind == "constant"


def _writes_into(target: Any) -> bool:
    """Return whether an operator has a form that writes its one kind of result straight into the memory it is given."""
    found = out_variant(target) if isinstance(target, torch._ops.OpOverload) else None
    return found is not None and found[0].endswith("out")


def _result_strides(
    target: Any, specs: list[Any], call: _Arguments, args: Any, kwargs: dict[str, Any], unknown: bool
) -> tuple[list[tuple[Size, ...]], bool]:
    """Return the strides of the results, and whether they are certain."""
    rule = RESULT_LAYOUTS.get(target)
    # those could be said to have any layout
    if rule is not None and not any(is_empty(getattr(spec, "shape", ())) for spec in specs):
        return [rule(spec, call.values) for spec in specs], True
    guess = CUDA_PREDICTIONS.get(target) if call.ctx.device.type == "cuda" else None
    if guess is not None and all(type(n) is int for x in call.values for n in (*x.shape, *x.stride)):
        return [guess(spec, call.values) for spec in specs], True
    known = [getattr(spec, "stride", None) for spec in specs]
    eager = not unknown and _as_eager(call.node, call.values)
    if eager and all(s is not None or not hasattr(spec, "shape") for s, spec in zip(known, specs)):
        return known, True  # type: ignore[return-value]
    predicted = predict_strides(target, call, args, kwargs)
    foreseen = all(p is not None or not hasattr(spec, "shape") for p, spec in zip(predicted, specs))
    return [
        p if p is not None else (k if k is not None else row_major(getattr(spec, "shape", ())))
        for p, k, spec in zip(predicted, known, specs)
    ], foreseen


def _as_eager(node: fx.Node, values: list[Stored]) -> bool:
    """Return whether every tensor argument has the strides that eager would have given it."""
    eager = _eager_strides(node)
    if len(eager) != len(values) or any("layout" in arg.meta for arg in node.all_input_nodes):
        return False
    if any(stride is None or len(stride) != len(value.shape) for stride, value in zip(eager, values)):
        return False  # not known, or a prim that takes its arguments in another order than the operator
    return all(same_layout(value.shape, value.stride, stride) for stride, value in zip(eager, values))


def _eager_strides(node: fx.Node) -> list[Any]:
    """Return the strides that eager gives to each of the node's tensor arguments (None: unknown)."""
    specs = [arg.meta.get("val") for arg in _nodes((node.args, node.kwargs))]
    return [spec.stride for spec in specs if spec is not None and hasattr(spec, "stride")]


def _nodes(arg: Any) -> list[fx.Node]:
    """Return the nodes among nested arguments, in order, repeated ones repeated."""
    if isinstance(arg, fx.Node):
        return [arg]
    inner = arg.values() if isinstance(arg, dict) else arg if isinstance(arg, (tuple, list)) else ()
    return [node for item in inner for node in _nodes(item)]


def predict_strides(target: Any, call: _Arguments, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """Return strides of the results for the arguments' actual layouts, from the operator's own meta kernel; None if it
    fails."""
    values = iter(call.values)

    def meta(arg: Any) -> Any:
        if isinstance(arg, Lowered):
            v = next(values)
            if any(type(s) is not int for s in (*v.shape, *v.stride)):
                raise Unsupported("symbolic layout")
            return torch.empty_strided(v.shape, v.stride, dtype=v.dtype, device="meta")
        if isinstance(arg, (tuple, list)):
            return [meta(a) for a in arg]
        return arg

    try:
        results = target(*[meta(a) for a in args], **{k: meta(v) for k, v in kwargs.items()})
    except (Unsupported, NotImplementedError, RuntimeError, TypeError):
        return [None] * 64
    results = results if isinstance(results, (tuple, list)) else (results,)
    return [tuple(r.stride()) if isinstance(r, torch.Tensor) else None for r in results]

