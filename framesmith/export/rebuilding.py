"""A program with another graph: its metadata are computed again, and it is brought into a dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from framesmith.export.flow import calls, symbols
from framesmith.export.nodes import copy_nodes
from framesmith.export.operators import lower_graph
from framesmith.export.program import Output, Runnable
from framesmith.export.ranges import Constraints, RangedEnv
from framesmith.export.sizes import spec_of
from framesmith.graph.traversal import placeholders_of
from framesmith.graph.verifier import verify
from framesmith.prims.core import Prim, Spec
from framesmith.symbolic.env import ShapeGuard
from framesmith.symbolic.expr import Expr, Symbol
from framesmith.util.errors import ExportError, VerifyError


def environment(constraints: Constraints, specs: list[Any], graph: fx.Graph | None = None) -> RangedEnv:
    """Return a shape environment with the symbols of the specs, in which the constraints are known, and with those that
    a graph defines."""
    env = RangedEnv()
    own = {s.name: s for spec in specs if isinstance(spec, Spec) for n in spec.shape if isinstance(n, Expr)
               for s in n.free}
    for d in constraints.dimensions:
        symbol = own.get(d.name, Symbol(d.name, d.lo, d.hi))
        env.symbols.append(symbol)
        env.hints[d.name] = env._hint(max(d.lo, 2), d.hi) if d.lo != d.hi else d.lo
    for relation in constraints.relations:
        env.guards.append(ShapeGuard(relation.rel))
        env._learn(relation.rel)
    for symbol in symbols(graph) if graph is not None else ():
        if symbol not in env.data and symbol not in env.symbols:
            env.hints[symbol.name] = env._hint(max(symbol.lo or 0, 2), symbol.hi)
            env.data.add(symbol)
            env.small.add(symbol)
    return env


def rebuilt(program: Runnable, graph: fx.Graph | None = None, operators: str | None = None) -> Runnable:
    """Return the program with `graph` (its own by default) in its place, in a dialect. `graph` has the same inputs and
    outputs; what it calls may be any functional operator."""
    source, dialect = graph or program.graph, operators or program.operators
    placeholders = placeholders_of(source)
    if [n.name for n in placeholders] != [i.name for i in program.inputs]:
        raise ExportError("a pass keeps the inputs of the graph, in order")
    returned = next(n for n in reversed(source.nodes) if n.op == "output").args[0]
    if len(returned) != len(program.outputs):  # type: ignore[arg-type]
        raise ExportError("a pass keeps the outputs of the graph, in order")
    for node, i in zip(placeholders, program.inputs, strict=True):
        node.meta["val"] = i.spec
    env = environment(program.constraints, [i.spec for i in program.inputs], source)
    if program.operators == dialect == "prims" and not env.data:
        return program.with_graph(_of_prims(source), dialect, program.outputs)
    lowered, copied = lower_graph(source, dialect, env)
    final = fx.Graph()
    made = []
    for i, node in zip(program.inputs, placeholders, strict=True):
        made.append(final.create_node("placeholder", str(node.target), name=i.name))
        made[-1].meta["val"] = i.spec
    values = dict(zip(placeholders_of(lowered), made, strict=True))
    final.output(tuple(copy_nodes(lowered, final, values, made)))
    verify(final)
    return program.with_graph(final, dialect, [*program.outputs, *[Output("mutation", n.name) for n in copied]])


def _of_prims(graph: fx.Graph) -> fx.Graph:
    """Return a graph of prims, with the metadata that their rules give."""

    def read(x: Any) -> Any:
        if isinstance(x, fx.Node):
            return x.meta.get("val")
        return tuple(map(read, x)) if isinstance(x, tuple | list) else x

    for node in graph.nodes:
        if isinstance(node.target, Prim):
            old, new = node.meta.get("val"), node.target.meta(*read(node.args))
            if isinstance(new, Spec) and isinstance(old, Spec):
                new.stride = old.stride
            node.meta["val"] = new
    return verify(graph)


def apply(program: Runnable, change: Callable[[fx.Graph], Any]) -> Runnable:
    """Return the program that a pass makes of it: `change` gets a copy of the graph, and changes it or returns
    another."""
    copy = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    result = copy.graph_copy(program.graph, values)
    copy.output(result)
    for old, new in values.items():
        new.meta = dict(old.meta)
    changed = change(copy)
    if isinstance(changed, fx.GraphModule):
        changed = changed.graph
    return rebuilt(program, changed if isinstance(changed, fx.Graph) else copy)


def check(program: Runnable) -> Runnable:
    """Return the program, if it is what it says: raises `VerifyError` where a node's metadata are not what its operator
    gives, an operator writes, or state and interface do not go together."""
    graph = verify(program.graph)
    names = [n.name for n in graph.nodes if n.op == "placeholder"]
    if names != [i.name for i in program.inputs]:
        raise VerifyError("the inputs are not the graph's")
    for node in calls(graph):
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise VerifyError(f"{node.name} writes: {node.target}")
    returned = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    if len(returned) != len(program.outputs):  # type: ignore[arg-type]
        raise VerifyError("the outputs are not the graph's")
    for o in program.outputs:
        if o.kind != "result" and o.target not in names:
            raise VerifyError(f"an output of {o.target}, which is no input")
    for i in program.inputs:
        if i.kind in ("parameter", "buffer", "constant"):
            x = program.state.get(i.target)
            if x is None or tuple(x.shape) != i.spec.shape or x.dtype is not i.spec.dtype:
                raise VerifyError(f"{i.target} is {None if x is None else Spec.of(x)}, and {i.spec} in the graph")
    _metadata(program)
    return program


def _metadata(program: Runnable) -> None:
    again = rebuilt(program)
    pairs = zip(_results(program), _results(again), strict=True)
    for number, (one, other) in enumerate(pairs):
        if _shape(one) != _shape(other):
            raise VerifyError(f"output {number} is {other}, and {one} by its metadata")


def _results(program: Runnable) -> list[Any]:
    returned: Any = next(n for n in reversed(program.graph.nodes) if n.op == "output").args[0]
    return [spec_of(n.meta.get("val")) if isinstance(n, fx.Node) else n for n in returned]


def _shape(x: Any) -> Any:
    return (tuple(map(str, x.shape)), x.dtype) if isinstance(x, Spec) else x


