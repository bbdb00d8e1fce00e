"""Programs: a graph with its inputs, which prints as self-contained text, and from which smaller programs are derived.

    program = of(recorded)              a graph of a call, with what it was given
    text(program, data)                 plain torch and framesmith
    first(program, 3), rest(program, 2) a part of its operators, which begins with their values
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from framesmith.autograd.joint import requires_grad, without_history
from framesmith.export.text import argument_text, call_text
from framesmith.graph.interpreter import run
from framesmith.graph.purity import kind_of
from framesmith.graph.traversal import ancestors, copy_node, placeholders_of
from framesmith.tools.recorded import Recorded, copied, own, seeded

_WRITES = torch.ops.aten.copy_.default
_LITERAL = 24
"""The maximal number of elements that are written out."""
_FLOATS = ("torch.randn({})", "torch.rand({})", "torch.ones({})")
_INTEGERS = ("torch.arange({n}).reshape({}) % 2", "torch.zeros({})")


@dataclass(frozen=True, slots=True)
class Input:
    """A placeholder's tensor. `fill`: the expression of its numbers, for a contiguous one; "": they are `value`'s.
    `param`: it is a parameter of a module, which may be frozen."""

    value: torch.Tensor
    fill: str = ""
    param: bool = False

    @property
    def contiguous(self) -> bool:
        return self.value.is_contiguous()


@dataclass(frozen=True, slots=True)
class Program:
    """`graph`: of operators that text can name; `inputs`: one for each placeholder; `train`: gradients are computed,
    of all results that require grad. Another program is made of one; it does not change."""

    graph: fx.Graph
    inputs: tuple[Input, ...]
    train: bool

    @property
    def calls(self) -> list[fx.Node]:
        return [n for n in self.graph.nodes if n.op == "call_function"]

    @property
    def places(self) -> list[fx.Node]:
        return placeholders_of(self.graph)

    @property
    def results(self) -> list[fx.Node]:
        return list(next(iter(reversed(self.graph.nodes))).args[0])  # type: ignore[arg-type]


def of(one: Recorded) -> Program:
    """Return the program of a recorded graph: what it writes to its inputs are results, and what text cannot name are
    inputs with the values that they had."""
    train = requires_grad(one.graph)
    graph = without_history(copied(one.graph))
    results = [r for r in list(next(iter(reversed(graph.nodes))).args[0]) if isinstance(r, fx.Node)]  # type: ignore
    results += [n.args[1] for n in graph.nodes if n.target is _WRITES]
    results = list(dict.fromkeys(results))
    places = placeholders_of(graph)
    inputs = tuple([Input(x if train else x.detach(), param=bool(p.meta.get("param")))
                    for p, x in zip(places, one.inputs, strict=True)])
    graph = copied(graph, results)
    program = Program(graph, inputs, train)
    odd = [n for n in program.calls if not _has_name(n) and n.target is not _WRITES]
    return cut(program, odd) if odd else cut(program, [])


def _has_name(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem


def values(program: Program) -> dict[fx.Node, Any]:
    """Return eager's value of each node."""
    found: dict[fx.Node, Any] = {}
    with torch.set_grad_enabled(program.train), seeded():
        given = [own(x.value) for x in program.inputs]
        run(program.graph, given, trace=lambda node, value: found.__setitem__(node, value))
    return found


