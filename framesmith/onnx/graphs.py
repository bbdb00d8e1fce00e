"""Graphs of calls as nodes of ONNX: each call by its row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
from torch import fx

from framesmith.graph.control import Control, results_of
from framesmith.graph.printer import where
from framesmith.graph.traversal import placeholders_of
from framesmith.onnx.emitter import Emitter, NoForm, Problem, Value
from framesmith.onnx.table import ROWS
from framesmith.prims.core import Spec


def emit_graph(m: Emitter, graph: fx.Graph, given: Sequence[Any]) -> list[Any]:
    """Emit the calls of a graph; the values of its outputs. `given`: the values of its placeholders. What has no form
    is one of the emitter's `problems`, and goes on as a value of its dtype and shape."""
    values = dict(zip(placeholders_of(graph), given, strict=True))

    def read(x: Any) -> Any:
        if isinstance(x, fx.Node):
            return values[x]
        if isinstance(x, tuple | list):
            return [read(v) for v in x]
        return x

    for node in graph.nodes:
        if node.op != "call_function":
            continue
        m.out, m.place = node.meta.get("val"), where(node)
        try:
            target: Any = type(node.target) if isinstance(node.target, Control) else node.target
            if target not in ROWS:
                raise NoForm
            first = (node.target,) if isinstance(node.target, Control) else ()
            made = ROWS[target](m, *first, *read(node.args), **{k: read(v) for k, v in node.kwargs.items()})
            values[node] = _described(m, made, node)
        except NoForm as e:
            m.problems.append(Problem(str(node.target), where(node), str(e)))
            values[node] = _stand_in(m, node.meta.get("val"))
    return [read(v) for v in results_of(graph)]


def _described(m: Emitter, made: Any, node: fx.Node) -> Any:
    """The value of a call with dtype, named sizes and the node's name, unless it has them: a value may pass through."""
    val = node.meta.get("val")
    if isinstance(made, tuple | list):
        specs = val if isinstance(val, tuple | list) else [None] * len(made)
        return [_named(m, v, spec, f"{node.name}_{k}") for k, (v, spec) in enumerate(zip(made, specs))]
    return _named(m, made, val, node.name)


def _named(m: Emitter, value: Any, spec: Any, name: str) -> Any:
    if not isinstance(value, Value) or value.name is not None or value.is_graph_input():
        return value
    value.name = m.unique(name)
    return m.describe(value, spec) if isinstance(spec, Spec) else value


def _stand_in(m: Emitter, val: Any) -> Any:
    if isinstance(val, tuple | list):
        return [_stand_in(m, v) for v in val]
    value = Value(name=m.unique("missing"))
    value.meta.update({"spec": val} if isinstance(val, Spec) else {"number": int})
    return value


def inner_graph(m: Emitter, inputs: Sequence[tuple[Any, int]], emit: Callable[..., Sequence[Value]]) -> ir.Graph:
    """Return the body of a loop or scan: what `emit(emitter, *values)` makes of inputs of these dtypes and ranks."""
    inner = Emitter(m.opset, m)
    given = [Value(name=m.unique("given"), type=ir.TensorType(dtype), shape=ir.Shape([None] * dims))
             for dtype, dims in inputs]
    outputs = emit(inner, *given)
    for value in outputs:
        value.name = m.unique("made")
    return ir.Graph(given, outputs, nodes=inner.nodes, name=m.unique("body"))
