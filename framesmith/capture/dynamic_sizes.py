"""Dynamic sizes of inputs: their symbols in the graph, and guards on what the graph assumes of them."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from framesmith.fake import FakeTensor
from framesmith.fake.layout import strides_like
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Expr, Symbol, and_, eq, ge, le, or_
from framesmith.symbolic.node import SYMBOLIC, SymNode, expr_of, symint
from framesmith.util.errors import ContradictedMark, DataDependent, Unsupported
from framesmith.util.marks import Mark, marked_dimensions

from . import trackers as t
from .session import Session
from .sources import Guard, Source

_ARITHMETIC = frozenset({operator.add, operator.iadd, operator.sub, operator.isub, operator.mul, operator.imul,
                         operator.floordiv, operator.ifloordiv, operator.mod, operator.imod, operator.neg,
                         operator.pos})
_SYMBOL = re.compile(r"\b[sgu]\d+\b")

_PLAIN = (torch.Tensor, torch.nn.Parameter)

Place = tuple[Source, str, int | None]
"""The place from which a symbol's value is read: a tensor's source, "size" or "stride", the dimension; or an integer's
source, "value"."""


@dataclass(slots=True)
class DynamicSizes:
    """The policy that decides which sizes of inputs are symbols: those that the program marks, and `seen`, those that
    were seen to vary, by the source of the tensor as text; `every`: all sizes of inputs that are no parameters.
    `inputs`: False: none of these. `data`: sizes and integers that the graph computes of data may be symbols, too.
    `shapes`: the environment. `made`: a symbol of a size of an input was made; `made_of_data`: one of data; `strict`:
    those of inputs that are marked to vary, in words. `small`: one was made that is 0 or 1 in this call; `narrow`: such
    sizes are assumed, if they may be. `numbers`: sources of integers that have had another value: they are symbols
    where they are sizes (None: none are); `made_of_numbers`: one was made. `ones`: a size that was seen to vary was 1
    in a call: the ranges of all of them begin at 1; `widened`: a symbol of a larger size was made with such a range."""

    every: bool = False
    seen: Mapping[str, frozenset[int]] = field(default_factory=dict)
    inputs: bool = True
    data: bool = False
    made: bool = False
    made_of_data: bool = False
    strict: list[str] = field(default_factory=list)
    small: bool = False
    narrow: bool = False
    numbers: frozenset[str] | None = None
    made_of_numbers: bool = False
    ones: bool = False
    widened: bool = False
    shapes: ShapeEnv | None = None

    @property
    def assumed_large(self) -> bool:
        """Return whether a layout was assumed that holds for larger sizes, but may not hold for the present ones or
        others in range."""
        return not self.narrow and (self.small or self.widened or self.shapes is not None
                                    and bool(self.shapes.layout_assumptions or self.shapes.copies))

    def dims(self, source: Source, x: torch.Tensor, part: bool) -> dict[int, Mark]:
        """Return the dimensions of the tensor at `source` that have symbols, with their marks. Sizes 0 and 1 are
        specialised, unless a mark's range includes them, or a size that varies was 1: the range then begins there.
        Raises ContradictedMark for a size outside of a mark's range. `part`: the tensor is one that another is made of.
        There the class marks sizes, not the program: to assume one is no error, and 0 and 1 are sizes as others are."""
        if not self.inputs:
            return {}
        marked, fixed = marked_dimensions(x)
        if part:
            marked = {d: Mark(mark.lo or 0, mark.hi, False, mark.backed) for d, mark in marked.items()}
        for d, mark in marked.items():
            if mark.lo is not None and x.shape[d] < mark.lo or mark.hi is not None and x.shape[d] > mark.hi:
                raise ContradictedMark(f"{_named(source, d)} is {x.shape[d]}, and marked to be in the range from "
                                       f"{mark.lo or 0} to {'any' if mark.hi is None else mark.hi}",
                                       hint="mark a wider range: mark_dynamic(tensor, dim, min=..., max=...)")
        seen = dict.fromkeys(range(x.dim()) if self.every else (), Mark(strict=False))
        varying = [d for d in self.seen.get(str(source), ()) if d < x.dim()]
        self.ones |= any(x.shape[d] == 1 for d in varying)
        lo = 1 if self.ones and not self.narrow else None
        seen |= {d: Mark(1 if x.shape[d] == 1 else lo, strict=False, seen=True) for d in varying}
        return {d: mark for d, mark in (seen | marked).items() if d < x.dim() and d not in fixed
                and (x.shape[d] > 1 or mark.small and not (self.narrow and mark.backed))}


class Sizes(Session):
    """The part of the session that makes symbols of sizes."""

    def __init__(self) -> None:
        self.dynamic: DynamicSizes | None = None
        self.shapes = ShapeEnv()
        self._strides: list[Guard] = []
        self.carriers: dict[Source, tuple[t.SymbolicNumber, FakeTensor]] = {}
        """Integers that are used as sizes, and the inputs without elements that carry these sizes into the graph."""
        self.wrapped_parts: dict[Source, None] = {}
        """Paths to the parts of tensors that wrap others."""
        self._marked: dict[Expr, str] = {}
        """Symbols of sizes that are marked to vary, in words."""

    def symbolic_shape(self, value: torch.Tensor, source: Source) -> tuple[Any, ...] | None:
        """Return the shape of an input with a symbol for each size that varies; None if there is none."""
        dynamic = self.dynamic
        if dynamic is None or type(value) not in _PLAIN or not (
                dims := dynamic.dims(source, value, source in self.wrapped_parts)):
            return None
        if strides_like(value, tuple(value.shape)) != value.stride():  # a dimension of one element has any stride
            return None
        dynamic.made = True
        dynamic.shapes = self.shapes
        self.shapes.narrow = dynamic.narrow
        dynamic.strict += [_named(source, d) for d, mark in dims.items() if mark.strict]
        env = self.shapes
        shape: list[Any] = list(value.shape)
        for d, mark in sorted(dims.items()):
            dynamic.small |= shape[d] < 2
            dynamic.widened |= mark.seen and mark.small and shape[d] > 1
            lo = 2 if mark.lo is None and mark.backed else mark.lo or 0
            symbol = env.new_symbol(shape[d], (source, "size", d), lo=lo, hi=mark.hi, specialise=not mark.small,
                                    guarded=mark.backed)
            if mark.seen and mark.small:
                env.exact.add(symbol)
            if mark.strict:
                self._marked[symbol] = _named(source, d)
            shape[d] = symint(symbol, env)
        return tuple(shape)

    def symbolic_layout(self, value: torch.Tensor, source: Source,
                        shape: tuple[Any, ...]) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
        """Return the sizes and strides that the tensor guard compares, None for those that vary; what the graph assumes
        of a stride that follows from sizes becomes a guard of its own."""
        strides = strides_like(value, shape)
        rules, symbols = [], self._places(expr_of(n) for n in shape)
        for d, stride in enumerate(strides):
            if type(stride) is not int:
                symbols[f"t{d}"] = source, "stride", d
                empty = [eq(n, 0) for n in map(expr_of, shape) if n.lo == 0]  # without elements, strides mean nothing
                rules.append(or_(eq(Symbol(f"t{d}", None, None), expr_of(stride)), *empty))
        if rules:
            self._strides.append(Guard(None, "shape", (and_(*rules), symbols)))
        return _fixed(shape), _fixed(strides)

    def is_early(self, source: Source) -> bool:
        """Return whether a number has varied between calls, but may be specialised."""
        return self.dynamic is not None and self.dynamic.numbers is not None and str(source) in self.dynamic.numbers

    def may_be_size(self, x: t.Tracker) -> bool:
        """Return whether an integer that varies, or one computed of such, may be an expression of symbols. 0, 1 and
        what is negative are assumed."""
        if type(x) is not t.SymbolicNumber:
            return type(x) is t.Const and type(x.value) is int
        if type(x.example) is not int or not x.varies or self.dynamic is None or self.dynamic.numbers is None:
            return False
        return x.example > 1 if x.source is not None else x.fn in _ARITHMETIC and all(map(self.may_be_size, x.parts))

    def integer(self, x: t.Tracker) -> Any:
        """Return an integer that `may_be_size` as a `torch.SymInt`, or an int."""
        if type(x) is not t.SymbolicNumber or x.settled:
            return x.value  # type: ignore[attr-defined]
        if x.source is None:
            return x.fn(*map(self.integer, x.parts))  # type: ignore[misc]
        found = self.carriers.get(x.source)
        if found is None:
            assert self.dynamic is not None
            self.dynamic.made = self.dynamic.made_of_numbers = True
            size = symint(self.shapes.new_symbol(x.example, (x.source, "value", None)), self.shapes)
            found = self.carriers[x.source] = x, self.recorder.carrier(size)
        return found[1].shape[0]

    def size_guards(self) -> list[Guard]:
        """Return guards on what the graph assumes of its symbols: their ranges, and the relations that the environment
        was asked. Raises ContradictedMark if it assumes one value of a size that is marked to vary."""
        env = self.shapes
        for s in env.symbols:
            if s in self._marked and (fixing := env.fixed_by(s)) is not None:
                raise contradicted(self._marked[s], f"assumes that it is {env.hints[s.name]}",
                                   fixing.stack[-1][:2] if fixing.stack else None)
        bounds = []
        for s in [s for s in env.symbols if s.lo or s.hi is not None]:
            bare = Symbol(s.name, None, None)
            within = ge(bare, s.lo or 0) if s.hi is None else and_(ge(bare, s.lo or 0), le(bare, s.hi))
            bounds.append(Guard(None, "shape", (within, self._places([s]))))
        asked = [Guard(None, "shape", (g.rel, self._places([g.rel])), g.stack) for g in env.guards]
        return [*self._strides, *bounds, *asked]

    def refuse_unmarked(self, asked: DataDependent) -> None:
        """Raise ContradictedMark if the relation concerns a size that the program has marked as free of assumptions."""
        for s in sorted(asked.symbols, key=str):
            question = re.sub(rf"\b{s}\b", "it", asked.reason.partition(",")[0])
            raise contradicted(self._marked[s], f"asks {question}", asked.at)

    def _places(self, values: Any) -> dict[str, Place]:
        return {s.name: self.shapes.sources[s] for e in values for s in sorted(e.free, key=lambda s: s.name)}


def contradicted(what: str, how: str, at: tuple[str, int] | None) -> ContradictedMark:
    """Return the error for a program that uses a size marked as dynamic as a constant."""
    return ContradictedMark(f"{what} is marked to vary, but the program {how}", at=at,
                            hint="write this for any size, or use torch._dynamo.maybe_mark_dynamic or mark_static")


def _named(source: Source, dim: int) -> str:
    return f"size {dim} of {source}"


def _fixed(sizes: tuple[Any, ...]) -> tuple[int | None, ...]:
    return tuple([n if type(n) is int else None for n in sizes])


def size_text(rebuilder: Any, value: Any) -> str:
    """Return a value as an expression of residual code. A `torch.SymInt`, `SymBool` or `SymFloat`, also in tuples and
    lists, is an expression over sizes of inputs and over what the graph computes."""
    if type(value) is int:
        return repr(value)
    if isinstance(value, (tuple, list)):
        return "".join(["(", *(f"{size_text(rebuilder, n)}, " for n in value), ")"])
    if type(value) not in SYMBOLIC:
        return str(rebuilder.hold(value))
    if not isinstance(value.node, SymNode):
        return _read_foreign(rebuilder, value)
    e = value.node.expr
    if isinstance(e, Expr) and "m" not in e.text:  # a name like `max` may be the program's own
        return f"({_SYMBOL.sub(lambda found: _read(rebuilder, found[0]), e.text)})"
    values = ", ".join([f"{s.name!r}: {_read(rebuilder, s.name)}" for s in sorted(e.free, key=lambda s: s.name)])
    return f"{rebuilder.hold(e.evaluate)}({{{values}}})"


def _read_foreign(rebuilder: Any, value: Any) -> str:
    """Return the expression of a symbol of a class of tensors: the size of one that has it."""
    for x in [x for x in rebuilder.tracer.seen.values() if type(x) is t.WrapperTensor]:
        for d, n in enumerate(x.fake.shape):
            if type(n) is torch.SymInt and not isinstance(n.node, SymNode) and bool(n == value):
                return f"{rebuilder.value(x)}.shape[{d}]"
    raise Unsupported("a size that a class of tensors made up lives across the end of captured code")


def holders(rebuilder: Any, fakes: list[FakeTensor]) -> list[FakeTensor]:
    """Return the tensors of which residual code reads the symbols of data that are in the layouts of `fakes`."""
    env = rebuilder.tracer.shapes
    if not env.data:
        return []
    found = {s: None for x in fakes for n in (*x.shape, *x.stride(), x.storage_offset()) for s in expr_of(n).free
             if s in env.data - env.given}
    return [env.sources[s][0] for s in found]


def sizes_at(rebuilder: Any, given: list[FakeTensor]) -> dict[str, str]:
    """Return the expressions of symbols by name, where a graph gives these tensors."""
    env = rebuilder.tracer.shapes
    numbers = {id(env.sources[s][0]): s.name for s in env.data - env.given if env.sources[s][1] < 0}
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
    source, what, dim = place
    if what == "value":
        return f"({rebuilder.source(source)})"
    return f"{rebuilder.input(next(x for x in rebuilder.tracer.inputs if x.source == source))}.shape[{dim}]"