def cut(program: Program, at: Sequence[fx.Node], results: Sequence[fx.Node] | None = None,
        known: Mapping[fx.Node, Any] | None = None) -> Program:
    """Return the program that begins with the values of the nodes `at`, as inputs, and gives `results`. Dead nodes are
    omitted."""
    results = list(program.results if results is None else results)
    cuts = _tensors_of(program, set(at))
    needed = ancestors(results, stop=cuts)
    known = known if known is not None or not cuts else values(program)
    graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
    inputs: list[Input] = []
    for place, given in zip(program.places, program.inputs, strict=True):
        if place in needed:
            made[place] = copy_node(graph, place, made.__getitem__)
            inputs.append(given)
    for node in [n for n in program.graph.nodes if n in cuts and n in needed and n.op != "placeholder"]:
        made[node] = graph.placeholder(node.name)
        made[node].meta = {"val": node.meta.get("val"), "stack": node.meta.get("stack", ())}
        inputs.append(Input(own(known[node])))  # type: ignore[index]
    for node in program.calls:
        if node in needed and node not in made:
            made[node] = copy_node(graph, node, made.__getitem__)
    graph.output(tuple([made[r] for r in results])).meta["val"] = tuple([r.meta.get("val") for r in results])
    train = program.train and any(x.value.requires_grad for x in inputs)
    return Program(graph, tuple(inputs), train)


def _tensors_of(program: Program, at: set[fx.Node]) -> set[fx.Node]:
    """Return the nodes whose values are tensors: of a tuple its parts."""
    found: set[fx.Node] = set()
    for node in at:
        parts = [u for u in node.users if u.target is operator.getitem]
        found |= _tensors_of(program, set(parts)) if parts else {node}
    return found


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def first(program: Program, count: int) -> Program | None:
    """Return the program of the first `count` operators, with all values that later ones would read as results; None if
    there is none."""
    kept = set(program.calls[:count])
    left = [n for n in program.calls[:count] if _is_tensor(n)
            and (n in program.results or not kept.intersection(n.users))]
    return cut(program, [], left) if left else None


def rest(program: Program, count: int, known: Mapping[fx.Node, Any]) -> Program:
    """Return the program of all but the first `count` operators, which begins with the values of those."""
    return cut(program, program.calls[:count], known=known)


def of_results(program: Program, results: Sequence[fx.Node]) -> Program:
    """Return the program of only some of the results."""
    return cut(program, [], results)


def without(program: Program, node: fx.Node) -> Program | None:
    """Return the program in which an operator is replaced by one of its operands of the same kind, or None."""
    val = node.meta.get("val")
    same = [a for a in node.all_input_nodes if isinstance(val, torch.Tensor) and _is_tensor(a)
            and a.meta["val"].shape == val.shape and a.meta["val"].dtype is val.dtype]
    if not same:
        return None
    graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
    for n in program.graph.nodes:
        made[n] = made[same[0]] if n is node else copy_node(graph, n, made.__getitem__)
    return cut(replace(program, graph=graph), [])


def with_sizes(program: Program, to: Mapping[int, int]) -> Program:
    """Return the program with sizes replaced, in all shapes and arguments."""
    def moved(x: Any) -> Any:
        return to.get(x, x) if type(x) is int else x

    graph = copied(program.graph)
    for node in graph.nodes:
        if node.op == "call_function":
            node.args, node.kwargs = map_aggregate(node.args, moved), map_aggregate(node.kwargs, moved)
    return replace(program, graph=graph, inputs=tuple([_resized(x, to) for x in program.inputs]))


def _resized(one: Input, to: Mapping[int, int]) -> Input:
    value = one.value.detach()
    for dim, size in enumerate(value.shape):
        value = value.narrow(dim, 0, min(to.get(size, size), size))
    return replace(one, value=value.contiguous().clone().requires_grad_(one.value.requires_grad))


def sizes_of(program: Program) -> list[int]:
    """Return the sizes of inputs, the greatest first."""
    return sorted({n for x in program.inputs for n in x.value.shape}, reverse=True)


def fills(one: Input) -> Sequence[str]:
    """Return the expressions that may replace an input's numbers, the most usual first."""
    if one.value.is_floating_point() or one.value.is_complex():
        return _FLOATS
    return _INTEGERS


def as_function(program: Program, result: Callable[[fx.Node], bool] = _is_tensor) -> bool:
    """Return whether there is anything to run: an operator, and a tensor as result."""
    return bool(program.calls) and all(map(result, program.results)) and bool(program.results)


# ---------------------------------------------------------------------------------------------------------------- text


