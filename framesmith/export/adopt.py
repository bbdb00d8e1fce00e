"""Programs of `torch.export` that a user brings: they are known by what they have, and nothing is imported for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from framesmith.export.exported import Program
from framesmith.export.program import Input, Output, Runnable
from framesmith.export.ranges import Constraints, Dimension
from framesmith.export.rebuilding import rebuilt
from framesmith.export.sizes import parse_size
from framesmith.export.trace import Leaf
from framesmith.export.trees import flatten
from framesmith.prims.core import Spec
from framesmith.symbolic.expr import Expr, Symbol
from framesmith.util.errors import ExportError

_KINDS = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant", "USER_INPUT": "input"}
_CHECKS = ("_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size",
           "_assert_async")
_UNBOUNDED = 1 << 40


def is_exported(model: Any) -> bool:
    """Return whether an object is a `torch.export.ExportedProgram`, or one like it."""
    return all(hasattr(model, name) for name in ("graph_module", "graph_signature", "call_spec", "range_constraints"))


def adopt(program: Any, operators: str) -> Program:
    """Return the same program as one of ours, in an operator set. Raises `ExportError` for what it has that ours have
    not."""
    signature = program.graph_signature
    symbols = _symbols(program)
    graph = fx.Graph()
    values: dict[fx.Node, Any] = {}
    inputs: list[Input] = []
    state: dict[str, torch.Tensor] = {}
    fixed: dict[int, Any] = {}
    count = 0
    by_name = {spec.arg.name: spec for spec in signature.input_specs}
    for node in program.graph_module.graph.nodes:
        if node.op == "placeholder":
            spec = by_name[node.name]
            kind = _KINDS.get(spec.kind.name)
            if kind is None:
                raise ExportError(f"{node.name} is an input of kind {spec.kind.name}")
            target: Any = spec.target
            if kind == "input":
                target, count = count, count + 1
                if not isinstance(node.meta.get("val"), torch.Tensor):
                    fixed[target] = values[node] = getattr(spec.arg, "value", None)
                    continue
            else:
                state[target] = _tensor(program, target)
            made = values[node] = graph.create_node("placeholder", node.name, name=node.name)
            made.meta["val"] = _spec(node.meta["val"], symbols)
            inputs.append(Input(made.name, kind, target, made.meta["val"]))
        elif node.op == "call_function" and getattr(node.target, "__name__", "").split(".")[0] not in _CHECKS:
            _refuse_call(node)
            made = values[node] = graph.node_copy(node, lambda n: values[n])
            made.meta = {"stack": _place(node), "modules": _modules(node)}
        elif node.op == "output":
            graph.output(tuple([values[a] if isinstance(a, fx.Node) else a for a in node.args[0]]))
    names = {i.target: i.name for i in inputs}
    outputs, results = _outputs(signature, names, {i.name: i for i in inputs}, values)
    kept = [k for k, o in enumerate(outputs) if o is not None]
    out = next(n for n in graph.nodes if n.op == "output")
    out.args = (tuple([out.args[0][k] for k in kept]),)
    constraints = Constraints([Dimension(s.name, s.lo or 0, s.hi) for s in symbols.values() if isinstance(s, Symbol)])
    in_tree, out_tree = (_tree(spec) for spec in (program.call_spec.in_spec, program.call_spec.out_spec))
    whole = Runnable(graph, inputs, [o for o in outputs if o is not None], results, out_tree, in_tree, fixed,
                     constraints, state, operators, "exported")
    found = rebuilt(whole)
    for name in found.mutations:  # what the program writes is its own
        if name in state:
            state[name] = state[name].detach().clone()
    return Program.of(found)


def _symbols(program: Any) -> dict[str, Expr]:
    out: dict[str, Expr] = {}
    for symbol, found in program.range_constraints.items():
        lo, hi = (int(b) if abs(float(b)) < _UNBOUNDED else None for b in (found.lower, found.upper))
        out[str(symbol)] = Symbol(str(symbol), max(lo or 0, 0), hi)
    return out


def _spec(val: torch.Tensor, symbols: dict[str, Expr]) -> Spec:
    def size(n: Any) -> Any:
        return n if type(n) is int else parse_size(str(n.node.expr), symbols)

    return Spec(tuple(map(size, val.shape)), val.dtype, val.device, tuple(map(size, val.stride())))


def _tensor(program: Any, name: str) -> torch.Tensor:
    for where in (program.state_dict, program.constants):
        if name in where:
            return where[name]  # type: ignore[no-any-return]
    raise ExportError(f"the program has no tensor {name}")


def _refuse_call(node: fx.Node) -> None:
    if not isinstance(node.target, torch._ops.OpOverload) and getattr(node.target, "__module__", "") not in (
            "_operator", "math", "torch", "builtins", "torch._C"):
        raise ExportError(f"{node.name} calls {node.target}, which is no operator")


def _place(node: fx.Node) -> tuple[tuple[str, int, str], ...]:
    """Return the innermost place of a stack trace in text."""
    lines = [line for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File ")]
    if not lines:
        return ()
    file, line, function = lines[-1].strip().removeprefix("File ").split(", ")[:3]
    return (file.strip('"'), int(line.removeprefix("line ")), function.removeprefix("in ")),


def _modules(node: fx.Node) -> tuple[tuple[str, int], ...]:
    stack = node.meta.get("nn_module_stack") or {}
    return tuple([(path, number) for number, (path, _) in enumerate(stack.values())])


def _outputs(signature: Any, names: dict[Any, str], inputs: dict[str, Input],
             values: dict[fx.Node, Any]) -> tuple[list[Output | None], list[Leaf]]:
    outputs: list[Output | None] = []
    results: list[Leaf] = []
    places = {node.name: value for node, value in values.items()}
    for spec in signature.output_specs:
        kind = spec.kind.name
        if kind == "USER_OUTPUT":
            name = getattr(spec.arg, "name", None)
            if hasattr(spec.arg, "value") or name is None or not isinstance(places.get(name), fx.Node):
                outputs.append(None)
                results.append(Leaf("constant", getattr(spec.arg, "value", None)))
            elif name in inputs:
                i = inputs[name]
                outputs.append(None)
                results.append(Leaf("input" if i.kind == "input" else "state", i.target))
            else:
                results.append(Leaf("output", sum(o is not None for o in outputs)))
                outputs.append(Output("result"))
        elif kind in ("BUFFER_MUTATION", "USER_INPUT_MUTATION"):
            outputs.append(Output("mutation", names.get(spec.target, spec.target)))
        else:
            raise ExportError(f"an output of kind {kind}")
    return outputs, results


def _tree(spec: Any) -> Any:
    marks = [object() for _ in range(spec.num_leaves)]
    return flatten(pytree.tree_unflatten(marks, spec), lambda x: type(x) is object)[1]
