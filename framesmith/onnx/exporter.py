"""`export`: a model, or an exported program, as an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes import common
from onnxscript import optimizer
from torch import fx

from framesmith.export.exported import Program
from framesmith.export.exporter import export_program
from framesmith.export.program import STATE, Input
from framesmith.export.sizes import SizeNodes
from framesmith.export.trees import Tree
from framesmith.graph.control import close
from framesmith.graph.traversal import placeholders_of
from framesmith.onnx import rows as _rows  # noqa: F401 - fills the table
from framesmith.onnx.emitter import Emitter, NoForm, Problem, Value
from framesmith.onnx.graphs import emit_graph
from framesmith.onnx.table import NAME
from framesmith.prims.core import Spec
from framesmith.symbolic.expr import Expr
from framesmith.util.errors import ExportError

OPSETS = range(18, 25)
"""The versions of ONNX's operators that can be written."""
OPSET = 20
IR_VERSION = 10
"""The oldest format of files that has all of these."""
WITHIN = 2**31 - 2**24
"""Bytes of weights that one file of protobuf holds; of more, weights are in a file beside it."""


class NoOnnxForm(ExportError):
    """Calls of a program have no form in ONNX; `problems` names the operator and line of each."""

    def __init__(self, problems: Sequence[Any]) -> None:
        self.problems = list(problems)
        lines = dict.fromkeys(map(str, problems))
        super().__init__("\n  ".join(["what has no form in ONNX:", *lines]))


def export(model: Callable[..., Any] | Program, path: str | os.PathLike[str], args: Sequence[Any] = (),
           kwargs: Mapping[str, Any] | None = None, *, dynamic_shapes: Any = None, opset: int = OPSET,
           optimize: bool = True, external_data: bool | None = None) -> ir.Model:
    """Write `model(*args, **kwargs)`, or a program of `framesmith.export`, as an ONNX file, and return it.

    Inputs are called as the model's arguments, outputs by their place in its result, and dimensions as in
    `dynamic_shapes` (see `framesmith.export`). State that a call writes is an output of its own, `new_` and its name in
    the `state_dict`, and where the call reads it an input, too, for the next call (see `initial_state`).
    `optimize`: fold constants, and remove what is not needed. `external_data`: keep weights in a file beside it, by
    default if they are too large for one.

    Raises `NoOnnxForm` with operator and line of each call that ONNX cannot say, and what `framesmith.export` raises.
    The file has passed `onnx.checker`.
    """
    if opset not in OPSETS:
        raise ExportError(f"opset is one of {OPSETS[0]} to {OPSETS[-1]}, not {opset}")
    if isinstance(model, Program):
        program = model if model.operators == NAME else model.to(NAME)
    else:
        program = export_program(model, args, kwargs, dynamic_shapes=dynamic_shapes, operators=NAME)
    made = to_model(program, opset)
    if optimize:
        _optimize(made)
    apart = _weight_bytes(made) > WITHIN if external_data is None else external_data
    path = Path(path)
    ir.save(made, path, external_data=f"{path.name}.data" if apart else None)
    onnx.checker.check_model(str(path), full_check=True)
    return made


def _optimize(model: ir.Model) -> None:
    """Fold constants, and leave out what is not needed. onnxscript's rewrite rules are left out: their patterns take an
    epsilon of 1e-8 for 0."""
    names = [v.name for v in model.graph.outputs]
    optimizer.fold_constants(model)
    ir.passes.Sequential(
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(), common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(), common.DeduplicateInitializersPass(),
        common.RemoveUnusedNodesPass(), common.OutputFixPass(), common.NameFixPass(),
    )(model)
    for value, name in zip(model.graph.outputs, names, strict=True):  # equal outputs were merged, and made apart
        value.name = name


def to_model(program: Program, opset: int) -> ir.Model:
    """Return the program, in the operator set of the table, as an ONNX model."""
    m = Emitter(opset)
    taken = inputs_of_file(program)
    names, given = {i.name: name for name, i in taken.items()}, {}
    for i in [*taken.values(), *[i for i in program.inputs if i.name not in names]]:
        try:
            given[i.name] = (m.describe(Value(name=m.unique(names[i.name])), i.spec) if i.name in names else
                             m.initializer(str(i.target), program.state[i.target]))
        except NoForm as e:
            raise NoOnnxForm([Problem(str(i.target), "", str(e))]) from None
    inputs = [given[name] for name in names]
    results = [m.unique(name) for name in _output_names(program, given)]
    found = emit_graph(m, program.graph, [given[i.name] for i in program.inputs])
    if m.problems:
        raise NoOnnxForm(m.problems)
    outputs = _outputs(m, program, given, found)
    if not outputs:
        raise ExportError("a program that gives no tensor and no size")
    for value, name in zip(outputs, results, strict=True):
        value.name = name
    used = [v for v in m.initializers.values() if v.uses()]
    graph = ir.Graph(inputs, outputs, nodes=m.nodes, initializers=used, opset_imports={"": opset}, name=program.name)
    return ir.Model(graph, ir_version=IR_VERSION, producer_name="framesmith")


