"""Tiled attention as Triton programs: an online softmax, and its gradients, with modifications of the scores inlined
into the loop.

    forward   a program has YBLOCK rows; tile after tile of XBLOCK columns: scores, their exponentials, the sum of
              values
    rows      the same for the gradient of the query
    columns   a program has XBLOCK columns, and goes over the rows that see them: gradients of keys and values

Exponentials are powers of two; `total` is the log2 of a row's sum, from which the gradients recompute each weight. With
lists of blocks, a program iterates only over the listed blocks, and masks only the partial ones.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from framesmith.codegen.triton.library import IMPORTS, texts_of
from framesmith.codegen.triton.state import NONE, State
from framesmith.codegen.triton.statements import statement
from framesmith.codegen.triton.tile_shape import Dim, Form
from framesmith.codegen.triton.tuning import Config, power
from framesmith.codegen.triton.types import type_row
from framesmith.loops.attention import BATCH, COLUMN, HEAD, ROW, SCORES, TANGENT, AttentionTiles, Layout
from framesmith.loops.ir import Const, Load, Op, Param
from framesmith.runtime.triton import TritonSource
from framesmith.util.text import Indented

LOG2E = 1 / math.log(2)
DIMS = {ROW: frozenset("y"), COLUMN: frozenset("x")}
TILE = frozenset("yx")
SIZES: dict[str, dict[int, tuple[int, int, int, int]]] = {
    "forward": {64: (128, 128, 4, 3), 128: (128, 128, 8, 2), 256: (64, 32, 4, 2)},
    "rows": {64: (64, 64, 4, 3), 128: (64, 64, 4, 2), 256: (32, 32, 4, 1)},
    "columns": {64: (64, 64, 4, 3), 128: (64, 64, 4, 2), 256: (32, 32, 4, 1)},
}
"""Rows and columns of a tile, warps and stages, by the width of a row."""
SMALL = {64: (64, 64, 4, 3), 128: (128, 32, 4, 3), 256: (64, 32, 4, 2)}
"""Tiles of a forward whose modifications load numbers for each score, which are in registers together with the
scores."""
WIDE: dict[str, dict[int, tuple[int, int, int, int]]] = {
    "forward": {64: (128, 32, 4, 3), 128: (128, 64, 8, 2), 256: (32, 32, 4, 1)},
    "rows": {64: (64, 32, 4, 2), 128: (32, 32, 4, 2), 256: (16, 32, 4, 1)},
    "columns": {64: (64, 32, 4, 2), 128: (32, 32, 4, 2), 256: (16, 32, 4, 1)},
}
"""Tiles for float32."""
WIDE_SMALL = {64: (128, 64, 8, 3), 128: (64, 64, 4, 2), 256: (32, 32, 4, 1)}
"""Tiles like `SMALL` for float32."""
LEAST = 16


def source_of(tiles: AttentionTiles, aligned: Sequence[bool]) -> tuple[TritonSource, tuple[int, int]]:
    """Return the kernel of a call, which takes its arguments in order, and the numbers of programs along x and y.
    `aligned`: which arguments begin at a multiple of 16 bytes."""
    p = _Printer(tiles)
    {"forward": _forward, "rows": _rows, "columns": _columns}[tiles.kind](p)
    head = ", ".join([*tiles.arguments, "YBLOCK: tl.constexpr", "XBLOCK: tl.constexpr"])
    name = f"attention_{tiles.kind}_{hashlib.sha256((str(p.s.out) + str(p.s.config)).encode()).hexdigest()[:8]}"
    text = IMPORTS + "".join("\n\n" + t for t in [*texts_of(p.s.functions),
                                                  f"@triton.jit\ndef {name}({head}):\n{p.s.out}"])
    signature = tuple([(n, type_row(x.dtype).pointer) for n, x in tiles.arguments.items()])
    blocks = (("YBLOCK", p.y), ("XBLOCK", p.x))
    config, divisible = p.s.config, tuple([k for k, good in enumerate(aligned) if good])
    return TritonSource(name, text, signature, blocks, divisible, config.warps, config.stages, p.s.asserts), p.grid


class _Printer:
    """The printer of attention kernels: the common part of the three kinds."""

    def __init__(self, tiles: AttentionTiles) -> None:
        self.tiles, self.given = tiles, tiles.arguments
        (self.batch, self.heads, self.m, self.e), (_, self.groups, self.n,
                                                   _) = self.given["q"].size, self.given["k"].size
        self.groups = self.heads // self.groups
        self.tf32 = self.given["q"].dtype is torch.float32
        usual, small = (WIDE, WIDE_SMALL) if self.tf32 else (SIZES, SMALL)
        sizes = small if self._loads() else usual[tiles.kind]
        size = min(k for k in sizes if max(self.e, self.given["v"].size[3]) <= k)
        self.y, self.x, warps, stages = sizes[size]
        self.y, self.x = min(self.y, max(power(self.m), LEAST)), min(self.x, max(power(self.n), LEAST))
        self.lists = self._lists(tiles.whole.scores.blocks)
        if self.lists:
            self.y, self.x = (min(size, _part(block)) for size, block in zip((self.y, self.x), self.lists))
        self.across = tiles.kind == "columns"
        dims = Dim("y", ()), Dim("x", ())
        form = Form(None, dims[::-1] if self.across else dims, None, ())  # type: ignore[arg-type]
        params = {name: Param(name, x.dtype, "r") for name, x in self.given.items()}
        self.s = State(form, Config({"y": self.y, "x": self.x}, warps, stages=stages), False, Indented("    "), params)
        self.s.live = {}
        rows, columns = self.lists or (self.y, self.x)
        if self.m % rows or self.m % self.y:
            self.s.live["y"] = "row_live"
        if self.n % columns or self.n % self.x:
            self.s.live["x"] = "column_live"
        extent, block = (self.n, self.x) if self.across else (self.m, self.y)
        self.grid = (-(-extent // block), self.batch * (self.heads // self.groups if self.across else self.heads))

    def _loads(self) -> bool:
        """Return whether a forward loads numbers for each score that it computes."""
        ops = [*self.tiles.score, *self.tiles.mask]
        loads = any(type(op) is Load and op.buffer not in (SCORES, TANGENT) for op in ops)
        return loads and self.tiles.kind == "forward" and self.tiles.whole.scores.blocks is None

    def _lists(self, blocks: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return the blocks of the lists, if tiles can divide them."""
        of = "rows" if self.tiles.kind == "columns" else "columns"
        there = blocks is not None and f"number_partial_{of}" in self.given
        return blocks if there and blocks and min(map(_part, blocks)) >= LEAST else None

    # -------------------------------------------------------------------------------------------------------- addresses

    def line(self, text: str) -> None:
        self.s.out.line(text)

    def width(self, name: str) -> int:
        """Return the width of a row of a matrix in a tile."""
        return max(power(self.given[name].size[3]), LEAST)

    def base(self, name: str, head: str) -> str:
        """Return the address of a matrix: of one batch and head."""
        x = self.given[name]
        terms = [f"{index}.to(tl.int64) * {stride}" for index, size,
                 stride in zip((BATCH, head), x.size, x.stride) if size > 1]
        return " + ".join([name, *terms])

    def rows(self, name: str, index: str, load: bool = True) -> str:
        """Return the access to whole rows `index` of a matrix at `name`_at: a load, or the pointers and the mask of a
        store."""
        x = self.given[name]
        width = self.width(name)
        depth = f"tl.arange(0, {width})[None, :]"
        masks = [f"({depth} < {x.size[3]})"] if width > x.size[3] else []
        if ("y" if index == "lines" else "x") in self.s.live:
            masks.append(f"({index}[:, None] < {x.size[2]})")
        place = f"{name}_at + {index}[:, None] * {x.stride[2]} + {depth}" + (f" * {x.stride[3]}" if x.stride[3] != 1
                                                                             else "")
        mask = f", {' & '.join(masks)}" if masks else ""
        return self.near(f"tl.load({place}{mask}{', other=0' if masks else ''})") if load else f"{place}|{mask}"

    def near(self, value: str, like: str = "") -> str:
        """Return a value as an operand of a product, in the type of another."""
        if self.tf32:
            self.s.functions.add("nearest_tf32")
            return f"nearest_tf32({value})"
        return f"{value}.to({like}.dtype)" if like else value

    def dot(self, left: str, right: str, more: str = "") -> str:
        """Return the product of two operands, added to `more`."""
        given = ", ".join([left, right, *[more] * bool(more), *["input_precision='tf32'"] * self.tf32])
        return f"tl.dot({given})"

    def put(self, name: str, index: str, value: str) -> None:
        place, mask = self.rows(name, index, load=False).split("|", 1)
        self.line(f"tl.store({place}, {value}.to({type_row(self.given[name].dtype).name}){mask})")

    def of_rows(self, name: str) -> str:
        """Return the pointers to one number for each row."""
        return f"{self.base(name, HEAD)} + lines * {self.given[name].stride[2]}"

    def load_rows(self) -> None:
        """Load the tangent, `total` and `delta` of the present rows."""
        mask = f", lines < {self.m}, other=0" if "y" in self.s.live else ""
        self.line(f"gs = {self.rows('g', 'lines')}")
        self.line(f"total_of = tl.load({self.of_rows('total')}{mask})")
        self.line("total_of = tl.where(total_of == float('-inf'), 0.0, total_of)")
        self.line(f"delta_of = tl.load({self.of_rows('delta')}{mask})")

    def index(self, name: str, first: str) -> None:
        """Print the rows or columns of the tile that begins at `first`."""
        dim, end, size = ("y", self.m, "YBLOCK") if name == ROW else ("x", self.n, "XBLOCK")
        lines = "lines" if name == ROW else "places"
        self.line(f"{lines} = {first} + tl.arange(0, {size})")
        self.line(f"{name} = {lines}{'[:, None]' if (name == ROW) is not self.across else '[None, :]'}")
        if dim in self.s.live:
            self.line(f"{name}_live = {name} < {end}")

    # ----------------------------------------------------------------------------------------------------------- scores

    def ahead(self) -> None:
        """Print, in a forward, the score-independent part of the modification before the product: Triton then gives it
        the layout of the product's result, rather than the reverse."""
        self.s.values.clear()
        late: set[Op] = set()
        for op in self.tiles.score if self.tiles.kind == "forward" else ():
            if type(op) is Load and op.buffer == SCORES or not late.isdisjoint(op.args):
                late.add(op)
            else:
                self.print([op], {})

    def block(self, ops: tuple[Op, ...], given: dict[str, str]) -> tuple[str, bool]:
        """Print a block, and return its value and whether it varies by element."""
        self.print(ops, given)
        value = ops[-1]
        return self.s.whole(value), type(value) is not Const and self.s.dims_of(value) == TILE

    def print(self, ops: Sequence[Op], given: dict[str, str]) -> None:
        """Print those of the operations that are not printed yet."""
        s = self.s
        for op in ops:
            for e in op.expressions:
                for symbol in e.free:
                    s.along.setdefault(symbol, DIMS.get(symbol.name, NONE))
            if type(op) is Load and op.buffer in given:
                s.values[op], s.dims[op] = given[op.buffer], TILE
            elif op not in s.values:
                statement(s, op)

    def scores(self, masked: bool) -> None:
        """Print `s`, the product's scores, and `t`, the modified scores in units of powers of two."""
        tiles, scale = self.tiles, self.tiles.whole.scores.scale
        if tiles.score:
            self.line(f"s = s * {scale!r}")
            value, whole = self.block(tiles.score, {SCORES: "s"})
            if tiles.score[-1].dtype.itemsize != 4 or not tiles.score[-1].dtype.is_floating_point:
                value = f"{value}.to(tl.float32)"
            self.line(f"t = {value} * {LOG2E!r}" if whole
                      else f"t = tl.zeros({self.s.shape(TILE)}, tl.float32) + {value} * {LOG2E!r}")
        else:
            self.line(f"t = s * {scale * LOG2E!r}")
        if masked and tiles.mask:
            self.line(f"t = tl.where({self.block(tiles.mask, {})[0]}, t, float('-inf'))")
        if "x" in self.s.live:
            self.line("t = tl.where(column_live, t, float('-inf'))")

    def back(self, masked: bool) -> None:
        """Print `ds`, the gradient of the product's scores without the scale, from that of the modified ones."""
        if self.tiles.gradient:
            value, _ = self.block(self.tiles.gradient, {SCORES: "s", TANGENT: "ds"})
            self.line(f"ds = tl.where(weights > 0, {value}, 0.0)")

    # ------------------------------------------------------------------------------------------------------------ loops

    @contextmanager
    def each(self, of: str, full: bool) -> Iterator[None]:
        """Print a loop over the tiles of one list, or over all tiles; `first` is the tile's beginning. `of`: columns or
        rows."""
        size, block, name = (self.n, self.x, "XBLOCK") if of == "columns" else (self.m, self.y, "YBLOCK")
        if self.lists is None:
            begin, end = self.seen(of, size)
            with self.s.out.block(f"for first in range({begin}, {end}, {name}):"):
                yield
            return
        rows, columns = self.lists
        mine, theirs = (rows, columns) if of == "columns" else (columns, rows)
        how = "full" if full else "partial"
        per = theirs // block
        number, table = f"number_{how}_{of}", f"list_{how}_{of}"
        self.line(f"block = start // {mine}")
        self.line(f"count = tl.load({self.entry(number)}) * {per}")
        self.line(f"entries = {self.entry(table)}")
        with self.s.out.block("for step in range(0, count):"):
            self.line(f"first = tl.load(entries + step // {per}) * {theirs} + step % {per} * {name}" if per > 1
                      else f"first = tl.load(entries + step) * {theirs}")
            yield

    def seen(self, of: str, size: int) -> tuple[str, str]:
        """Return the bounds of the columns that the present rows see, or of the rows that see the present columns:
        begin and end."""
        if not self.tiles.whole.scores.causal:
            return "0", str(size)
        return ("0", f"tl.minimum({size}, start + YBLOCK)") if of == "columns" else ("start // YBLOCK * YBLOCK",
                                                                                     str(size))

    def entry(self, name: str) -> str:
        """Return the address of the present block in a list."""
        x = self.given[name]
        terms = [f"{index} * {stride}" for index, size,
                 stride in zip((BATCH, HEAD, "block"), x.size, x.stride) if size > 1]
        return " + ".join([name, *terms])

    def passes(self, of: str) -> list[bool]:
        """Return the lists to iterate over, each as whether it lists full blocks."""
        return [True, False] if self.lists is not None and f"number_full_{of}" in self.given else [False]


