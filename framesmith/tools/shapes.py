"""`shapes`: the shapes of one call's results, its arithmetic and its memory as formulas of its inputs' sizes, without
running an operator."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from framesmith.capture.dynamic_sizes import DynamicSizes
from framesmith.capture.entry import UserError, convert_frame
from framesmith.capture.tracer import is_param
from framesmith.config import Config
from framesmith.graph.purity import is_view
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Expr, Int, Substitution, Symbol, max_, prod, sum_
from framesmith.symbolic.node import env_of, expr_of
from framesmith.util.dynamo import dynamo_off
from framesmith.util.errors import ShapeError
from framesmith.util.locks import COMPILE_LOCK

Shape = tuple[Expr, ...]


@dataclass(frozen=True)
class Shapes:
    """The shapes and costs of a call, as formulas of its inputs' sizes (`x.shape[0]`); `str()` gives the whole as text.

    `inputs`, `results`: dtype and shape; parameters are not among the inputs, and results are the tensors that the call
    computes, in order. `operators`: place in the program, operator and shape of its result. `flops`: multiplications
    and additions of contractions and convolutions (as `torch.utils.flop_counter` counts). `bytes`: bytes that the
    operators read and write, each by itself. `peak`: the most bytes that are alive at once, inputs and parameters
    included, where operators run one by one and a tensor dies with its last use. `assumed`: relations between sizes
    that the formulas hold for, and where the program asks for them.

    A formula's `evaluate({"x.shape[0]": 8, ...})` is its value.
    """

    inputs: dict[str, tuple[torch.dtype, Shape]]
    results: list[tuple[torch.dtype, Shape]]
    operators: list[tuple[str, str, Shape]]
    flops: Expr
    bytes: Expr
    peak: Expr
    assumed: list[str]

    def __str__(self) -> str:
        lines = [f"{name}: {_tensor(*x)}" for name, x in self.inputs.items()]
        lines += [f"result {k}: {_tensor(*x)}" for k, x in enumerate(self.results)]
        lines += [f"flops: {self.flops}", f"bytes: {self.bytes}", f"peak bytes: {self.peak}"]
        return "\n".join(lines + [f"assumed: {text}" for text in self.assumed])


def shapes_of_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shapes:
    """Capture a call for any size of its tensors. Raises ShapeError where an operator refuses the shapes, and
    Unsupported where the graph would break."""
    code, function, given = _frame(fn, args, kwargs)
    graphs: list[Graph] = []

    def kept(graph: Graph, *_: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return lambda inputs: ()

    try:
        config = Config.asked({}, fullgraph=True)
        with COMPILE_LOCK, dynamo_off():
            captured = convert_frame(code, given, function.__globals__, function.__closure__, config, kept, None,
                                     DynamicSizes(every=True))
    except UserError as error:
        raise ShapeError(error.said or error.kind, at=error.at and error.at[:2]) from None
    return _counted(graphs[0] if graphs else Graph(), captured.input_sources)


def _frame(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[CodeType, Any, dict[str, Any]]:
    """Code, function and argument locals of a call."""
    bound = type(fn).forward.__get__(fn) if isinstance(fn, nn.Module) else fn
    function = inspect.unwrap(getattr(bound, "__func__", bound))
    if not inspect.isfunction(function):
        raise TypeError(f"framesmith.shapes takes a module or a Python function, not {type(fn).__name__}")
    first = (bound.__self__,) if inspect.ismethod(bound) else ()
    found = inspect.signature(function).bind(*first, *args, **kwargs)
    found.apply_defaults()
    return function.__code__, function, dict(found.arguments)


_LOCAL = re.compile(r"L\['(\w+)'\]")


def _named(source: Any) -> str:
    """Return the source of an input, as the program writes it."""
    return _LOCAL.sub(r"\1", str(source))


def _names(env: ShapeEnv | None) -> Substitution:
    """Symbols by the program's names of what they stand for."""
    renamed: dict[Expr, Expr | int] = {}
    for symbol in env.symbols if env is not None else ():
        source, _, dim = env.sources[symbol]  # type: ignore[union-attr]
        renamed[symbol] = Symbol(f"{_named(source)}.shape[{dim}]", symbol.lo, symbol.hi)
    return Substitution(renamed)


