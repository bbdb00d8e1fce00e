"""Control flow: a branch on data is an If, a loop that data ends and a scan are Loops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import onnx_ir as ir
import torch

from framesmith.graph.control import Branch, Loop, Scan
from framesmith.graph.traversal import placeholders_of
from framesmith.onnx.emitter import Emitter, NoForm, Value
from framesmith.onnx.graphs import emit_graph
from framesmith.onnx.table import aten, row
from framesmith.prims.core import Spec

control = partial(row, "control flow")


def _truth(m: Emitter, x: Any) -> Value:
    return m("Reshape", m.cast(x, torch.bool), m.ints([]))


def _returned(m: Emitter, values: Sequence[Any]) -> list[Value]:
    """Return the results of an inner graph, each a value of its own."""
    if not all(isinstance(v, Value) for v in values):
        raise NoForm("a branch that gives a number, or nothing")
    made = [m("Identity", v) for v in values]
    for before, after in zip(values, made, strict=True):
        after.dtype, after.shape = before.dtype, before.shape
    return made


def _graph(m: Emitter, inputs: Sequence[Value], outputs: Sequence[Value], name: str) -> ir.Graph:
    for value in outputs:
        value.name = m.unique(f"{name}_result")
    return ir.Graph(inputs, outputs, nodes=m.nodes, name=name)


@control(Branch)
def _branch(m: Emitter, target: Branch, condition: Value, *operands: Any) -> Any:
    arms = []
    for arm, name in zip(target.arms, ("else", "then"), strict=True):
        inner = Emitter(m.opset, m)
        results = _returned(inner, emit_graph(inner, arm, operands))
        arms.append(_graph(inner, [], results, m.unique(name)))
    no, yes = arms
    made = m("If", _truth(m, condition), then_branch=yes, else_branch=no, outputs=len(m.out))
    return [made] if len(m.out) == 1 else list(made)


def _input(m: Emitter, name: str, like: Any) -> Value:
    """Return an input of a loop's body, of the dtype and shape of a placeholder."""
    value = Value(name=m.unique(name))
    if isinstance(like, Spec):
        return m.describe(value, like)
    raise NoForm("a loop of which the state is a number")


def _scalar(m: Emitter, name: str, dtype: torch.dtype) -> Value:
    return m.describe(Value(name=m.unique(name)), Spec((), dtype, torch.device("cpu")))


@control(Loop)
def _loop(m: Emitter, target: Loop, condition: Value, *operands: Any) -> Any:
    if target.collects:
        raise NoForm("a loop that collects what the rounds give")
    inner = Emitter(m.opset, m)
    state = [_input(inner, n.name, n.meta["val"]) for n in placeholders_of(target.body)[:target.size]]
    counted, going = _scalar(inner, "round", torch.int64), _scalar(inner, "condition", torch.bool)
    first, *rest = emit_graph(inner, target.body, [*state, *operands[target.size:]])
    results = _returned(inner, [_truth(inner, first), *rest])
    body = _graph(inner, [counted, going, *state], results, m.unique("body"))
    made = m("Loop", None, _truth(m, condition), *operands[:target.size], body=body, outputs=target.size)
    return [made] if target.size == 1 else list(made)


@control(Scan)
def _scan(m: Emitter, target: Scan, length: Any, *operands: Any) -> Any:
    if target.absent:
        raise NoForm("the derivative of a loop")
    if target.joined:
        raise NoForm("a loop that joins values of different sizes")
    n, inner = m.number(length, torch.int64), Emitter(m.opset, m)
    places = placeholders_of(target.body)
    state = [_input(inner, p.name, p.meta["val"]) for p in places[:target.carried]]
    counted, going = _scalar(inner, "round", torch.int64), _scalar(inner, "condition", torch.bool)
    at = counted
    if target.backwards:
        at = inner("Sub", inner("Sub", n, inner.constant(1, torch.int64)), counted)
    slices = []
    for place, x in zip(places[target.carried:target.varying], operands[target.carried:target.varying], strict=True):
        part = inner("Gather", x, at, axis=0)
        part.name = inner.unique(place.name)
        slices.append(inner.describe(part, place.meta["val"]))
    found = emit_graph(inner, target.body, [*state, *slices, *operands[target.varying:]])
    results = _returned(inner, [going, *found])
    body = _graph(inner, [counted, going, *state], results, m.unique("body"))
    made = m("Loop", n, None, *operands[:target.carried], body=body, outputs=len(m.out))
    made = [made] if len(m.out) == 1 else list(made)
    if target.backwards:
        made[target.carried:] = [m("Slice", y, m.ints([-1]), m.ints([-2**63 + 1]), m.ints([0]), m.ints([-1]))
                                 for y in made[target.carried:]]
    return made


@control(aten._assert_async.default, aten._assert_async.msg)
def _assertion(m: Emitter, *_: Any) -> None:
    """Nothing: ONNX has no assertions."""