def _part(block: int) -> int:
    """Return the largest power of two that divides a number."""
    return block & -block


def _where(p: _Printer, heads: int) -> None:
    p.line(f"{BATCH} = tl.program_id(1) // {heads}")


def _at_rows(p: _Printer) -> None:
    """Print the beginning of a program's rows. The last rows come first: they have the most work if later columns are
    masked."""
    _where(p, p.heads)
    p.line(f"{HEAD} = tl.program_id(1) % {p.heads}")
    p.line("start = (tl.num_programs(0) - 1 - tl.program_id(0)) * YBLOCK")
    p.index(ROW, "start")


def _forward(p: _Printer) -> None:
    with p.s.out.indent():
        _at_rows(p)
        p.line(f"q_at = {p.base('q', HEAD)}")
        for name in "kv":
            p.line(f"{name}_at = {p.base(name, f'({HEAD} // {p.groups})')}")
        p.line(f"qs = {p.rows('q', 'lines')}")
        p.line("best = tl.full([YBLOCK], float('-inf'), tl.float32)")
        p.line("sums = tl.zeros([YBLOCK], tl.float32)")
        p.line(f"acc = tl.zeros([YBLOCK, {p.width('v')}], tl.float32)")
        for full in p.passes("columns"):
            with p.each("columns", full):
                _forward_step(p, not full)
        undefined = p.tiles.whole.scores.undefined
        p.line(f"found = acc / {'sums' if undefined else 'tl.where(sums == 0.0, 1.0, sums)'}[:, None]")
        p.line(f"out_at = {p.base('out', HEAD)}")
        p.put("out", "lines", "found")
        mask = f", lines < {p.m}" if "y" in p.s.live else ""
        p.line(f"tl.store({p.of_rows('total')}, tl.where(sums == 0.0, float('-inf'), best + tl.log2(sums)){mask})")


