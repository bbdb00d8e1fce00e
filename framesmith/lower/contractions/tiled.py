"""Contractions of a lowered graph as nests: alternatives to library calls.

    out = addmm(bias, a, b)      tile      a nest with a `MatrixProduct`, whose epilogue the scheduler fuses
                                 prologue  the same, with what computes an operand in it
                                 parts N   a tile for each of N pieces of k, and a nest that adds them (few results,
                                           long sums)
                                 row       a reduction, where there is one row or one column

Convolutions over channels-last images are products, too: those with a kernel of one element as they are, others
(`Image`) with a left operand that is found in the image, position by position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import pi, prod, sqrt
from typing import Any

import torch

from framesmith.loops.build import Builder, Replay
from framesmith.loops.contract import Accumulator
from framesmith.loops.ir import Axis, Const, Load, Node, Op, Ref
from framesmith.loops.nest import Call, Compute, Item, LoopGraph, Storage
from framesmith.loops.product import MatrixProduct
from framesmith.lower.contractions.prologue import Prologues
from framesmith.lower.geometry import flat, same_layout
from framesmith.lower.layouts import channels_last
from framesmith.lower.windows import pair
from framesmith.symbolic.expr import Expr, as_expr
from framesmith.util.precision import HALF, on_matrix_units

aten = torch.ops.aten
Size = Any
Storages = Mapping[str, Storage]

FEW_TILES = 132  # of 64 by 64: as many results keep the chip busy without parts
SHORTEST_PART = 256  # of k
PARTS = (2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class ImageWindow:
    """A strided window on a buffer: element i is at `offset + i * stride`."""

    buffer: str
    stride: tuple[Size, ...]
    offset: Size
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Image:
    """The left operand of a convolution: m counts (image, line, column) of the result, k (line, column, channel) of the
    kernel. `size`: of the image, `lines` and `columns` of the result."""

    size: tuple[int, int, int, int]
    lines: int
    columns: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def element(self, b: Builder, w: ImageWindow, m: Any, k: Any) -> None:
        """Load element (m, k): zero where the kernel reaches beyond the image."""
        _, channels, *bounds = self.size
        m, k = as_expr(m), as_expr(k)
        at = (m // self.columns % self.lines, m % self.columns)
        position = (k // (channels * self.kernel[1]), k // channels % self.kernel[1])
        index, inside = [m // (self.columns * self.lines), k % channels], None
        for d in (0, 1):
            p = at[d] * self.stride[d] + position[d] * self.dilation[d] - self.padding[d]
            inside = b.both(inside, b.both(b.pred(-1, p), b.pred(p, bounds[d])))
            index.append(p)
        b.mask = None if type(inside) is Const and inside.value else inside
        b.load(w.buffer, flat(index, channels_last(self.size), w.offset), w.dtype)


@dataclass(frozen=True, slots=True)
class Contraction:
    """out[z, m, n] = sum over k of left[z, m, k] * right[z, k, n] (+ bias[z, m, n]); `batch` counts z. `activation`:
    applied to the result. `image`: the source of `left`. `rounded`: float32 may be rounded to TF32, whatever holds for
    other contractions."""

    batch: Size
    m: Size
    n: Size
    k: Size
    left: ImageWindow
    right: ImageWindow
    out: ImageWindow
    bias: ImageWindow | None = None
    activation: str = ""
    image: Image | None = None
    rounded: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return self.left.dtype


@dataclass(frozen=True, slots=True, eq=False)
class ContractionPlan:
    """The request of a nest to the scheduler: its last two axes are m and n of a `MatrixProduct`. Operands are over the
    nest's axes and k."""

    k: Axis
    left: tuple[Op, ...]
    right: tuple[Op, ...]
    dtype: torch.dtype
    tf32: bool
    reads: tuple[str, ...]

    def node(self, m: Axis, n: Axis, at: Callable[[Expr], Expr], body: tuple[Node, ...]) -> MatrixProduct:
        """Return the node over the kernel's axes; `at` takes an expression over the nest's axes to one over these."""
        return MatrixProduct(m, n, self.k, _moved(self.left, at), _moved(self.right, at), self.dtype, self.tf32, body)


def _moved(ops: Sequence[Op], at: Callable[[Expr], Expr]) -> tuple[Op, ...]:
    builder = Builder()
    replay = _Moving(builder, {}, {})
    replay.at = at
    replay.run(ops)
    return tuple(builder.ops)


class _Moving(Replay):
    __slots__ = ("at",)
    at: Callable[[Expr], Expr]

    def expr(self, e: Expr) -> Expr:
        return self.at(e)


