"""A program as Python text that runs, and the differences of two programs.

The text defines `forward`, a function of the graph's inputs in order; `program.state` has those that are not arguments.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from framesmith.export.file import target_name
from framesmith.export.flow import fields_of
from framesmith.export.sizes import spec_of
from framesmith.graph.control import Control, results_of
from framesmith.graph.printer import dtype_text, where
from framesmith.graph.traversal import placeholders_of
from framesmith.prims.core import Prim, Spec
from framesmith.symbolic.expr import Expr

_HEAD = """import math
import operator
from types import SimpleNamespace

import torch
from framesmith.prims.core import table

from framesmith.graph.control import Branch, Loop, Scan

aten, prims = torch.ops.aten, SimpleNamespace(**table)


"""


def python_text(program: Any) -> str:
    """Return the program as a module of Python that runs."""
    constraints = program.constraints
    about = [f"{program.name}: {program.operators} operators", *(f"dimension {d}" for d in constraints.dimensions),
             *(f"where {r}" for r in constraints.relations), f"arguments {program.arguments}",
             f"result {program.result}"]
    lines = ['"""', *(a.replace("\\", "/").replace('"""', "'''") for a in about), '"""', _HEAD + "def forward("]
    for i in program.inputs:
        lines.append(f"    {i.name},  # {spec_text(i.spec)}  {i.kind} {i.target}")
    lines.append("):")
    for node in program.graph.nodes:
        if node.op == "call_function":
            lines += [f"    {line}" for line in _statements(node)]
        elif node.op == "output":
            kinds = ", ".join(f"{o.kind} {o.target}".strip() for o in program.outputs)
            lines.append(f"    return {argument_text(tuple(node.args[0]))}  # {kinds}")
    return "\n".join(lines) + "\n"


def _statements(node: fx.Node) -> Iterator[str]:
    """Return the call as statements: of control flow, its arms are functions of a list before it."""
    arms = node.target.arms if isinstance(node.target, Control) else ()
    for k, arm in enumerate(arms):
        yield f"def {node.name}_arm_{k}(given):"
        if places := placeholders_of(arm):
            yield f"    {', '.join(n.name for n in places)}{',' if len(places) == 1 else ''} = given"
        for inner in arm.nodes:
            if inner.op == "call_function":
                yield from (f"    {line}" for line in _statements(inner))
        yield f"    return {argument_text(tuple(results_of(arm)))}"
    comment = "  ".join(filter(None, (spec_text(node.meta.get("val")), where(node))))
    yield f"{node.name} = {call_text(node)}" + (f"  # {comment}" if comment else "")


def call_text(node: fx.Node, name: Callable[[fx.Node], str] = lambda n: n.name) -> str:
    """Return the call as Python."""
    args = [argument_text(a, name) for a in node.args]
    if isinstance(node.target, Control):
        target: Any = node.target
        made = [*["None"] * len(target.arms), *[f"{k}={v!r}" for k, v in fields_of(target).items()]]
        arms = ", ".join(f"{name(node)}_arm_{k}" for k in range(len(target.arms)))
        rest = f"{', '.join(args[1:])}{',' if len(args) == 2 else ''}"
        return f"{type(target).__name__}({', '.join(made)}).run([{arms}], {args[0]}, ({rest}))"
    args += [f"{k}={argument_text(v, name)}" for k, v in node.kwargs.items()]
    return f"{_callee(node.target)}({', '.join(args)})"


def _callee(target: Any) -> str:
    text = target_name(target)
    if isinstance(target, torch._ops.OpOverload):
        return text if target.namespace == "aten" else f"torch.ops.{text}"
    return text if isinstance(target, Prim) else text.replace("builtins.", "")


def argument_text(x: Any, name: Callable[[fx.Node], str] = lambda n: n.name) -> str:
    """Return an argument as Python."""
    if isinstance(x, fx.Node):
        return name(x)
    if isinstance(x, tuple | list):
        inner = ", ".join(argument_text(v, name) for v in x)
        return f"[{inner}]" if isinstance(x, list) else f"({inner}{',' if len(x) == 1 else ''})"
    if isinstance(x, float) and not math.isfinite(x):
        return f'float("{x}")'
    if isinstance(x, torch.device):
        return f'torch.device("{x}")'
    return repr(x)


def spec_text(val: Any) -> str:
    """Dtype and sizes of a value, of several in parentheses."""
    val = spec_of(val) if val is not None else None
    if isinstance(val, Spec):
        text = f"{dtype_text(val.dtype)}[{', '.join(map(str, val.shape))}]"
        return text if val.device.type == "cpu" else f"{text}@{val.device}"
    if isinstance(val, tuple):
        return f"({', '.join(map(spec_text, val))})"
    return str(val) if isinstance(val, Expr) else ""


class Difference(list[str]):
    """Lines that tell two programs apart: empty, and false, for programs that compute the same with the same state."""

    def __str__(self) -> str:
        return "\n".join(self) or "no difference"


def difference(a: Any, b: Any) -> Difference:
    """Return how `b` differs from `a`. Names of nodes do not count."""
    out = Difference()
    for title, one, other in (
        ("interface", list(_interface(a)), list(_interface(b))), ("graph", list(_calls(a)), list(_calls(b))),
    ):
        lines = list(difflib.unified_diff(one, other, lineterm="", n=1))[2:]
        out += [title, *(f"  {line}" for line in lines)] if lines else []
    state = []
    for name in dict.fromkeys([*a.state, *b.state]):
        x, y = a.state.get(name), b.state.get(name)
        if x is None or y is None:
            state.append(f"  {'-' if y is None else '+'}{name}")
        elif x.shape != y.shape or x.dtype is not y.dtype:
            state.append(f"   {name}: {spec_text(x)} and {spec_text(y)}")
        elif not torch.equal(x, y):
            state.append(f"   {name}: values differ by up to {(x.double() - y.double()).abs().max():.3g}")
    return Difference([*out, *(["state", *state] if state else [])])


def _interface(program: Any) -> Iterator[str]:
    yield f"operators {program.operators}"
    yield from (f"dimension {d}" for d in program.constraints.dimensions)
    yield from (f"where {r.rel}" for r in program.constraints.relations)
    yield from (f"input {i.kind} {i.target}: {spec_text(i.spec)}" for i in program.inputs)
    yield from (f"output {o.kind} {o.target}" for o in program.outputs)
    yield f"arguments {program.arguments}"
    yield f"result {program.result}"


def _calls(program: Any) -> Iterator[str]:
    """Print a line for each call, with what makes its arguments in the place of their names."""
    places = {i.name: str(i.target) for i in program.inputs}

    def name(node: fx.Node) -> str:
        if isinstance(node.target, Control):
            return str(node.target.__name__)  # type: ignore[attr-defined]
        if node.op == "placeholder" and node.graph is not program.graph:
            return f"given[{[n for n in node.graph.nodes if n.op == 'placeholder'].index(node)}]"
        return places.get(node.name) or _callee(node.target).split(".")[-2 if _dotted(node.target) else -1]

    def lines(graph: fx.Graph, indent: str) -> Iterator[str]:
        for node in graph.nodes:
            if node.op == "call_function":
                for arm in node.target.arms if isinstance(node.target, Control) else ():
                    yield from lines(arm, f"  {indent}")
                yield f"{indent}{call_text(node, name)}  # {spec_text(node.meta.get('val'))}"

    yield from lines(program.graph, "")


def _dotted(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload)