def inputs_of_file(program: Program) -> dict[str, Input]:
    """Return what the file takes, by name: arguments, then the state that a call reads and writes."""
    written = {o.target for o in program.outputs if o.kind == "mutation"}
    places = list(zip(placeholders_of(program.graph), program.inputs, strict=True))
    arguments = {str(n.target): i for n, i in places if i.kind not in STATE}  # the graph's names may differ
    state = [i for n, i in places if i.kind in STATE and i.name in written and n.users]
    return arguments | {f"{i.target}_state" if i.target in arguments else str(i.target): i for i in state}


def initial_state(program: Program) -> dict[str, torch.Tensor]:
    """Return what the file takes beside arguments in a first call: the state that a call reads and writes, by name."""
    return {name: program.state[i.target] for name, i in inputs_of_file(program).items() if i.kind in STATE}


def _output_names(program: Program, given: dict[str, Value]) -> Iterator[str]:
    """Yield the names of the outputs: leaves of the result by their place in it, new state by the name of the old."""
    for name, leaf in zip(leaf_names(program.result), program.results, strict=True):
        if leaf.kind != "constant":
            yield name
    yield from (f"new_{given[o.target].name}" for o in program.outputs if o.kind == "mutation")


def _outputs(m: Emitter, program: Program, inputs: dict[str, Value], found: list[Any]) -> list[Value]:
    """Return the outputs of the graph: the tensors and sizes among the leaves of the result, then what the program
    writes."""
    written = {o.target: v for o, v in zip(program.outputs, found, strict=True) if o.kind == "mutation"}
    after = inputs | written
    leaves = {i.target: after[i.name] for i in program.inputs if i.kind == "input"}
    state = {i.target: after[i.name] for i in program.inputs if i.kind in STATE}
    of_kind: dict[str, Callable[[Any], Any]] = {
        "output": found.__getitem__, "input": leaves.__getitem__, "size": lambda size: _size(m, program, inputs, size),
        "state": lambda name: state.get(name) or m.initializer(name, program.state[name]),
    }
    values = [of_kind[leaf.kind](leaf.value) for leaf in program.results if leaf.kind != "constant"]
    return [_output(m, value) for value in (*values, *written.values())]


def _output(m: Emitter, value: Any) -> Value:
    """Return the value as one of its own: others may be inputs, or two outputs."""
    if not isinstance(value, Value):
        raise ExportError(f"{value!r} among the results is no tensor")
    made: Value = m("Identity", value)
    made.dtype, made.shape = value.dtype, value.shape  # type: ignore[assignment]
    return made


def _size(m: Emitter, program: Program, inputs: dict[str, Value], size: Any) -> Value:
    """Return a size among the results, as a scalar."""
    if isinstance(size, Expr):
        graph, given = fx.Graph(), []
        for i in program.inputs:
            node = graph.placeholder(i.name)
            node.meta["val"] = i.spec
            given.append(node)
        close(graph, [SizeNodes(graph, given).of(size)])
        (size,) = emit_graph(m, graph, [inputs[i.name] for i in program.inputs])
    return m.describe(m.number(size, torch.int64), Spec((), torch.int64, torch.device("cpu")))


def leaf_names(tree: Tree, path: str = "") -> Iterator[str]:
    """Yield the names of the leaves of a tree: the keys and numbers of the path to each."""
    if tree.kind == "leaf":
        yield path or "output"
        return
    keys = tree.keys if len(tree.keys) == len(tree.parts) else range(len(tree.parts))
    for key, part in zip(keys, tree.parts, strict=True):
        label = f"{path}.{key}" if path else f"output_{key}" if isinstance(key, int) else str(key)
        yield from leaf_names(part, label)


def _weight_bytes(model: ir.Model) -> int:
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