def _counted(graph: Graph, sources: list[Any]) -> Shapes:
    nodes = list(graph.nodes)
    values = {node: _tensors(node.meta.get("val")) for node in nodes}
    env = env_of(*[n for found in values.values() for x in found for n in x.shape])
    named = _names(env)

    def shape(x: torch.Tensor) -> Shape:
        return tuple([named(expr_of(n)) for n in x.shape])

    def size(x: torch.Tensor) -> Expr:
        return prod(shape(x)) * x.dtype.itemsize

    calls = [n for n in nodes if n.op == "call_function"]
    work = [n for n in calls if not is_view(n.target)]
    places = [n for n in nodes if n.op == "placeholder"]
    inputs = {_named(source): (x.dtype, shape(x)) for source, node in zip(sources, places) if not is_param(source)
              for x in values[node]}
    results = [x for n in nodes if n.op == "output" for arg in n.all_input_nodes for x in values[arg]]
    assumed = [str(g.rel.subs(named)) + (f" ({g.stack[-1][0]}:{g.stack[-1][1]})" if g.stack else "")
               for g in (env.guards if env is not None else ())]
    return Shapes(
        inputs, [(x.dtype, shape(x)) for x in results],
        [(_place(n), str(n.target), shape(x)) for n in calls for x in values[n][:1]],
        sum_([_flops(n, shape) for n in work]),
        sum_([size(x) for n in work for one in (*n.all_input_nodes, n) for x in values[one]]),
        _peak(nodes, {n: sum_(map(size, values[n])) for n in nodes}), assumed)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [x for x in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(x, torch.Tensor)]


def _tensor(dtype: torch.dtype, shape: Shape) -> str:
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"


def _place(node: Node) -> str:
    file, line, function = (node.meta.get("stack") or (("", 0, ""),))[-1]
    return f"{file}:{line} in {function}"


# ------------------------------------------------------------------------------------------------------------- counting

Sized = Callable[[torch.Tensor], Shape]


def _product(node: Node, shape: Sized, first: int = 0) -> Expr:
    """Size the product of matrices (or of vectors) of which `args[first]` is summed over its last dimension."""
    return 2 * prod(shape(node.meta["val"])) * shape(_operand(node, first))[-1]


def _convolution(node: Node, shape: Sized) -> Expr:
    """Return each element of the weight, but for its outermost dimension, with each of the result; of the input if it
    is transposed."""
    kernel = prod(shape(_operand(node, 1))[1:])
    transposed = node.target is torch.ops.aten.convolution.default and node.args[6]
    return 2 * kernel * prod(shape(_operand(node, 0) if transposed else node.meta["val"]))


def _attention(node: Node, shape: Sized) -> Expr:
    """Two products: of queries and keys, of weights and values."""
    query, key, value = (shape(_operand(node, k)) for k in range(3))
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _recurrent(node: Node, shape: Sized) -> Expr:
    """Return each matrix of weights in each step."""
    steps = prod(shape(_operand(node, 0))[:-1])
    weights = [w.meta["val"] for arg in node.args[2:4] if isinstance(arg, (list, tuple)) for w in arg
               if isinstance(w, Node)]
    return 2 * steps * sum_([prod(shape(w)) for w in weights if w.dim() == 2])


def _operand(node: Node, place: int) -> torch.Tensor:
    return node.args[place].meta["val"]  # type: ignore[union-attr, return-value]


_aten = torch.ops.aten
FLOPS: dict[Any, Callable[[Node, Sized], Expr]] = {
    **dict.fromkeys((_aten.mm, _aten.bmm, _aten.mv, _aten.dot, _aten.matmul, _aten.linear), _product),
    **dict.fromkeys((_aten.addmm, _aten.baddbmm, _aten.addmv, _aten.addbmm), partial(_product, first=1)),
    **dict.fromkeys((_aten.convolution, _aten.conv1d, _aten.conv2d, _aten.conv3d), _convolution),
    **dict.fromkeys((_aten.lstm, _aten.gru), _recurrent),
    **dict.fromkeys((_aten.scaled_dot_product_attention, _aten._scaled_dot_product_flash_attention_for_cpu,
                     _aten._scaled_dot_product_flash_attention, _aten._scaled_dot_product_efficient_attention),
                    _attention),
}
"""Operators that multiply and add, with their number of operations."""


def _flops(node: Node, shape: Sized) -> Expr:
    row = FLOPS.get(getattr(node.target, "overloadpacket", None))
    return Int(0) if row is None else row(node, shape)


def _peak(nodes: list[Node], size: dict[Node, Expr]) -> Expr:
    """Return the peak of live bytes: inputs and results stay, others die with the last use of the value or a view of
    it."""
    owner: dict[Node, Node] = {}
    last: dict[Node, int] = {}
    for k, node in enumerate(nodes):
        shared = node.op == "call_function" and is_view(node.target) and bool(node.all_input_nodes)
        owner[node] = owner[node.all_input_nodes[0]] if shared else node
        for used in (node, *node.all_input_nodes):
            last[owner[used]] = k
    alive: Expr = sum_([size[n] for n in nodes if n.op in ("placeholder", "get_attr")])
    peaks = [alive]
    dying: dict[int, list[Node]] = {}
    for node, k in last.items():
        if node.op == "call_function":
            dying.setdefault(k, []).append(node)
    for k, node in enumerate(nodes):
        if node.op == "call_function" and owner[node] is node:
            alive = alive + size[node]
        if k in dying or k == len(nodes) - 1:
            peaks.append(alive)
            alive = alive - sum_([size[n] for n in dying.get(k, ())])
    return max_(*peaks)
