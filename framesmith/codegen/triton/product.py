"""Contractions as Triton programs: a tile of the result, the sum over k in parts, and the epilogue on the tile in
registers.

    pid -> the tile, down the columns of a band of 8 rows of tiles, so that programs side by side share operands in the
    L2 cache acc = tl.zeros((YBLOCK, XBLOCK), tl.float32)
    for start in range(0, K, RBLOCK):                       # what ends within a vector stands apart, with masks
        a, b = a tile of each operand
        acc = tl.dot(a, b, acc)

The operands and the body are blocks of the loop IR over their own two dimensions (`y` `r`, `r` `x`, `y` `x`), printed
by the same rows as all other kernels; masks are there only for sizes that the tile does not divide. Triton pipelines
the loads of the loop by `stages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from framesmith.codegen.term_order import divisor_text
from framesmith.codegen.triton.edges import VECTOR
from framesmith.codegen.triton.fast_math import fast_ops
from framesmith.codegen.triton.literal_params import integer
from framesmith.codegen.triton.state import Dims, State
from framesmith.codegen.triton.statements import STATEMENTS, place, statement
from framesmith.codegen.triton.tile_shape import Dim, Form
from framesmith.codegen.triton.tuning import Config
from framesmith.codegen.triton.types import type_row
from framesmith.loops.contract import Accumulator
from framesmith.loops.ir import Kernel, Load, Op
from framesmith.loops.product import MatrixProduct
from framesmith.symbolic.expr import Expr, ceildiv, linear, min_, prod, simplify_int
from framesmith.util.precision import HALF
from framesmith.util.text import Indented

BAND = 8  # rows of tiles that programs go through before the next band
RESULT: Dims = frozenset("yx")


def product_of(kernel: Kernel) -> MatrixProduct | None:
    """Return the contraction of `kernel`, if it has one."""
    last = kernel.body[-1] if kernel.body else None
    return last if type(last) is MatrixProduct else None


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a contraction's tile: `z` counts outer axes, one element in each program."""

    z: Dim | None
    y: Dim
    x: Dim
    r: Dim

    @classmethod
    def of(cls, kernel: Kernel, p: MatrixProduct) -> Shape:
        return cls(Dim("z", kernel.outer) if kernel.outer else None, Dim("y", (p.m,)), Dim("x", (p.n,)),
                   Dim("r", (p.k,)))

    def region(self, kernel: Kernel, *dims: Dim) -> Form:
        """Return the part of the program over `dims`."""
        return Form(kernel, (*filter(None, (self.z,)), *dims), None, ())

    @property
    def dims(self) -> tuple[Dim, ...]:
        return (*filter(None, (self.z,)), self.y, self.x, self.r)


def programs(shape: Shape, config: Config) -> Expr | int:
    """Return the number of programs that cover the result."""
    tiles = _count(shape, config)
    return simplify_int(min_(tiles, config.programs) if config.programs else tiles)


def _count(shape: Shape, config: Config) -> Expr:
    tiles = prod(ceildiv(d.extent, config.blocks[d.name]) for d in (shape.y, shape.x))
    return tiles * shape.z.extent if shape.z is not None else tiles


def write(kernel: Kernel, p: MatrixProduct, config: Config, wide: bool) -> State:
    """Print the body of the function, and return the final state with the text and its dependences."""
    shape = Shape.of(kernel, p)
    config = replace(config, blocks={"z": 1, **config.blocks})
    end = State(shape.region(kernel, shape.y, shape.x), config, wide, Indented("    "),
                {q.name: q for q in kernel.params}, marked=True)
    shared = {"marked": True, "values": end.values, "limits": end.limits, "functions": end.functions,
              "extents": end.extents}
    left, right = (
        State(shape.region(kernel, *dims), config, wide, end.out, end.params, **shared)  # type: ignore[arg-type]
        for dims in ((shape.y, shape.r), (shape.r, shape.x))
    )
    left.names[p.k.symbol], right.names[p.k.symbol] = "along", "down"
    with end.out.indent(), _tiles(end, shape):
        _place(end, shape)
        left.live |= end.live
        right.live |= end.live
        end.out.line("acc = tl.zeros([YBLOCK, XBLOCK], tl.float32)")
        _sum(left, right, shape.r, p)
        ops: list[Op] = [*kernel.body[:-1], *p.body]  # type: ignore[list-item]
        end.fast = fast_ops(ops, end.params)
        for op in ops:
            statement(end, op)
    end.asserts = end.asserts or left.asserts or right.asserts
    return end


# ------------------------------------------------------------------------------------------------------------- the tile


@contextmanager
def _tiles(s: State, shape: Shape) -> Iterator[None]:
    """Open the block that computes a program's tiles: one tile, or a loop over several, in which the loads of the next
    tile overlap the end of the last one."""
    first = f"tl.program_id(0){'.to(tl.int64)' if s.wide else ''}"
    if not s.config.programs:
        s.out.line(f"pid = {first}")
        yield
        return
    with s.out.block(f"for pid in tl.range({first}, {s.expr(_count(shape, s.config))}, {s.config.programs}, "
                     "flatten=True):"):
        yield


