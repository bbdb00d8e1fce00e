"""The sizes of a captured graph as generated code names them: a dimension may be called `a` or `n`, as variables of the
code are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith.export.ranges import Constraints, Dimension
from framesmith.export.rebuilding import environment
from framesmith.fake.tensor import FakeTensor, with_sizes
from framesmith.graph.symbols import size_sources, symbols_of
from framesmith.graph.traversal import copy_graph
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Expr, Symbol, linear
from framesmith.symbolic.node import symbool, symfloat, symint
from framesmith.util.errors import PackageError

_MAKE = {torch.SymInt: symint, torch.SymFloat: symfloat, torch.SymBool: symbool}


@dataclass(frozen=True, slots=True)
class Sized:
    """`graph`: its symbols are s0, s1, …; `dimensions`: the name of the dimension that each is. A dimension that is no
    tensor's size, but a part of one, is an integer that the graph takes behind its tensors; `numbers`: an example of
    each of these."""

    graph: fx.Graph
    dimensions: dict[str, str]
    numbers: list[int]


def with_plain_symbols(graph: fx.Graph, dimensions: Sequence[Dimension]) -> Sized:
    """Return a copy of a graph with symbols of its own for the dimensions. Nothing but the ranges is known of
    them."""
    plain = [Dimension(f"s{k}", d.lo, d.hi) for k, d in enumerate(dimensions)]
    env = environment(Constraints(plain), [])
    symbols = {d.name: symbol for d, symbol in zip(dimensions, env.symbols, strict=True)}
    copy = copy_graph(graph, lambda value: _renamed(value, symbols, env))
    missing = sorted(symbols_of(n for n in copy.nodes if n.op != "output") - set(size_sources(copy)), key=str)
    with copy.inserting_before(next(n for n in copy.nodes if n.op != "placeholder")):
        for symbol in missing:
            copy.placeholder(str(symbol)).meta["val"] = symint(symbol, env)
    return Sized(copy, {p.name: d.name for p, d in zip(plain, dimensions, strict=True)},
                 [env.hints[symbol.name] for symbol in missing])


def _renamed(value: Any, symbols: Mapping[str, Symbol], env: ShapeEnv) -> Any:
    if isinstance(value, FakeTensor):
        return with_sizes(value, lambda n: _renamed(n, symbols, env))
    make: Any = _MAKE.get(type(value))
    if make is None:
        return value
    expr = value.node.expr
    return make(expr.subs({s: symbols[s.name] for s in expr.free}), env)


def size_over(size: int | Expr, names: Sequence[str]) -> int | list[int]:
    """Return a size of an input as a manifest has it: an int; or number, scale and offset of the dimension, of those
    `names`, that it follows from."""
    if isinstance(size, int):
        return size
    terms, offset = linear(size)
    if len(terms) != 1 or str(terms[0][0]) not in names:
        raise PackageError(f"the size {size} of an input, which follows from no dimension alone")
    (symbol, scale), = terms
    return [names.index(str(symbol)), scale, offset]
