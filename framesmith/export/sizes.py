"""Sizes as nodes: a graph in which each symbol is read off an input by `aten.sym_size`, and each expression over
symbols is computed by Python's operators, so that it runs and prints without any symbol."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from framesmith.prims.core import Spec, size_as_made, size_of
from framesmith.symbolic.expr import (
    Expr,
    FloorDiv,
    Int,
    Max,
    Min,
    Mod,
    Product,
    Rel,
    Sum,
    Symbol,
    as_expr,
    linear,
    max_,
    min_,
)
from framesmith.symbolic.floats import OPS, FloatExpr
from framesmith.symbolic.node import expr_of
from framesmith.util.errors import ExportError, Unsupported

SYM_SIZE = torch.ops.aten.sym_size.int
ASSERT = torch.ops.aten._assert_scalar.default
"""Raises RuntimeError where a relation between sizes does not hold."""


def spec_of(val: Any, size: Callable[[Any], Any] = size_of) -> Any:
    """Return the description of a value that its node keeps: a `Spec` of a tensor, an int or `Expr` of a size, tuples
    of these, else None."""
    if isinstance(val, Spec):
        return val
    if isinstance(val, torch.Tensor):
        return Spec.of(val, size)
    if isinstance(val, tuple | list):
        return tuple([spec_of(v, size) for v in val])
    return size(val) if isinstance(val, int | torch.SymInt | Expr) and not isinstance(val, bool) else None


def symbols_in(val: Any) -> frozenset[Symbol]:
    """Return the symbols in the sizes of a value, as they were made; of the values in tuples and lists."""
    if isinstance(val, tuple | list):
        return frozenset().union(*map(symbols_in, val))
    if isinstance(val, torch.SymInt | Expr):
        return as_expr(size_as_made(val)).free
    return symbols_in(tuple(val.shape)) if isinstance(val, torch.Tensor | Spec) else frozenset()


class SizeNodes:
    """Makes the nodes of sizes in `graph`; `inputs`: its placeholders, with their specs. `places`: where a symbol is
    read: node, number of the result if there are several, dimension, size."""

    def __init__(self, graph: fx.Graph, inputs: list[fx.Node]) -> None:
        self.graph = graph
        self.made: dict[Any, fx.Node] = {}
        self.places: dict[Symbol, tuple[fx.Node, int | None, int, Expr]] = {}
        for node in inputs:
            if isinstance(node.meta.get("val"), Expr):
                self.made[node.meta["val"]] = node
            for d, size in enumerate(node.meta["val"].shape if isinstance(node.meta.get("val"), Spec) else ()):
                if isinstance(size, Expr) and len(size.free) == 1 and linear(size)[0][0][0] in size.free:
                    (symbol,) = size.free
                    if symbol not in self.places or isinstance(size, Symbol):
                        self.places.setdefault(symbol, (node, None, d, size))
                        if isinstance(size, Symbol) and not isinstance(self.places[symbol][-1], Symbol):
                            self.places[symbol] = node, None, d, size

    def add(self, node: fx.Node) -> None:
        """Take note of a call that may define symbols: its results are the first to have them."""
        val = node.meta["val"]
        if isinstance(val, Symbol):
            self.made.setdefault(val, node)
        for k, spec in enumerate(val) if isinstance(val, tuple) else [(None, val)]:
            for d, size in enumerate(spec.shape if isinstance(spec, Spec) else ()):
                if isinstance(size, Symbol) and size not in self.made:
                    self.places.setdefault(size, (node, k, d, size))

    def of(self, value: Any) -> Any:
        """Return a plain number, or the node that computes the expression."""
        if isinstance(value, torch.SymInt):
            value = expr_of(value)
        elif isinstance(value, torch.SymFloat | torch.SymBool):
            value = value.node.value
        if isinstance(value, Expr) and value.is_const:
            return value.const
        if isinstance(value, Rel) and value.known is not None:
            return value.known
        if not isinstance(value, Expr | FloatExpr | Rel):
            raise Unsupported(f"{value} among the arguments of an operator")
        node = self.made.get(value)
        if node is None:
            node = self.made[value] = self._make(value)
            if isinstance(value, Expr):
                node.meta["val"] = value
        return node

    def _make(self, e: Any) -> fx.Node:
        if isinstance(e, Symbol):
            return self._symbol(e)
        if isinstance(e, FloatExpr):
            return self._float(e)
        if isinstance(e, Rel) and e.op in _COMPARED:
            return self._call(_COMPARED[e.op], self.of(e.args[0]), 0)
        if isinstance(e, Sum):
            out: Any = None
            for term, k in sorted(e.terms, key=lambda item: (item[1] < 0, item[0].text)):
                node = self.of(term)
                if out is None:
                    out = node if k == 1 else self._call(operator.mul, node, k)
                else:
                    part = node if abs(k) == 1 else self._call(operator.mul, node, abs(k))
                    out = self._call(operator.add if k > 0 else operator.sub, out, part)
            return self._call(operator.add, out, e.offset) if e.offset else out
        fold = _CONNECTED.get(e.op) if isinstance(e, Rel) else _FOLDS.get(type(e))
        if fold is None:
            raise Unsupported(f"the size {e}")
        first, *rest = [self.of(a) for a in e.args]
        for other in rest:
            first = self._call(fold, first, other)
        return first

    def _symbol(self, symbol: Symbol) -> fx.Node:
        if symbol not in self.places:
            found = next((s for s in self.places if s.name == symbol.name), None)
            if found is None:
                raise Unsupported(f"the size {symbol}, which no input has")
            return self.of(found)
        node, k, d, size = self.places[symbol]
        if k is not None:
            node = self._call(operator.getitem, node, k)
            node.meta["val"] = node.args[0].meta["val"][k]  # type: ignore[union-attr]
        read = self._call(SYM_SIZE, node, d, name=symbol.name)
        if isinstance(size, Symbol):
            return read
        (_, k), = linear(size)[0]
        offset = linear(size)[1]
        read = self._call(operator.sub, read, offset) if offset else read
        return self._call(operator.floordiv, read, k) if k != 1 else read

    def _float(self, e: FloatExpr) -> Any:
        if e.op == "const":
            return e.args[0]
        if e.op == "int":
            return self.of(e.args[0])
        target = OPS[e.op] if e.op not in ("min", "max") else {"min": min, "max": max}[e.op]
        return self._call(target, *[self._float(a) if isinstance(a, FloatExpr) else a for a in e.args])

    def _call(self, target: Any, *args: Any, name: str | None = None) -> fx.Node:
        return self.graph.create_node("call_function", target, args, name=name)


_FOLDS: dict[type, Callable[..., Any]] = {
    Product: operator.mul, FloorDiv: operator.floordiv, Mod: operator.mod, Min: torch.sym_min, Max: torch.sym_max,
}
_COMPARED: dict[str, Callable[..., Any]] = {"le": operator.le, "eq": operator.eq, "ne": operator.ne}
_CONNECTED: dict[str, Callable[..., Any]] = {"and": operator.and_, "or": operator.or_}
SIZE_OPERATORS: frozenset[Any] = frozenset(
    {*_FOLDS.values(), *_COMPARED.values(), *_CONNECTED.values(), SYM_SIZE, operator.add, operator.sub,
     operator.truediv, operator.pow, operator.neg, min, max, abs,
     *[getattr(math, n) for n in ("sqrt", "exp", "log", "log2", "cos", "sin", "tan", "tanh")]})
"""The targets of nodes that compute sizes."""

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def parse_size(text: str | int, symbols: Mapping[str, Expr]) -> int | Expr:
    """Return the size that a text (as `Expr` prints it) means; nothing is evaluated. Raises `ExportError` for another
    text."""
    if isinstance(text, int):
        return text

    def read(node: ast.AST) -> Any:
        if isinstance(node, ast.Name) and node.id in symbols:
            return symbols[node.id]
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return Int(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _BINARY[type(node.op)](read(node.left), read(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -read(node.operand)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            first, *rest = map(read, node.args)
            for other in rest:
                first = (min_ if node.func.id == "min" else max_)(first, other)
            return first
        raise ExportError(f"{text!r} is no size")

    try:
        return size_of(read(ast.parse(text, mode="eval").body))
    except SyntaxError as e:
        raise ExportError(f"{text!r} is no size") from e