# ------------------------------------------------------------------------------------------------ calls as contractions


def _window(storages: Storages, ref: Any, shape: Sequence[Size] | None = None) -> ImageWindow | None:
    """Return a tensor argument as a window, broadcast to `shape`; None for one of another device or dtype than its
    buffer."""
    if type(ref) is not Ref and not isinstance(ref, str):
        return None
    s = storages[ref if isinstance(ref, str) else ref.name]
    base = storages[s.base] if s.base is not None else s
    if base.dtype is not s.dtype or base.device is not None:
        return None
    stride = tuple(s.stride)
    if shape is not None:
        lead = len(shape) - len(s.size)
        stride = (0,) * lead + tuple(0 if size == 1 else step for size, step in zip(s.size, stride))
    return ImageWindow(base.name, stride, s.offset if s.kind == "view" else 0, s.dtype)


def _product(call: Call, storages: Storages) -> Contraction | None:
    """Match mm and bmm, or addmm and baddbmm, whose first argument is added."""
    if call.kwargs:
        return None
    *bias, a, b = call.args
    (rows, columns), out = (storages[x.name].size for x in (a, b)), call.outputs[0]
    if out is None:
        return None
    shape = (*rows[:-1], columns[-1])
    added = [_window(storages, x, shape) for x in bias]
    left, right, target = _window(storages, a), _window(storages, b), _window(storages, out)
    if left is None or right is None or target is None or None in added:
        return None
    batch = rows[0] if len(rows) == 3 else 1
    return Contraction(batch, rows[-2], columns[-1], rows[-1], left, right, target, added[0] if added else None)


def _widened(call: Call, storages: Storages) -> Contraction | None:
    """Match half-precision mm and bmm with float32 results."""
    return _product(replace(call, args=call.args[:-1]), storages)


def _activated(call: Call, storages: Storages) -> Contraction | None:
    """Match an addmm with its activation."""
    c = _product(replace(call, kwargs={}), storages)
    return replace(c, activation="gelu" if call.kwargs.get("use_gelu") else "relu") if c is not None else None


def _convolution(call: Call, storages: Storages) -> Contraction | None:
    """Match a convolution on matrix units over channels-last images and weights."""
    args = (*call.args, *_CONV2D[len(call.args) :]) if call.target is aten.conv2d.default else call.args
    image, weight, bias, stride, padding, dilation, *rest = args
    plain = rest == [1] if call.target is aten.conv2d.default else rest == [False, (0, 0), 1]
    out = call.outputs[0]
    if out is None or not plain or bias is not None or call.kwargs or isinstance(padding, str):
        return None
    x, w, y = (storages[name] for name in (image.name, weight.name, out))
    if len(x.size) != 4 or any(type(size) is not int for size in x.size) or not on_matrix_units(x.dtype, x.size[1],
                                                                                                w.size[0]):
        return None
    if not all(same_layout(s.size, s.stride, channels_last(s.size)) for s in (x, y, w)):
        return None
    left, right, target = _window(storages, image), _window(storages, weight), _window(storages, out)
    if left is None or right is None or target is None:
        return None
    _, c, *kernel = w.size
    k = c * prod(kernel)
    found = Image(x.size, y.size[2], y.size[3],  # type: ignore[arg-type]
                  *map(pair, (kernel, stride, padding, dilation)))
    same = found.kernel == (1, 1) == found.stride and found.padding == (0, 0)
    left, target = (replace(one, stride=(channels, 1)) for one, channels in ((left, c), (target, y.size[1])))
    right = replace(right, stride=(1, k))
    return Contraction(1, prod(y.size) // y.size[1], y.size[1], k, left, right, target, image=None if same else found,
                       rounded=True)


_CONV2D: tuple[Any, ...] = (None, None, None, (1, 1), (0, 0), (1, 1), 1)
"""The defaults of the arguments of `conv2d`."""

CONTRACTIONS: dict[Any, Callable[[Call, Storages], Contraction | None]] = {
    **dict.fromkeys((aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default), _product),
    **dict.fromkeys((aten.mm.dtype, aten.bmm.dtype), _widened),
    aten._addmm_activation.default: _activated,
    **dict.fromkeys((aten.convolution.default, aten.conv2d.default), _convolution),
}


def contraction_of(call: Any, storages: Storages) -> Contraction | None:
    """Return the contraction that a call computes, if nests can compute it; else None."""
    row = CONTRACTIONS.get(call.target) if isinstance(call, Call) else None
    found = row(call, storages) if row is not None else None
    if found is None or any(type(s) is int and s == 0 for s in (found.batch, found.m, found.n, found.k)):
        return None
    kinds = {w.dtype for w in (found.left, found.right, found.bias) if w is not None}
    return found if len(kinds) == 1 and kinds <= {torch.float32, *HALF} and found.out.dtype in (found.dtype,
                                                                                                torch.float32) else None


