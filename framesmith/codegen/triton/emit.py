"""Kernels of a program as Triton functions: `print_kernels(program) -> tuple[Printed, ...]`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from framesmith.codegen.triton import edges, matmul_configs, online_softmax, partial_column_sums, reductions, scans
from framesmith.codegen.triton.fast_math import fast_ops
from framesmith.codegen.triton.index import LIMIT, fits
from framesmith.codegen.triton.kernel import MOST, PROGRAMS, Printed, module_text
from framesmith.codegen.triton.library import texts_of
from framesmith.codegen.triton.literal_params import plain
from framesmith.codegen.triton.product import Shape, product_of, programs, write
from framesmith.codegen.triton.scalar_params import kind_of, word_text
from framesmith.codegen.triton.state import State
from framesmith.codegen.triton.statements import statement
from framesmith.codegen.triton.steps import Block, blocks
from framesmith.codegen.triton.tile_shape import Dim, form
from framesmith.codegen.triton.tuning import STEP, Config, Sizes, choose
from framesmith.codegen.triton.types import type_row
from framesmith.loops.ir import EXTENT, Batch, Kernel, Op, Origin, Program, Reduce, Scan, part_symbol
from framesmith.loops.text import kernel_text, origins_of
from framesmith.symbolic.expr import Expr, Symbol, as_expr, ceildiv, simplify_int
from framesmith.util.text import Indented


def print_kernels(
    program: Program, configs: Mapping[Kernel, Config] | None = None, wide: bool = False, tiling: bool = True,
    sizes: Sizes | None = None
) -> tuple[Printed, ...]:
    """Print every distinct kernel of `program`, parallel to `Program.kernels`: with 64-bit indices if 32 bits never
    suffice (see `is_narrow`), or if `wide`. `configs`: instead of those of `tuning`, which depend on `sizes`, typical
    values of size symbols. Without `tiling`, grids have one dimension."""
    origins = origins_of(program)
    totals: dict[Kernel, int] = {}
    far: set[Kernel] = set()
    for step in program.steps:
        if isinstance(step, Batch):
            if max(step.sizes) >= LIMIT:
                far.add(step.kernel)
            totals[step.kernel] = max(sum(step.sizes), totals.get(step.kernel, 0))

    def printed(k: Kernel, wide: bool) -> Printed:
        own = origins.get(k, ())
        return print_kernel(k, wide=wide, batch=totals.get(k, 0), origins=own, config=(configs or {}).get(k),
                            tiling=tiling, sizes=sizes)

    first = [printed(k, wide or k in far) for k in program.kernels]
    return tuple([printed(k, True) if is_narrow(p) is False else p for k,
                  p in zip(program.kernels, first, strict=True)])


def is_narrow(kernel: Printed) -> bool | None:
    """Return whether the text is valid for all sizes (True), for none (False), or within its limits (None)."""
    if any(limit.lo is not None and limit.lo >= MOST for limit in kernel.limits):
        return False
    return True if all(limit.hi is not None and limit.hi < MOST for limit in kernel.limits) else None


def print_for(kernel: Kernel, sizes: Mapping[Symbol, int], **more: Any) -> Printed:
    """Print the kernel for the values `sizes` of size symbols: with 64-bit indices if 32 bits do not suffice. `more`:
    arguments of `print_kernel`."""
    printed = print_kernel(kernel, **more)
    return printed if all(limit.evaluate(sizes) < MOST for limit in printed.limits) else print_kernel(kernel, wide=True,
                                                                                                      **more)


def print_kernel(
    kernel: Kernel, *, batch: int = 0, wide: bool = False, origins: Sequence[Origin] = (), config: Config | None = None,
    tiling: bool = True, sizes: Sizes | None = None,
) -> Printed:  # fmt: skip
    """Print one kernel; `batch`: over the rows of a table, with that many elements in all; `wide`: with 64-bit indices;
    `config`: instead of the one of `tuning`, which depends on `sizes`.

    Raises CompileError for a kernel that has no tile program.
    """
    contraction = product_of(kernel)
    if contraction is not None:
        config = config or matmul_configs.choose(kernel, contraction)
        extents = [d.extent for d in Shape.of(kernel, contraction).dims]
        wide = wide or any(fits(e) is False for e in extents)
        s = write(kernel, contraction, config, wide)
        grid: tuple[Expr | int, ...] = (programs(Shape.of(kernel, contraction), config),)
        return _assembled(s, "product", tuple(config.blocks), grid, origins)
    shape = form(kernel, tiling, sizes)
    wide = wide or any(fits(d.extent) is False for d in (*shape.grid, *filter(None, (shape.row,))))
    config = config or choose(shape, batch)
    s = State(shape, config, wide, Indented("    "), {p.name: p for p in kernel.params}, marked=True)
    with s.out.indent():
        if batch:
            _batch(s)
        else:
            _body(s)
    grid = (PROGRAMS,) if batch else (_programs(s),)
    return _assembled(s, "pointwise" if shape.row is None else "rows", s.active, grid, origins, bool(batch))


def _assembled(
    s: State, kind: str, blocks: Sequence[str], grid: tuple[Expr | int, ...], origins: Sequence[Origin],
    batch: bool = False
) -> Printed:
    """Assemble the printed text to a module, with the data for its launch; `blocks`: the dimensions whose block sizes
    it takes as constants."""
    kernel, config, wide = s.form.kernel, s.config, s.wide
    integer = "i64" if wide else "i32"
    signature = [(p.name, kind_of(p.dtype) if p.host else type_row(p.dtype).pointer) for p in kernel.params]
    signature += [(str(x), integer) for x in kernel.symbols]
    constants = tuple((f"{name.upper()}BLOCK", s.block(name)) for name in blocks)
    if batch:
        signature = [("table", "*i64"), ("where", "*i32")]
    text = kernel_text(kernel) + repr((batch, wide, config))
    name = f"{kind}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    body, functions = str(s.out), tuple(texts_of(s.functions))
    text = module_text(name, signature, constants, functions, plain(body))
    pointers = tuple([k for k, (_, kind) in enumerate(signature) if kind.startswith("*")])
    element = config.blocks.get("x", 1) * config.parts if batch else None
    return Printed(
        name, text, tuple(signature), constants, grid, config.warps, config.stages, () if batch else kernel.symbols,
        pointers,
        () if batch else tuple(s.limits), s.asserts, element, tuple(origins), body, functions,
        vector=s.block("x") if s.form.vectors else 0,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- the grid


def _programs(s: State) -> Expr | int:
    """Return the numbers of programs that cover the grid, along x first. If the grid is split into parts, there is one
    for each part."""
    if s.form.kernel.parts:
        return s.form.kernel.parts
    total: Expr | int = 1
    for d in s.form.grid:
        total = ceildiv(d.extent, s.block(d.name)) * total
    return simplify_int(total)


def _grid(s: State) -> None:
    """Print the indices of the independent axes, and the masks of those that exist."""
    if not s.form.grid:
        return
    pid = _program(s)
    if len(s.form.grid) == 1:
        _dimension(s, s.form.grid[0], pid)
        return
    y, x = s.form.grid
    s.out.line(f"pid = {pid}")
    s.out.line(f"across = {s.expr(ceildiv(x.extent, s.block('x')), loose=True)}")
    _dimension(s, y, "(pid // across)")
    _dimension(s, x, "(pid % across)")


def _program(s: State) -> str:
    return f"tl.program_id(0){'.to(tl.int64)' if s.wide else ''}"


def _dimension(s: State, d: Dim, pid: str, whole: bool = False) -> None:
    block = s.block(d.name)
    text = pid if block == 1 else (f"{pid} * {d.name.upper()}BLOCK + tl.arange(0, "
                                   f"{d.name.upper()}BLOCK){s.slots(d.name)}")
    _indices(s, d, text, whole)


def _indices(s: State, d: Dim, text: str, whole: bool = False) -> None:
    """Print the index along `d`, `text`, the axes that it stands for, and which elements exist (`whole`: all)."""
    name = d.axes[0].symbol.name if len(d.axes) == 1 else d.name
    s.out.line(f"{name} = {text}")
    if s.block(d.name) > 1 and not whole and not s.covers(d):
        s.live[d.name] = f"{d.name}_live"
        s.out.line(f"{d.name}_live = {name} < {s.extent(d)}")
    if len(d.axes) == 1:
        return
    below = as_expr(1)
    for k, a in enumerate(reversed(d.axes)):
        s.out.line(f"{a.symbol} = {s.divided(d, below if k else None, a.extent if k < len(d.axes) - 1 else None)}")
        below = a.extent * below


# ------------------------------------------------------------------------------------------------------------- the body


def _body(s: State) -> None:
    row, persistent = s.form.row, s.config.persistent
    if (row is None and len(s.form.grid) == 1 and edges.is_ragged(s, s.form.grid[0])
        and edges.hinders_vectors(s.form.grid[0])):
        _whole_or_not(s, s.form.grid[0])
        return
    if s.form.kernel.parts:
        _walk(s)
        return
    _grid(s)
    if row is not None and persistent and not row.extent.is_const:
        _if_it_fits(s, row)
        persistent = False
    _passes(s, persistent)


def _if_it_fits(s: State, row: Dim) -> None:
    """Print a row of unknown length as one tile if it fits; sizes that are multiples of a vector have names that tell
    Triton."""
    even = sorted(row.extent.free, key=str) if s.config.even else []
    conditions = [f"({s.expr(row.extent)} <= RBLOCK)", *(f"({n} % {STEP} == 0)" for n in even)]
    with s.out.block(f"if {' & '.join(conditions)}:"):
        for n in even:
            s.out.line(f"{n}_even = {n} // {STEP} * {STEP}")
            s.names[n] = f"{n}_even"  # type: ignore[index]
        _passes(s, True)
        s.out.line("return")
    s.names.clear()
    s.values.clear()
    s.live.pop("r", None)


def _passes(s: State, persistent: bool) -> None:
    """Print all passes of a tile, with the row as one tile or in parts."""
    row = s.form.row
    if row is not None and persistent and not edges.shift(s, row):
        _indices(s, row, edges.range_text(s))
    ragged = row is not None and not persistent and edges.is_ragged(s, row)
    if ragged:
        assert row is not None
        edges.lead_in(s, row)
    parts = online_softmax.merged(blocks(s.form, persistent))
    s.fast = fast_ops([op for block in parts for op in block.ops], s.params)
    passes = [block for block in parts if block.loop]
    for block in parts:
        s.nested = block.nested
        if block.loop:
            assert row is not None
            s.policies = (LAST if block is passes[-1] else NOT_LAST) if s.config.kept and len(passes) > 1 else ("", "")
            _loop(s, row, block, ragged)
            s.policies = "", ""
            continue
        for op in block.ops:
            statement(s, op)


def _straight(s: State) -> list[Op]:
    """Print all operations, each once for a tile."""
    ops = [op for block in blocks(s.form, True) for op in block.ops]
    s.fast = fast_ops(ops, s.params)
    return ops


def _whole_or_not(s: State, d: Dim) -> None:
    """Print a variant without masks for programs whose tile is whole."""
    ops = _straight(s)
    s.out.line(f"pid = {_program(s)}")
    with s.out.block(f"if (pid + 1) * {d.name.upper()}BLOCK <= {s.expr(d.extent)}:"):
        _dimension(s, d, "pid", whole=True)
        for op in ops:
            statement(s, op)
    s.values.clear()
    with s.out.block("else:"):
        _dimension(s, d, "pid")
        for op in ops:
            statement(s, op)


# The cache policies by whether a pass over the row is the last to read it.
LAST = ', eviction_policy="evict_first"', ', eviction_policy="evict_first"'
NOT_LAST = ', eviction_policy="evict_last"', ""

# Operations with a state carried over the parts of a row: modules with `declare`, `accumulate` and `finish`.
ACCUMULATORS: dict[type, Any] = {Reduce: reductions, online_softmax.Online: online_softmax, Scan: scans}


def _loop(s: State, row: Dim, block: Block, ragged: bool) -> None:
    """Print one pass over the row in parts."""
    for op in block.ops:
        if type(op) in ACCUMULATORS:
            ACCUMULATORS[type(op)].declare(s, op)
    known = dict(s.values)
    for part in (edges.whole_tiles, edges.other_elements) if ragged else (_parts,):
        s.values = dict(known)
        with part(s, row):
            for op in block.ops:
                _inside(s, op)
    for op in block.ops:
        if type(op) in ACCUMULATORS:
            ACCUMULATORS[type(op)].finish(s, op)


@contextmanager
def _parts(s: State, row: Dim) -> Iterator[None]:
    """Print the loop over the parts of the row."""
    with s.out.block(f"for start in {s.steps(0, s.end(row), 'RBLOCK')}:"):
        _indices(s, row, f"start + {edges.range_text(s)}")
        yield


def _inside(s: State, op: Op) -> None:
    if type(op) in ACCUMULATORS:
        ACCUMULATORS[type(op)].accumulate(s, op)
    else:
        statement(s, op)


# ------------------------------------------------------------------------------------------------------- rows of a part


def _walk(s: State) -> None:
    """Print the loop over the rows of a part, some at a time, and then their sums."""
    row, (x,) = s.form.row, s.form.grid
    assert row is not None
    ops = _straight(s)
    s.out.line(f"{part_symbol(s.form.kernel.parts)} = {_program(s)}")
    _indices(s, row, edges.range_text(s))
    before, sums = partial_column_sums.steady(s, ops), partial_column_sums.sums(ops)
    for op in ops:
        if op in before:
            statement(s, op)
    for total in sums:
        partial_column_sums.declare(s, total)
    with partial_column_sums.loop(s, x, ops):
        _indices(s, x, "start" if s.block("x") == 1 else f"start + tl.arange(0, XBLOCK){s.slots('x')}")
        for op in ops:
            if op in sums:
                partial_column_sums.accumulate(s, op)  # type: ignore[arg-type]
            elif op not in before:
                statement(s, op)
    for total in sums:
        partial_column_sums.finish(s, total)


# ------------------------------------------------------------------------------------------------------ rows of a table


def _batch(s: State) -> None:
    """Print some blocks of one row of the table: row-invariant operations, and a loop over the blocks."""
    params = s.form.kernel.params
    s.out.line("row = tl.load(where + 2 * tl.program_id(0))")
    s.out.line(f"table += row * {len(params) + 1}")
    for k, p in enumerate(params):
        word = f"tl.load(table + {k})"
        if p.host:
            s.out.line(f"{p.name} = {word_text(word, p.dtype)}")
        else:
            s.out.line(f"{p.name} = tl.multiple_of({word}.to(tl.pointer_type({type_row(p.dtype).name})), 16)")
    ops = _straight(s)
    if not s.form.kernel.symbols:
        for op in ops:
            statement(s, op)
        return
    moving = next(k for k, op in enumerate(ops) if s.of(*op.expressions))
    for op in ops[:moving]:
        statement(s, op)
    s.out.line(f"{EXTENT} = tl.load(table + {len(params)}){'' if s.wide else '.to(tl.int32)'}")
    s.out.line(f"first = tl.load(where + 2 * tl.program_id(0) + 1) * {s.config.parts}")
    with s.out.block(f"for part in range(first, min(first + {s.config.parts}, tl.cdiv({EXTENT}, XBLOCK))):"):
        known = dict(s.values)
        with s.out.block(f"if (part + 1) * XBLOCK <= {EXTENT}:"):  # no mask, so vectors
            _dimension(s, s.form.grid[0], "part", whole=True)
            for op in ops[moving:]:
                statement(s, op)
        s.values = known
        with s.out.block("else:"):
            _dimension(s, s.form.grid[0], "part")
            for op in ops[moving:]:
                statement(s, op)