class Data:
    """The tensors of a program's text: written out if small, else loaded from files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Path] = {}

    def text(self, x: torch.Tensor) -> str:
        """Return the expression of a contiguous tensor."""
        x = x.detach()
        if x.numel() <= _LITERAL and bool(x.isfinite().all()) and not x.is_complex() and x.numel():
            return f"torch.tensor({x.tolist()}{_dtype(x)})"
        plain = x.cpu().contiguous()
        key = hashlib.sha256(plain.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        key = f"{key} {x.dtype} {tuple(x.shape)}"
        if key not in self._files:
            self._files[key] = self.folder / f"data{len(self._files)}.pt"
            torch.save(plain, self._files[key])
        where = "" if x.device.type == "cpu" else f", map_location={str(x.device)!r}"
        return f"torch.load({str(self._files[key])!r}{where})"


def _dtype(x: torch.Tensor) -> str:
    where = "" if x.device.type == "cpu" else f", device={str(x.device)!r}"
    return f", dtype={x.dtype}{where}"


def _tensor_text(one: Input, data: Data, grad: bool) -> str:
    x = one.value
    sizes = ", ".join(map(str, x.shape)) if x.dim() else "()"
    if not one.fill:
        text = data.text(x)
    else:
        text = one.fill.format(sizes, n=x.numel())
        options = _dtype(x).removeprefix(f", dtype={torch.get_default_dtype()}")
        if one.fill == _INTEGERS[0]:
            text = text if x.dtype is torch.int64 else f"({text}).to({x.dtype})"
        elif options and text.startswith("torch.r") and x.dtype.itemsize < 4 and not x.is_complex():
            text = f"{text}.to({x.dtype})"
        elif options:
            text = f"{text[:-1]}{options})"
    if not one.contiguous:
        text = f"torch.empty_strided({tuple(x.shape)}, {x.stride()}{_dtype(x)}).copy_({text})"
    return f"{text}.requires_grad_()" if grad else text


def text(program: Program, data: Data) -> str:
    """Print its text: `program`, a function of `inputs`, and `p`, the parameters that it reads."""
    names: dict[fx.Node, str] = {}
    plain: list[tuple[str, Input]] = []
    params: list[tuple[str, Input]] = []
    for place, one in zip(program.places, program.inputs, strict=True):
        where = params if one.param else plain
        names[place] = f"p.w{len(params)}" if one.param else f"x{len(plain)}"
        where.append((names[place], one))
    lines = ["import torch", "import framesmith", "", "aten = torch.ops.aten", "torch.manual_seed(0)"]
    if params:
        made = ", ".join(f'"{name[2:]}": {_tensor_text(one, data, False)}' for name, one in params)
        frozen = "" if program.train else ".requires_grad_(False)"
        lines.append(f"p = torch.nn.ParameterDict({{{made}}}){frozen}")
    given = [_tensor_text(x, data, program.train and x.value.requires_grad) for _, x in plain]
    lines.append(f"inputs = [{', '.join(given)}]")
    lines += ["", "", f"def program({', '.join(name for name, _ in plain)}):"]
    for node in program.calls:
        names[node] = f"t{len(names)}"
        lines.append(f"    {names[node]} = {_call(node, names)}")
    lines.append(f"    return {', '.join(names[r] for r in program.results)}")
    return "\n".join(_folded(lines, len(program.results)))


def _folded(lines: list[str], results: int) -> list[str]:
    """Return the last value returned as it is computed."""
    name, _, value = lines[-2].strip().partition(" = ")
    if results == 1 and lines[-1] == f"    return {name}" and value:
        return [*lines[:-2], f"    return {value}"]
    return lines


def _call(node: fx.Node, names: Mapping[fx.Node, str]) -> str:
    if node.target is operator.getitem:
        return f"{names[node.args[0]]}[{argument_text(node.args[1])}]"  # type: ignore[index]
    return call_text(node, names.__getitem__)


def is_random(program: Program) -> bool:
    """Return whether it draws random numbers."""
    return any(kind_of(n.target) == "random" for n in program.calls)
