"""The printer's state at a point of a kernel: the tile's dimensions, the names of values and symbols, and the
dimensions that each varies along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from framesmith.codegen.term_order import divisor_text
from framesmith.codegen.triton.fast_math import FastOps
from framesmith.codegen.triton.index import expr_text, fits, functions_in, greatest
from framesmith.codegen.triton.literal_params import divided, integer, real
from framesmith.codegen.triton.tile_shape import Dim, Form
from framesmith.codegen.triton.tuning import Config
from framesmith.codegen.triton.types import is_plain, operand, typed
from framesmith.loops.ir import Const, Op, Param
from framesmith.symbolic.expr import Expr, Symbol, linear
from framesmith.util.text import Indented

Dims = frozenset[str]
NONE: Dims = frozenset()
Place = tuple[str, Expr]  # of a buffer
FEW = 32  # rounds of a loop that may be written out, so that loads go on while others are waited for
BEYOND = 1 << 16  # how far a tile may reach beyond the end


@dataclass(frozen=True, slots=True)
class Aligned:
    """Accesses at `base + symbol` begin at a multiple of `width` elements in whole tiles (see `edges.py`)."""

    symbol: Symbol
    base: Expr
    width: int


@dataclass(slots=True)
class State:
    """`active`: dimensions of the tile in order (those with more than one element); a value has all of them, with one
    element along those that it does not vary along, or it is a scalar. `live`: dimension -> name of the mask of its
    elements that exist.

    `extents`: of axes and loaded indices. `limits`: see `Printed`. `wide`: indices have 64 bits. `nested`: stores that
    run for each element of the row. `fast`: see `fast_math`. `policies`: cache policies of loads and stores along the
    row. `aligned`: the accesses at which whole tiles of the row are aligned; `vector`: the same, within a vector;
    `shifted`: those of a tile that is a whole row and begins before it. `windows`: the number of accesses at constant
    offsets from a place, if there is no row; such a place has a name among the `values`. `marked`: numbers are, see
    `literal_params.py`; `running`: dimensions along which memory may run, element by element.
    """

    form: Form
    config: Config
    wide: bool
    out: Indented
    params: dict[str, Param]
    active: tuple[str, ...] = ()
    live: dict[str, str] = field(default_factory=dict)
    values: dict[Op | Place, str] = field(default_factory=dict)
    dims: dict[Op, Dims] = field(default_factory=dict)
    along: dict[Symbol, Dims] = field(default_factory=dict)
    names: dict[Symbol, str] = field(default_factory=dict)
    extents: dict[Symbol, Expr] = field(default_factory=dict)
    limits: dict[Expr, None] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    asserts: bool = False
    accumulators: dict[Op, tuple[str, ...]] = field(default_factory=dict)
    nested: set[Op] = field(default_factory=set)
    aligned: Aligned | None = None
    vector: Aligned | None = None
    shifted: Aligned | None = None
    fast: FastOps = field(default_factory=FastOps)
    marked: bool = False
    running: set[str] = field(default_factory=set)
    windows: Counter[Place] = field(default_factory=Counter)
    policies: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        every = [*self.form.grid, *([self.form.row] if self.form.row else [])]
        self.active = tuple(d.name for d in every if self.block(d.name) > 1)
        for d in every:
            for a in d.axes:
                self.along[a.symbol] = frozenset((d.name,)) & frozenset(self.active)
                self.extents[a.symbol] = a.extent
        for op, index in self.form.accesses():
            if self.form.row is None:
                self.windows[op.buffer, index - linear(index)[1]] += 1
            self.running |= {d.name for d in every
                             for a in d.axes if a.symbol in (index - a.symbol * _stride(index, a.symbol)).free}

    def block(self, name: str) -> int:
        """Return the number of elements of the tile along a dimension."""
        return self.config.blocks[name]

    def covers(self, d: Dim) -> bool:
        """Return whether blocks along `d` have no element beyond its end."""
        return d.extent.is_const and d.extent.const % self.block(d.name) == 0

    # ------------------------------------------------------------------------------------------------------------ texts

    def name(self, op: Op) -> str:
        """Return a fresh name for the value of `op`."""
        text = self.values[op] = f"v{len(self.values)}"
        return text

    def text(self, op: Op) -> str:
        """Return the value of `op` as an operand together with another of its type."""
        if type(op) is not Const:
            return self.values[op]
        text = operand(op.value, op.dtype)
        return real(text) if self.marked and op.value != 0 and is_plain(op.value, op.dtype) else text

    def whole(self, op: Op) -> str:
        """Return the value of `op` with an explicit type."""
        return typed(op.value, op.dtype) if type(op) is Const else self.values[op]

    def expr(self, e: Expr, loose: bool = False) -> str:
        """Return an index as text, in the required width. `loose`: see `Number`."""
        self.functions |= functions_in(e)
        how = True if self.wide else fits(e)
        if how is None:
            self.limits[greatest(e, self.extents) + BEYOND] = None
        names = {s: f"{self.names.get(s, s.name)}.to(tl.int64)" for s in e.free} if how is False else self.names
        return expr_text(e, names, partial(integer, loose=loose) if self.marked else str)

    def extent(self, d: Dim) -> str:
        """Return the number of elements along a dimension, as text."""
        return self.expr(d.extent, d.name not in self.running)

    def divided(self, d: Dim, by: Expr | None, modulo: Expr | None) -> str:
        """Return the index along `d`, divided and reduced; divisions by numbers of the text or by arguments are
        multiplications."""
        if self.marked and not self.wide and all(e is None or (e.is_const and e.const > 1) for e in (by, modulo)):
            return divided(d.name, None if by is None else by.const, None if modulo is None else modulo.const,
                           d.name not in self.running)
        divisor, extent = (None if e is None else str(e) if e.is_const else divisor_text(e, self.expr(e))
                           for e in (by, modulo))
        text = d.name if divisor is None else f"{d.name} // {divisor}"
        return text if extent is None else f"{f'({text})' if divisor else text} % {extent}"

    def end(self, row: Dim) -> str:
        """Return the end of a loop along `row`, as text: a constant if rounds are few enough to be unrolled."""
        few = row.extent.is_const and row.extent.const <= FEW * self.block(row.name)
        return str(row.extent) if few else self.extent(row)

    def steps(self, begin: object, end: object, by: object, ahead: bool = True) -> str:
        """Return the range of a loop, as text. `ahead`: loads may be prefetched over the number of stages."""
        text, stages = f"{begin}, {end}, {by}", self.config.stages
        return f"tl.range({text}, num_stages={stages})" if ahead and stages > 1 else f"range({text})"

    def slots(self, name: str) -> str:
        """Return the subscript that makes a range vary along dimension `name` of the tile."""
        if len(self.active) < 2:
            return ""
        return f"[{', '.join(':' if a == name else 'None' for a in self.active)}]"

    def shape(self, dims: Iterable[str]) -> str:
        """Return the shape of a value that varies along `dims`."""
        dims = frozenset(dims)
        return f"[{', '.join(f'{a.upper()}BLOCK' if a in dims else '1' for a in self.active)}]"

    def mask(self, dims: Dims, *more: str, row: str = "") -> str:
        """Return the condition that an element along `dims` exists, and the conditions `more`; "" if it always holds.
        `row`: another condition along the row."""
        live = {**self.live, "r": row} if row else self.live
        return " & ".join([*(live[d] for d in self.active if d in dims and d in live), *more])

    def is_shifted(self, index: Expr) -> bool:
        """Return whether the access at `index` uses the vectors of a tile that begins before its row."""
        of = self.shifted
        return of is not None and of.symbol in index.free and index - of.symbol is of.base

    # ------------------------------------------------------------------------------------------------------------- dims

    def of(self, *exprs: Expr) -> Dims:
        """Return the dimensions along which expressions vary."""
        return NONE.union(*(self.along.get(s, NONE) for e in exprs for s in e.free))

    def dims_of(self, *ops: Op) -> Dims:
        return NONE.union(*(self.dims.get(op, NONE) for op in ops))

    def define(self, op: Op, dims: Dims, text: str) -> None:
        """Print `op` as a value that varies along `dims`."""
        self.dims[op] = dims
        self.out.line(f"{self.name(op)} = {text}")


def _stride(index: Expr, symbol: Symbol) -> int:
    """Return the stride of `index` along `symbol` if it is known and more than one; else 0."""
    found = index.coeff(symbol) or 0
    return found if abs(found) > 1 else 0