# ----------------------------------------------------------------------------------------------------------------- ways

FEW_ROWS = 256  # rows or columns up to which an operand is computed for few tiles


def is_computed(graph: LoopGraph, place: int, c: Contraction, size: Callable[[Size], int]) -> bool:
    """Return whether a nest computes an operand that may be worth recomputing for each tile: it reads less than it
    writes, or few tiles share an operand."""
    prologues = Prologues(graph.items)
    for w, others in ((c.left, c.n), (c.right, c.m)) if c.image is None else ():
        nest = prologues.nest(w.buffer, place)
        if nest is not None:
            read = max((graph.storages[op.buffer].dtype.itemsize for op in nest.loads), default=0)
            if read < w.dtype.itemsize or size(others) <= FEW_ROWS:
                return True
    return False


def ways(c: Contraction, size: Callable[[Size], int], computed: bool = False) -> tuple[str, ...]:
    """Return the names of the ways to compute `c` that may be fast; `size` estimates a symbolic size. `computed`:
    include a prologue."""
    batch, m, n, k = map(size, (c.batch, c.m, c.n, c.k))
    found = ["row"] if c.image is None and min(m, n) == 1 and type(c.m if m == 1 else c.n) is int else ["tile"]
    tiles = batch * -(-m // 64) * -(-n // 64)
    if computed:
        found.insert(1, "prologue")
    if found[0] == "tile" and 2 * tiles <= FEW_TILES and type(c.k) is int:
        found += [f"parts {p}" for p in PARTS if c.k % p == 0 and c.k // p >= SHORTEST_PART
                  and p * tiles <= 4 * FEW_TILES]
    return tuple(found)


def replaced(graph: LoopGraph, chosen: Mapping[int, str], tf32: bool) -> LoopGraph:
    """Return `graph` with the items at the places in `chosen` computed in the ways named there. `tf32`: see
    `MatrixProduct`."""
    storages, prologues = dict(graph.storages), Prologues(graph.items)
    items: list[Item] = []
    for place, item in enumerate(graph.items):
        way = chosen.get(place)
        c = contraction_of(item, storages) if way is not None else None
        if c is None or way is None or not isinstance(item, Call):
            items.append(item)
            continue
        _own(storages, c.out.buffer, graph.outputs)
        name, _, count = way.partition(" ")
        given = _Given(c, tf32, storages, int(count or 1), prologues if name == "prologue" else None, place)
        items += [replace(nest, origins=item.origins) for nest in _WAYS[name](given)]
    return replace(graph, storages=storages, items=items)


@dataclass(frozen=True, slots=True)
class _Given:
    """A contraction, the item at `place` of its graph, to be computed in one way. `storages` receives further buffers;
    `count`: the number of parts; `prologues`: to be fused, if any."""

    c: Contraction
    tf32: bool
    storages: dict[str, Storage]
    count: int
    prologues: Prologues | None
    place: int

    def plan(self, k: Axis, left: Sequence[Any], right: Sequence[Any]) -> ContractionPlan:
        """Return the request to the scheduler, for operands at the indices `left` and `right`."""
        blocks = [self._image(*left) if self.c.image is not None else self._operand(self.c.left, left),
                  self._operand(self.c.right, right)]
        reads = dict.fromkeys(op.buffer for block in blocks for op in block if type(op) is Load)
        tf32 = self.c.dtype is torch.float32 and (self.tf32 or self.c.rounded)
        return ContractionPlan(k, blocks[0], blocks[1], self.c.dtype, tf32, tuple(reads))

    def _image(self, m: Any, k: Any) -> tuple[Op, ...]:
        b = Builder()
        assert self.c.image is not None
        self.c.image.element(b, self.c.left, m, k)
        return tuple(b.ops)

    def _operand(self, w: ImageWindow, index: Sequence[Any]) -> tuple[Op, ...]:
        at = _at(w, index)
        block = self.prologues.block(w.buffer, at, self.place, w.dtype) if self.prologues is not None else None
        if block is None:
            b = Builder()
            b.load(w.buffer, at, w.dtype)
            block = tuple(b.ops)
        return block


def _own(storages: dict[str, Storage], name: str, outputs: Collection[Any]) -> None:
    """Return the storage of a result that an operator would have allocated."""
    s = storages[name]
    if s.kind == "result":
        bases = {storages[o.name].base or o.name for o in outputs if type(o) is Ref}
        storages[name] = replace(s, kind="output" if name in bases else "arena")


def _grid(c: Contraction) -> tuple[list[Axis], list[Any]]:
    """Return the axes of all results, and the index (z, m, n) over them."""
    batch = [] if type(c.batch) is int and c.batch == 1 else [Axis.of("z", c.batch)]
    axes = [*batch, Axis.of("m", c.m), Axis.of("n", c.n)]
    return axes, [a.symbol for a in axes]


def _at(w: ImageWindow, index: Sequence[Any]) -> Expr:
    index = (*[0] * (len(w.stride) - len(index)), *index)
    return flat(index[len(index) - len(w.stride) :], w.stride, w.offset)


def _end(c: Contraction, b: Builder, value: Op, index: Sequence[Any]) -> None:
    if c.bias is not None:
        value = b.scalar("add", value, b.load(c.bias.buffer, _at(c.bias, index), c.bias.dtype))
    b.store(c.out.buffer, _at(c.out, index), _ACTIVATIONS[c.activation](b, value))


def _gelu(b: Builder, x: Op) -> Op:
    """GELU by tanh."""
    cube = b.scalar("mul", b.scalar("mul", x, x), x)
    inner = b.scalar("add", x, b.scalar("mul", cube, b.const(0.044715, torch.float32)))
    bent = b.scalar("tanh", b.scalar("mul", inner, b.const(sqrt(2 / pi), torch.float32)))
    return b.scalar("mul", b.scalar("mul", x, b.const(0.5, torch.float32)),
                    b.scalar("add", bent, b.const(1.0, torch.float32)))


_ACTIVATIONS: dict[str, Callable[[Builder, Op], Op]] = {"": lambda b, x: x, "relu": lambda b, x: b.scalar("relu", x),
                                                        "gelu": _gelu}


def _tile(given: _Given) -> list[Compute]:
    c = given.c
    axes, index = _grid(c)
    *z, m, n = index
    k = Axis.of("ik", c.k)
    plan = given.plan(k, (*z, m, k.symbol), (*z, k.symbol, n))
    b = Builder()
    accumulator = Accumulator()
    b.ops.append(accumulator)
    _end(c, b, accumulator, index)
    return [Compute(tuple(axes), (), (), tuple(b.ops), contract=plan)]


def _parts(given: _Given) -> list[Compute]:
    """Return a batch of products over pieces of k in float32, and their sum: results are deterministic."""
    c, count, storages = given.c, given.count, given.storages
    axes, index = _grid(c)
    *z, m, n = index
    piece, k = Axis.of("part", count), Axis.of("ik", c.k // count)
    at = piece.symbol * (c.k // count) + k.symbol
    plan = given.plan(k, (*z, m, at), (*z, at, n))
    name = f"part_{len(storages)}"
    shape = (count, *(a.extent.const if a.extent.is_const else a.extent for a in axes))
    stride = [as_expr(1)]
    for extent in reversed(shape[1:]):
        stride.insert(0, stride[0] * extent)
    storages[name] = Storage(name, torch.float32, shape, tuple(s.const if s.is_const else s for s in stride), "arena")
    place = flat((piece.symbol, *index), stride)
    b, inner, after = Builder(), Builder(), Builder()
    accumulator = Accumulator()
    b.ops.append(accumulator)
    b.store(name, place, accumulator)
    total = inner.reduce("sum", (inner.load(name, place, torch.float32),), torch.float32)
    _end(c, after, total, index)
    return [
        Compute((piece, *axes), (), (), tuple(b.ops), contract=plan),
        Compute(tuple(axes), (piece,), tuple(inner.ops), tuple(after.ops)),
    ]


def _row(given: _Given) -> list[Compute]:
    c = given.c
    every, index = _grid(c)
    gone = {a.symbol for a in every[-2:] if a.extent.is_const and a.extent.const == 1}
    index = [0 if s in gone else s for s in index]
    axes = tuple(a for a in every if a.symbol not in gone)
    *z, m, n = index
    k = Axis.of("k", c.k)
    inner, after = Builder(), Builder()
    left = inner.load(c.left.buffer, _at(c.left, (*z, m, k.symbol)), c.dtype)
    right = inner.load(c.right.buffer, _at(c.right, (*z, k.symbol, n)), c.dtype)
    total = inner.reduce("sum", (inner.scalar("mul", left, right),), torch.float32)
    _end(c, after, total, index)
    return [Compute(axes, (k,), tuple(inner.ops), tuple(after.ops))]


_WAYS: dict[str, Callable[[_Given], list[Compute]]] = {"tile": _tile, "prologue": _tile, "parts": _parts, "row": _row}
