"""Programs in files: one safetensors file, whose metadata hold the program as JSON (docs/export.md describes it).

Nothing in a file is executed: operators are looked up by name among those of `aten`, of prims, and of libraries that
this process has loaded, and none that writes or reads files; sizes are parsed, not evaluated.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import operator
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import fx

from framesmith.export.flow import fields_of, made_of, symbols
from framesmith.export.program import STATE, Input, Output, Runnable
from framesmith.export.ranges import Constraints, Dimension, Relation
from framesmith.export.sizes import SIZE_OPERATORS, parse_size
from framesmith.export.trace import Leaf
from framesmith.export.trees import Tree
from framesmith.graph.control import Control, close, results_of
from framesmith.graph.verifier import verify
from framesmith.prims.core import Prim, Spec
from framesmith.prims.core import table as prims
from framesmith.symbolic.expr import Expr, Symbol, eq, le, ne, or_
from framesmith.util.errors import ExportError, VerifyError

FORMAT = "framesmith program"
VERSION = 3
"""Of programs with sizes that data decides; with control flow 2, others 1."""
_SIZE_TARGETS: dict[str, Any] = {f"{f.__module__.strip('_')}.{f.__name__}": f for f in SIZE_OPERATORS
                                 if not isinstance(f, torch._ops.OpOverload)}
_SIZE_TARGETS["operator.getitem"] = operator.getitem
_SIZE_NAMES = {f: name for name, f in _SIZE_TARGETS.items()}
_REFUSED = frozenset(("aten.from_file", "aten.save"))
_ENUMS: dict[str, dict[str, Any]] = {
    "dtype": {str(v).removeprefix("torch."): v for v in vars(torch).values() if isinstance(v, torch.dtype)},
    "layout": {str(v).removeprefix("torch."): v for v in vars(torch).values() if isinstance(v, torch.layout)},
    "memory_format": {str(v).removeprefix("torch."): v for v in vars(torch).values()
                      if isinstance(v, torch.memory_format)},
}


# --- out

def save(program: Runnable, path: str | os.PathLike[str]) -> None:
    """Write the program to one file. The file appears whole or not at all."""
    tensors: dict[str, torch.Tensor] = {}
    stored: dict[str, Any] = {}
    for name, x in program.state.items():
        stored[name] = _store(x, tensors)
    body = json.dumps({**program_json(program), "state": stored}, separators=(",", ":"))
    digest = hashlib.sha256(body.encode()).hexdigest()
    controlled = any(isinstance(n.target, Control) for n in program.graph.nodes)
    version = VERSION if _data_out(program) else 2 if controlled else 1
    metadata = {"format": FORMAT, "version": str(version), "sha256": digest, "program": body}
    target = Path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, part, metadata=metadata)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _store(x: torch.Tensor, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Put the memory of a tensor among those to be stored, once, and say which part of it the tensor is."""
    x = x.detach()
    key = next((k for k, v in tensors.items() if v is x), None)
    whole = x.untyped_storage()
    for name, other in tensors.items():
        if other.untyped_storage().data_ptr() == whole.data_ptr() and other.dtype is x.dtype and whole.nbytes():
            key = name
    if key is None:
        key = f"t{len(tensors)}"
        shared = x.numel() * x.itemsize == whole.nbytes()
        tensors[key] = torch.as_strided(x, (whole.nbytes() // x.itemsize,), (1,), 0) if shared else x.clone().flatten()
        if not shared:
            return {"tensor": key, "shape": list(x.shape), "stride": list(x.clone().stride()), "offset": 0}
    return {"tensor": key, "shape": list(x.shape), "stride": list(x.stride()), "offset": x.storage_offset()}


def program_json(program: Runnable) -> dict[str, Any]:
    """Return the program without its tensors, as plain data."""
    return {
        "name": program.name, "operators": program.operators, "torch": torch.__version__,
        "dimensions": [[d.name, d.lo, d.hi] for d in program.constraints.dimensions],
        "relations": [[_relation_out(r.rel), r.place] for r in program.constraints.relations],
        **({"data": data} if (data := _data_out(program)) else {}),
        "inputs": [{"name": i.name, "kind": i.kind, "target": i.target, "value": _spec_out(i.spec),
                    **({"grad": True} if i.requires_grad else {})} for i in program.inputs],
        "outputs": [[o.kind, o.target] for o in program.outputs],
        "results": [[leaf.kind, _out(leaf.value)] for leaf in program.results],
        "result": program.result.to_json(), "arguments": program.arguments.to_json(),
        "fixed": [[i, _out(v)] for i, v in program.fixed.items()], "notes": program.notes,
        "nodes": [_node_out(n) for n in program.graph.nodes if n.op == "call_function"],
        "returns": _out(next(n for n in program.graph.nodes if n.op == "output").args[0]),
    }


def _data_out(program: Runnable) -> list[list[Any]]:
    """Return name and range of each symbol that the graph defines."""
    dimensions = {d.name for d in program.constraints.dimensions}
    return [[s.name, s.lo, s.hi] for s in dict.fromkeys(symbols(program.graph)) if s.name not in dimensions]


def _node_out(node: fx.Node) -> dict[str, Any]:
    target: Any = node.target
    told = _control_out(target) if isinstance(target, Control) else target_name(target)
    out: dict[str, Any] = {"name": node.name, "target": told, "args": [_out(a) for a in node.args]}
    if node.kwargs:
        out["kwargs"] = {k: _out(v) for k, v in node.kwargs.items()}
    if (value := _value_out(node.meta.get("val"))) is not None:
        out["value"] = value
    if stack := node.meta.get("stack"):
        out["at"] = list(stack[-1][:3])
    if modules := node.meta.get("modules"):
        out["modules"] = [list(m) for m in modules]
    return out


def _control_out(target: Control) -> dict[str, Any]:
    arms = [{"inputs": [[n.name, _value_out(n.meta["val"])] for n in arm.nodes if n.op == "placeholder"],
             "nodes": [_node_out(n) for n in arm.nodes if n.op == "call_function"],
             "returns": _out(results_of(arm))} for arm in target.arms]
    return {"control": target.__name__, "fields": fields_of(target), "arms": arms}  # type: ignore[attr-defined]


def target_name(target: Any) -> str:
    """Return the name of what a node calls: `aten.add.Tensor`, `prims.add`, `operator.mul`. Raises `ExportError` for
    what has none."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, Prim):
        return f"prims.{target.name}"
    if target in _SIZE_NAMES:
        return _SIZE_NAMES[target]
    raise ExportError(f"{target!r} is no operator that a file can name")


def _spec_out(spec: Spec) -> list[Any]:
    stride = None if spec.stride is None else [_size_out(n) for n in spec.stride]
    return [str(spec.dtype).removeprefix("torch."), [_size_out(n) for n in spec.shape], stride, str(spec.device)]


def _size_out(n: Any) -> Any:
    return n.text if isinstance(n, Expr) else n


def _value_out(val: Any) -> Any:
    if isinstance(val, Spec):
        return _spec_out(val)
    if isinstance(val, tuple | list):
        return {"several": [_value_out(v) for v in val]}
    return {"size": _size_out(val)} if isinstance(val, int | Expr) and not isinstance(val, bool) else None


def _out(x: Any) -> Any:
    """Encode an argument as JSON: lists stand for lists, everything that JSON has not is an object with one key."""
    if x is None or isinstance(x, bool | int | str):
        return x
    if isinstance(x, float):
        return x if math.isfinite(x) else {"float": repr(x)}
    if isinstance(x, fx.Node):
        return {"node": x.name}
    if isinstance(x, list):
        return [_out(v) for v in x]
    if isinstance(x, tuple):
        return {"tuple": [_out(v) for v in x]}
    if isinstance(x, Expr):
        return {"size": x.text}
    if isinstance(x, complex):
        return {"complex": [repr(x.real), repr(x.imag)]}
    if isinstance(x, torch.device):
        return {"device": str(x)}
    for kind, table in _ENUMS.items():
        name = str(x).removeprefix("torch.")
        if table.get(name) is x:
            return {kind: name}
    raise ExportError(f"{x!r} of type {type(x).__name__} cannot be written to a file")


def _relation_out(rel: Any) -> Any:
    return [rel.op, *[_relation_out(a) if not isinstance(a, Expr) else a.text for a in rel.args]]


# --- in

def load(path: str | os.PathLike[str]) -> Runnable:
    """Load the program in a file. Raises `ExportError` for a file that is damaged, of another kind, or of a newer
    format."""
    try:
        with safetensors.safe_open(os.fspath(path), "pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (safetensors.SafetensorError, OSError, ValueError) as e:
        raise ExportError(f"{path} is damaged, or no exported program: {e}") from e
    if metadata.get("format") != FORMAT:
        raise ExportError(f"{path} is no exported program")
    version = metadata.get("version", "")
    if not version.isdigit() or int(version) > VERSION:
        raise ExportError(f"{path} has the format {version}; this framesmith reads formats up to {VERSION}")
    body = metadata.get("program", "")
    if hashlib.sha256(body.encode()).hexdigest() != metadata.get("sha256"):
        raise ExportError(f"{path} is damaged: its program is not the one that was written")
    try:
        return _program_in(json.loads(body), tensors)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, VerifyError) as e:
        raise ExportError(f"{path} is damaged: {type(e).__name__}: {e}") from e


def _program_in(data: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Runnable:
    known: dict[str, Expr] = {name: Symbol(name, lo, hi) for name, lo, hi in data["dimensions"] + data.get("data", [])}
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    read = _Reader(nodes, known)
    inputs = []
    for i in data["inputs"]:
        node = nodes[i["name"]] = graph.create_node("placeholder", i["name"], name=i["name"])
        spec = node.meta["val"] = read.spec(i["value"])
        inputs.append(Input(node.name, i["kind"], i["target"], spec, i.get("grad", False)))
    _nodes_in(graph, data["nodes"], read)
    graph.output(read.value(data["returns"]))
    state = {name: _state_in(s, tensors) for name, s in data["state"].items()}
    for i in inputs:
        if i.kind in STATE and i.target not in state:
            raise ExportError(f"the file has no tensor {i.target}")
    constraints = Constraints([Dimension(*d) for d in data["dimensions"]],
                              [Relation(read.relation(rel), place) for rel, place in data["relations"]])
    verify(graph)
    results = [Leaf(kind, parse_size(value["size"], known) if kind == "size" and isinstance(value, dict)
                    else read.value(value)) for kind, value in data["results"]]
    return Runnable(graph, inputs, [Output(*o) for o in data["outputs"]], results, Tree.from_json(data["result"]),
                   Tree.from_json(data["arguments"]), {i: read.value(v) for i, v in data["fixed"]}, constraints, state,
                   data["operators"], data["name"], list(data["notes"]))


def _nodes_in(graph: fx.Graph, rows: list[Any], read: _Reader) -> None:
    """Add the calls to a graph."""
    for n in rows:
        kwargs = {k: read.value(v) for k, v in n.get("kwargs", {}).items()}
        target = _control_in(n["target"], read) if isinstance(n["target"], dict) else find_target(n["target"])
        node = graph.create_node("call_function", target, tuple([read.value(a) for a in n["args"]]), kwargs,
                                 name=n["name"])
        read.nodes[n["name"]] = node
        node.meta["val"] = read.meta(n.get("value"))
        if "at" in n:
            node.meta["stack"] = (tuple(n["at"]),)
        if "modules" in n:
            node.meta["modules"] = tuple([tuple(m) for m in n["modules"]])


def _control_in(x: Any, read: _Reader) -> Control:
    arms = []
    for row in x["arms"]:
        graph, inner = fx.Graph(), _Reader({}, read.symbols)
        for name, value in row["inputs"]:
            node = inner.nodes[name] = graph.create_node("placeholder", name, name=name)
            node.meta["val"] = inner.meta(value)
        _nodes_in(graph, row["nodes"], inner)
        arms.append(verify(close(graph, inner.value(row["returns"]))))
    return made_of(x["control"], arms, x["fields"])


def _state_in(stored: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    flat = tensors[stored["tensor"]]
    shape, stride, offset = stored["shape"], stored["stride"], stored["offset"]
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else -1
    if last >= flat.numel() or offset < 0 or any(s < 0 for s in stride):
        raise ExportError("a tensor that reaches beyond its memory")
    return torch.as_strided(flat, shape, stride, offset)


def find_target(name: str) -> Any:
    """Return the target of nodes with that name. Raises `ExportError` for one that a program may not call, or that is
    not installed."""
    if name in _SIZE_TARGETS:
        return _SIZE_TARGETS[name]
    space, _, rest = name.partition(".")
    if space == "prims":
        if rest in prims:
            return prims[rest]
        raise ExportError(f"there is no prim {rest}")
    packet, _, overload = rest.rpartition(".")
    found = getattr(getattr(getattr(torch.ops, space, None), packet, None), overload or "default", None)
    if not isinstance(found, torch._ops.OpOverload):
        raise ExportError(f"this process has no operator {name}; load the library that defines it")
    if found._schema.is_mutable or f"{space}.{packet}" in _REFUSED:
        raise ExportError(f"a program may not call {name}")
    return found


class _Reader:
    """Reads what `_out` writes."""

    def __init__(self, nodes: dict[str, fx.Node], symbols: Mapping[str, Expr]) -> None:
        self.nodes = nodes
        self.symbols = symbols

    def value(self, x: Any) -> Any:
        if isinstance(x, list):
            return [self.value(v) for v in x]
        if not isinstance(x, dict):
            return x
        (kind, inner), = x.items()
        return _READ[kind](self, inner)

    def spec(self, x: Any) -> Spec:
        dtype, shape, stride, device = x
        sizes = [tuple([parse_size(n, self.symbols) for n in part]) if part is not None else None
                 for part in (shape, stride)]
        return Spec(sizes[0] or (), _ENUMS["dtype"][dtype], torch.device(device), sizes[1])

    def meta(self, x: Any) -> Any:
        if x is None or isinstance(x, list):
            return None if x is None else self.spec(x)
        return tuple([self.meta(v) for v in x["several"]]) if "several" in x else parse_size(x["size"], self.symbols)

    def relation(self, x: Any) -> Any:
        kind, *args = x
        if kind in ("and", "or"):
            parts = [self.relation(a) for a in args]
            return or_(*parts) if kind == "or" else parts
        return {"le": le, "eq": eq, "ne": ne}[kind](parse_size(args[0], self.symbols), 0)


def _enumerated(table: Mapping[str, Any], reader: _Reader, x: str) -> Any:
    return table[x]


_READ: dict[str, Callable[[_Reader, Any], Any]] = {
    "node": lambda reader, x: reader.nodes[x],
    "tuple": lambda reader, x: tuple([reader.value(v) for v in x]),
    "float": lambda reader, x: float(x),
    "complex": lambda reader, x: complex(float(x[0]), float(x[1])),
    "device": lambda reader, x: torch.device(x),
    "size": lambda reader, x: parse_size(x, reader.symbols),
    **{kind: functools.partial(_enumerated, table) for kind, table in _ENUMS.items()},
}