def _place(s: State, shape: Shape) -> None:
    """Print the indices of the tile's rows and columns, and of outer axes."""
    down, across = (s.expr(ceildiv(d.extent, s.block(d.name))) for d in (shape.y, shape.x))
    s.out.line(f"rows = {down}")
    s.out.line(f"band = {BAND} * {across}")
    if shape.z is not None:
        _outside(s, shape.z, across)
    s.out.line(f"first = pid // band * {BAND}")
    s.out.line(f"height = tl.minimum(rows - first, {BAND})")
    for d, at in ((shape.y, "(first + pid % band % height)"), (shape.x, "(pid % band // height)")):
        (axis,) = d.axes
        s.out.line(f"{axis.symbol} = ({at} * {d.name.upper()}BLOCK + tl.arange(0, "
                   f"{d.name.upper()}BLOCK)){s.slots(d.name)}")
        if not s.covers(d):
            s.live[d.name] = f"{d.name}_live"
            s.out.line(f"{d.name}_live = {axis.symbol} < {s.expr(d.extent)}")


def _outside(s: State, z: Dim, across: str) -> None:
    s.out.line(f"z = pid // (rows * {across})")
    s.out.line(f"pid = pid % (rows * {across})")
    rest = "z"
    for k, a in enumerate(reversed(z.axes)):
        last, extent = k == len(z.axes) - 1, divisor_text(a.extent, s.expr(a.extent))
        s.out.line(f"{a.symbol} = {rest}{'' if last else f' % {extent}'}")
        rest = f"({rest} // {extent})"


# -------------------------------------------------------------------------------------------------------------- the sum


def _sum(left: State, right: State, r: Dim, p: MatrixProduct) -> None:
    """Print the sum in parts, masked if that does not prevent vectors; else whole parts of k without a mask, and the
    remainder."""
    whole = p.k.extent // left.block("r") * left.block("r")
    short = whole.is_const and whole.const == 0
    if left.covers(r) or not short and _is_even(left, r, p):
        with left.out.block(f"for start in range(0, {left.expr(r.extent)}, RBLOCK):"):
            _accumulate(left, right, r, p, not left.covers(r))
        return
    if not short:
        with left.out.block(f"for start in range(0, {left.expr(whole)}, RBLOCK):"):
            _accumulate(left, right, r, p, False)
        for op in (*p.left, *p.right):
            left.values.pop(op, None)  # printed anew
    left.out.line(f"start = {left.expr(whole)}")
    _accumulate(left, right, r, p, True)


def _is_even(s: State, r: Dim, p: MatrixProduct) -> bool:
    """Return whether k ends at the end of a vector in every operand."""
    sizes = [s.params[op.buffer].dtype.itemsize for op in (*p.left, *p.right) if type(op) is Load]
    return r.extent.is_const and r.extent.const % (VECTOR // min(sizes, default=VECTOR)) == 0


def _accumulate(left: State, right: State, r: Dim, p: MatrixProduct, masked: bool) -> None:
    """Print one part of the sum over k."""
    out = left.out
    for s in (left, right):
        name = s.names[p.k.symbol]
        out.line(f"{name} = (start + tl.arange(0, RBLOCK)){s.slots('r')}{'.to(tl.int64)' if s.wide else ''}")
        if masked:
            s.live["r"] = f"{name}_live"
            out.line(f"{name}_live = {name} < {s.expr(r.extent)}")
    a, b = _operand(left, p.left, p), _operand(right, p.right, p)
    if p.dtype.itemsize < 4:
        out.line(f"acc = tl.dot({a}, {b}, acc)")
    elif p.tf32:  # matrix units cut what they should round
        left.functions.add("nearest_tf32")
        out.line(f'acc = tl.dot(nearest_tf32({a}), nearest_tf32({b}), acc, input_precision="tf32")')
    else:  # parts are added up apart, which errs less than one long sum
        out.line(f'acc += tl.dot({a}, {b}, input_precision="ieee")')


def _operand(s: State, block: tuple[Op, ...], p: MatrixProduct) -> str:
    """Print a tile of an operand in the type of the product, zeros beyond the end of k."""
    value = block[-1]
    for op in block:
        if type(op) is Load and not s.params[op.buffer].host:
            _load(s, op, raw=op is value and s.params[op.buffer].dtype is p.dtype)
        else:
            statement(s, op)
    text = s.whole(value)
    dims = frozenset(s.active)
    if s.dims_of(value) != dims:
        text = f"tl.broadcast_to({text}, {s.shape(dims)})"
    if type(value) is Load and s.params[value.buffer].dtype is p.dtype and not s.params[value.buffer].host:
        return text
    if "r" in s.live:
        text = f"tl.where({s.live['r']}, {text}, 0)"
    return f"({text}).to({type_row(p.dtype).name})"


def _load(s: State, op: Load, raw: bool) -> None:
    """Print a load that returns zeros where it is masked. `raw`: in the storage type."""
    dims = s.of(op.index)
    condition = op.args[0] if op.args else None
    start = linear(op.index)[1]
    start = start if start > 1 else 0
    memory = f"{op.buffer} + {integer(start)}" if start else op.buffer  # slices of one tensor have one kernel
    if condition is not None:
        dims = dims | s.dims_of(condition)
    at = place(s, memory, op.index - start, dims)
    mask = s.mask(dims, *([s.text(condition)] if condition is not None else []))
    text = f"tl.load({at}{f', {mask}, other=0' if mask else ''})"
    s.define(op, dims, text if raw or s.params[op.buffer].dtype not in HALF else f"{text}.to(tl.float32)")


def _accumulator(s: State, op: Accumulator) -> None:
    s.values[op], s.dims[op] = "acc", RESULT


STATEMENTS[Accumulator] = _accumulator
