"""Sizes of inputs that vary from call to call: symbols in the graph, and guards on what the graph assumes of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from framesmith.fake import FakeTensor
from framesmith.fake.layout import strides_like
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Expr, Symbol, and_, eq, ge
from framesmith.symbolic.node import SYMBOLIC, expr_of, symint
from framesmith.util.marks import marked_dimensions

from .sources import Guard, Source

_SYMBOL = re.compile(r"\b[su]\d+\b")

_PLAIN = (torch.Tensor, torch.nn.Parameter)

Place = tuple[Source, str, int]
"""Where a symbol's value is read: a tensor's source, "size" or "stride", the dimension."""


@dataclass(slots=True)
class DynamicSizes:
    """Which sizes of inputs are symbols: those that the program marks, and `seen`, those that were seen to vary, by the
    source of the tensor as text; `every`: all sizes of inputs that are no parameters. `inputs`: False: none of these.
    `data`: sizes and integers that the graph computes of data may be symbols, too. `made`: a symbol of a size of an
    input was made; `made_of_data`: one of data."""

    every: bool = False
    seen: Mapping[str, frozenset[int]] = field(default_factory=dict)
    inputs: bool = True
    data: bool = False
    made: bool = False
    made_of_data: bool = False

    def dims(self, source: Source, x: torch.Tensor) -> set[int]:
        """The dimensions of the tensor at `source` that have symbols. Sizes 0 and 1 are assumed."""
        if not self.inputs:
            return set()
        marked, fixed = marked_dimensions(x)
        found = {*(range(x.dim()) if self.every else self.seen.get(str(source), ())), *marked} - fixed
        return {d for d in found if x.shape[d] > 1}


class Sizes:
    """The part of the session that makes symbols of sizes."""

    def __init__(self) -> None:
        self.dynamic: DynamicSizes | None = None
        self.shapes = ShapeEnv()
        self._strides: list[Guard] = []

    def symbolic_shape(self, value: torch.Tensor, source: Source) -> tuple[Any, ...] | None:
        """The shape of an input with a symbol for each size that varies; None if there is none."""
        dynamic = self.dynamic
        if dynamic is None or type(value) not in _PLAIN or not (dims := dynamic.dims(source, value)):
            return None
        if strides_like(value, tuple(value.shape)) != value.stride():  # a dimension of one element has any stride
            return None
        dynamic.made = True
        env = self.shapes
        return tuple([symint(env.new_symbol(n, (source, "size", d)), env) if d in dims else n
                      for d, n in enumerate(value.shape)])

    def symbolic_layout(self, value: torch.Tensor, source: Source,
                        shape: tuple[Any, ...]) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
        """The sizes and strides that the tensor guard compares, None for those that vary; what the graph assumes of a
        stride that follows from sizes becomes a guard of its own."""
        strides = strides_like(value, shape)
        rules, symbols = [], self._places(expr_of(n) for n in shape)
        for d, stride in enumerate(strides):
            if type(stride) is not int:
                symbols[f"t{d}"] = source, "stride", d
                rules.append(eq(Symbol(f"t{d}", None, None), expr_of(stride)))
        if rules:
            self._strides.append(Guard(None, "shape", (and_(*rules), symbols)))
        return _fixed(shape), _fixed(strides)

    def size_guards(self) -> list[Guard]:
        """What the graph assumes of its symbols: they are not 0 or 1, and what the environment was asked."""
        env = self.shapes
        bounds = [Guard(None, "shape", (ge(Symbol(s.name, None, None), s.lo or 0), self._places([s])))
                  for s in env.symbols]
        asked = [Guard(None, "shape", (g.rel, self._places([g.rel])), g.stack) for g in env.guards]
        return [*self._strides, *bounds, *asked]

    def _places(self, values: Any) -> dict[str, Place]:
        return {s.name: self.shapes.sources[s] for e in values for s in sorted(e.free, key=lambda s: s.name)}


def _fixed(sizes: tuple[Any, ...]) -> tuple[int | None, ...]:
    return tuple([n if type(n) is int else None for n in sizes])


def size_text(rebuilder: Any, value: Any) -> str:
    """A value as an expression of residual code. A `torch.SymInt`, `SymBool` or `SymFloat`, also in tuples and lists,
    is an expression over sizes of inputs and over what the graph computes."""
    if type(value) is int:
        return repr(value)
    if isinstance(value, (tuple, list)):
        return "".join(["(", *(f"{size_text(rebuilder, n)}, " for n in value), ")"])
    if type(value) not in SYMBOLIC:
        return str(rebuilder.hold(value))
    e = value.node.expr
    if isinstance(e, Expr) and "m" not in e.text:  # a name like `max` may be the program's own
        return f"({_SYMBOL.sub(lambda found: _read(rebuilder, found[0]), e.text)})"
    values = ", ".join([f"{s.name!r}: {_read(rebuilder, s.name)}" for s in sorted(e.free, key=lambda s: s.name)])
    return f"{rebuilder.hold(e.evaluate)}({{{values}}})"


def holders(rebuilder: Any, fakes: list[FakeTensor]) -> list[FakeTensor]:
    """The tensors of which residual code reads the symbols of data that are in the layouts of `fakes`."""
    env = rebuilder.tracer.shapes
    if not env.data:
        return []
    found = {s: None for x in fakes for n in (*x.shape, *x.stride(), x.storage_offset()) for s in expr_of(n).free
             if s in env.data}
    return [env.sources[s][0] for s in found]


def sizes_at(rebuilder: Any, given: list[FakeTensor]) -> dict[str, str]:
    """The expressions of symbols by name, where a graph gives these tensors."""
    sources = rebuilder.tracer.shapes.sources
    numbers = {id(sources[s][0]): s.name for s in rebuilder.tracer.shapes.data if sources[s][1] < 0}
    found = {numbers[id(x)]: f"__fs_o[{k}].item()" for k, x in enumerate(given) if id(x) in numbers}
    for k, x in enumerate(given):
        for d, n in enumerate(x.shape):
            if isinstance(symbol := expr_of(n), Symbol):
                found.setdefault(symbol.name, f"__fs_o[{k}].shape[{d}]")
    return found


def _read(rebuilder: Any, name: str) -> str:
    if name in rebuilder.data_sizes:
        return rebuilder.data_sizes[name]  # type: ignore[no-any-return]
    place = next(place for s, place in rebuilder.tracer.shapes.sources.items() if s.name == name)
    if len(place) == 2:
        holder, dim = place
        text = rebuilder.value(rebuilder.tracer.made(holder))
        return f"{text}.shape[{dim}]" if dim >= 0 else f"{text}.item()"
    source, _, dim = place
    return f"{rebuilder.input(next(x for x in rebuilder.tracer.inputs if x.source == source))}.shape[{dim}]"
