"""The interpreter of graphs on real values: the reference semantics that every stage is tested against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.fx import Graph, Node

from framesmith.symbolic.expr import Expr, Symbol
from framesmith.symbolic.node import SymNode, expr_of
from framesmith.util.errors import GuardError

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool, Expr)


def run(graph: Graph, inputs: Sequence[Any], module: Any = None, *,
        trace: Callable[[Node, Any], None] | None = None, call: Callable[[Node, Any, Any], Any] | None = None) -> Any:
    """Run `graph` on `inputs`, one for each placeholder in order, and return its output.

    Symbolic sizes among the arguments are evaluated with the sizes of `inputs`. `module` is the namespace of get_attr
    and call_module (the graph's owner by default). A value is dropped after its last use. `trace` is called with each
    node and its value. `call(node, args, kwargs)`: what a call_function node gives, by default that of its target.
    """
    nodes = list(graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    if len(placeholders) != len(inputs):
        raise TypeError(f"the graph takes {len(placeholders)} inputs, not {len(inputs)}")
    state = _State(module if module is not None else graph.owning_module, dict(zip(placeholders, inputs, strict=True)),
                   call or _apply)
    for node, value in state.values.items():
        _bind(state.symbols, node.meta.get("val"), value, node.name)
    last = _last_uses(nodes)
    for node in nodes:
        if node.op == "output":
            return state.read(node.args[0])
        if node.op != "placeholder":
            state.values[node] = _STEPS[node.op](state, node)
            if "binds" in node.meta:
                _bind_results(state, node)
        if trace is not None:
            trace(node, state.values[node])
        for dead in last.get(node, ()):
            del state.values[dead]
    return None


class _State:
    """The values so far, and those of the symbols."""

    __slots__ = ("call", "module", "symbols", "values")

    def __init__(self, module: Any, values: dict[Node, Any], call: Callable[[Node, Any, Any], Any]) -> None:
        self.module = module
        self.call = call
        self.values = values
        self.symbols: dict[Any, int] = {}

    def read(self, x: Any) -> Any:
        """Return an argument with nodes and symbolic scalars replaced by values."""
        if isinstance(x, Node):
            return self.values[x]
        if isinstance(x, (tuple, list)):
            parts = [self.read(e) for e in x]
            return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts) if isinstance(x, tuple) else parts
        if isinstance(x, dict):
            return {k: self.read(v) for k, v in x.items()}
        if isinstance(x, slice):
            return slice(self.read(x.start), self.read(x.stop), self.read(x.step))
        return evaluate(x, self.symbols) if isinstance(x, _SYMBOLIC) else x

    def arguments(self, node: Node) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call, with zeros for gradients that control flow has not given."""
        missing = [a for a in node.all_input_nodes
                   if self.values[a] is None and isinstance(a.meta.get("val"), torch.Tensor)]
        if missing:
            state = _State(self.module, dict(self.values), self.call)
            state.symbols = self.symbols
            for a in missing:
                val = a.meta["val"]
                state.values[a] = torch.zeros(state.read(tuple(val.shape)), dtype=val.dtype, device=val.device)
            return state.arguments(node)
        return [self.read(a) for a in node.args], {k: self.read(v) for k, v in node.kwargs.items()}


def evaluate(x: Any, symbols: dict[Any, int]) -> Any:
    """Evaluate a symbolic scalar or expression for these values of symbols (or their names)."""
    if isinstance(x, Expr):
        return x.evaluate(symbols)
    node = x.node
    return node.expr.evaluate(symbols) if isinstance(node, SymNode) else x


def bind_symbols(graph: Graph, inputs: Sequence[Any]) -> dict[Any, int]:
    """Return the values of the symbols in the placeholders' sizes, for these inputs."""
    symbols: dict[Any, int] = {}
    for node, value in zip((n for n in graph.nodes if n.op == "placeholder"), inputs, strict=True):
        _bind(symbols, node.meta.get("val"), value, node.name)
    return symbols


def _bind(symbols: dict[Any, int], val: Any, value: Any, name: str) -> None:
    """Bind symbols from one input: a size (stride, scalar) that is a symbol gives its value. Raises GuardError if two
    disagree."""
    if isinstance(val, torch.SymInt):
        pairs = [(val, value)]
    elif hasattr(val, "shape") and isinstance(value, torch.Tensor):
        stride = getattr(val, "stride", None)
        steps = stride() if callable(stride) else ()  # a recipe's are not those that a run gives
        pairs = [*zip(val.shape, value.shape, strict=False), *zip(steps, value.stride(), strict=False)]
    else:
        return
    for size, actual in pairs:
        for e in _spellings(size):
            if symbols.setdefault(e, actual) != actual:
                raise GuardError(f"{e} is {symbols[e]} elsewhere and {actual} in {name}")
            symbols[e.name] = actual


def _bind_results(state: _State, node: Node) -> None:
    """Bind a symbol from the results of the operator that defines it."""
    val, value = node.meta["val"], state.values[node]
    for v, x in zip(val, value, strict=True) if isinstance(val, (tuple, list)) else [(val, value)]:
        _bind(state.symbols, v, x, node.name)


def _spellings(size: Any) -> set[Symbol]:
    """Return the symbols of a size: as created, and as simplified by guards."""
    if not isinstance(size, (torch.SymInt, Expr)):
        return set()
    both = (expr_of(size), size.node.value if isinstance(size, torch.SymInt) else size)
    return {e for e in both if isinstance(e, Symbol)}


def _last_uses(nodes: list[Node]) -> dict[Node, list[Node]]:
    last: dict[Node, list[Node]] = {}
    seen: set[Node] = set()
    for node in reversed(nodes):
        for used in (node, *node.all_input_nodes):
            if used not in seen:
                seen.add(used)
                last.setdefault(node, []).append(used)
    return last


def _call_function(state: _State, node: Node) -> Any:
    if node.target is torch.ops.aten.add.Tensor and all(
            isinstance(a, Node) and state.values[a] is None for a in node.args):
        return None  # a sum of gradients of which none is given
    return state.call(node, *state.arguments(node))


def _apply(node: Node, args: Any, kwargs: Any) -> Any:
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _call_method(state: _State, node: Node) -> Any:
    (receiver, *args), kwargs = state.arguments(node)
    return getattr(receiver, str(node.target))(*args, **kwargs)


def _call_module(state: _State, node: Node) -> Any:
    args, kwargs = state.arguments(node)
    return attrgetter(str(node.target))(state.module)(*args, **kwargs)


def _get_attr(state: _State, node: Node) -> Any:
    return attrgetter(str(node.target))(state.module)


_STEPS: dict[str, Callable[[_State, Node], Any]] = {
    "call_function": _call_function,
    "call_method": _call_method,
    "call_module": _call_module,
    "get_attr": _get_attr,
}