def _tile(p: _Printer, masked: bool) -> None:
    """Print the scores of the tile of columns that begins at `first`."""
    p.index(COLUMN, "first")
    p.line(f"ks = {p.rows('k', 'places')}")
    p.ahead()
    p.line(f"s = {p.dot('qs', 'tl.trans(ks)')}")
    p.scores(masked)


def _forward_step(p: _Printer, masked: bool) -> None:
    _tile(p, masked)
    p.line("higher = tl.maximum(best, tl.max(t, 1))")
    p.line("base = tl.where(higher == float('-inf'), 0.0, higher)")
    p.line("weights = tl.exp2(t - base[:, None])")
    p.line("less = tl.exp2(best - base)")
    p.line("sums = sums * less + tl.sum(weights, 1)")
    p.line(f"vs = {p.rows('v', 'places')}")
    p.line(f"acc = {p.dot(p.near('weights', 'vs'), 'vs', 'acc * less[:, None]')}")
    p.line("best = higher")


def _rows(p: _Printer) -> None:
    with p.s.out.indent():
        _at_rows(p)
        for name in ("q", "g", "dq"):
            p.line(f"{name}_at = {p.base(name, HEAD)}")
        for name in "kv":
            p.line(f"{name}_at = {p.base(name, f'({HEAD} // {p.groups})')}")
        p.line(f"qs = {p.rows('q', 'lines')}")
        p.load_rows()
        p.line(f"acc = tl.zeros([YBLOCK, {p.width('k')}], tl.float32)")
        for full in p.passes("columns"):
            with p.each("columns", full):
                _tile(p, not full)
                p.line("weights = tl.exp2(t - total_of[:, None])")
                p.line(f"vs = {p.rows('v', 'places')}")
                p.line(f"ds = weights * ({p.dot('gs', 'tl.trans(vs)')} - delta_of[:, None])")
                p.back(not full)
                p.line(f"acc = {p.dot(p.near('ds', 'ks'), 'ks', 'acc')}")
        p.put("dq", "lines", f"(acc * {p.tiles.whole.scores.scale!r})")


def _columns(p: _Printer) -> None:
    heads = p.heads // p.groups
    with p.s.out.indent():
        _where(p, heads)
        p.line(f"shared = tl.program_id(1) % {heads}")
        p.line("start = tl.program_id(0) * XBLOCK")
        p.index(COLUMN, "start")
        for name in ("k", "v", "dk", "dv"):
            p.line(f"{name}_at = {p.base(name, 'shared')}")
        p.line(f"ks = {p.rows('k', 'places')}")
        p.line(f"vs = {p.rows('v', 'places')}")
        p.line(f"of_k = tl.zeros([XBLOCK, {p.width('k')}], tl.float32)")
        p.line(f"of_v = tl.zeros([XBLOCK, {p.width('v')}], tl.float32)")
        with p.s.out.block(f"for member in range({p.groups}):"):
            p.line(f"{HEAD} = shared * {p.groups} + member")
            for name in ("q", "g"):
                p.line(f"{name}_at = {p.base(name, HEAD)}")
            for full in p.passes("rows"):
                with p.each("rows", full):
                    _columns_step(p, not full)
        p.put("dk", "places", f"(of_k * {p.tiles.whole.scores.scale!r})")
        p.put("dv", "places", "of_v")


def _columns_step(p: _Printer, masked: bool) -> None:
    """Print a step over a transposed tile, so that the values summed over rows are the left operand of its product."""
    p.index(ROW, "first")
    p.line(f"qs = {p.rows('q', 'lines')}")
    p.load_rows()
    p.ahead()
    p.line(f"s = {p.dot('ks', 'tl.trans(qs)')}")
    p.scores(masked)
    p.line("weights = tl.exp2(t - total_of[None, :])")
    if "y" in p.s.live:
        p.line("weights = tl.where(row_live, weights, 0.0)")
    p.line(f"of_v = {p.dot(p.near('weights', 'gs'), 'gs', 'of_v')}")
    p.line(f"ds = weights * ({p.dot('vs', 'tl.trans(gs)')} - delta_of[None, :])")
    p.back(masked)
    p.line(f"of_k = {p.dot(p.near('ds', 'qs'), 'qs', 'of_k')}")


def fits(x: Layout) -> bool:
    """Return whether 32 bits hold every offset within one matrix."""
    return sum(max(n - 1, 0) * abs(stride) for n, stride in zip(x.size[2:], x.stride[2:])) < 2**31 - 2**16
