"""Attention with a mask, on a CUDA device, as attention with modified scores: a tiled kernel, which reads the mask
without expanding it.

The libraries' kernels take 36 to 88 µs where a tile that loads its part of the mask takes 30 (8 x 12 heads of 512 x
512, width 64, on an H200), and ten times as much where the rows of the mask have gaps. The libraries keep wide rows and
few rows. They receive a boolean mask as numbers, which they would convert in each layer, and a contiguous one.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from framesmith.graph.attention import LISTS, Attention, Scores
from framesmith.graph.dce import dce
from framesmith.graph.patterns import Match, rewrite
from framesmith.lower.attention import WIDEST
from framesmith.lower.contractions.attention import ATTENTION, causal, dropout, k, mask, q, scale, shared, v
from framesmith.lower.contractions.broadcast_dims import Known, narrowed
from framesmith.lower.contractions.pack_linear import static, value_of
from framesmith.lower.geometry import strides_of
from framesmith.prims.core import Spec
from framesmith.util.precision import HALF

aten = torch.ops.aten
FEWEST = 32
"""The least number of rows of scores for tiled kernels."""
MOST = (1 << 16) - 1
"""The maximal number of heads of all batches, an axis of the grid."""
NARROW = 64
"""The widest rows for which tiled kernels are faster than the library."""


def tile_masked_attention(graph: fx.Graph, tf32: bool) -> None:
    """Rewrite attention with a mask, in place. `tf32`: products of float32 may be rounded to TF32."""
    masks = Masks(graph)
    rewrite(graph, {ATTENTION: _tiled}, masks, tf32)
    masks.settle()


def _for_the_library(m: Match, masks: Masks) -> None:
    if not m[mask] or not static(value := value_of(m[mask])):
        return
    if value.dtype is torch.bool:
        m.root.replace_input_with(m[mask], masks.numbers(m[mask], value_of(m[q]).dtype))
    elif value.shape and value.shape[-1] != 1 and strides_of(value)[-1] != 1:
        m.root.replace_input_with(m[mask], masks.of(m[mask]))


class Masks:
    """Masks in the form that tiled kernels read: one element along uniform dimensions, contiguous rows. Many layers
    share one."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.narrow: Known = {}
        self.found: dict[fx.Node, fx.Node] = {}
        self.added: dict[tuple[fx.Node, torch.dtype], fx.Node] = {}

    def of(self, mask: fx.Node) -> fx.Node:
        """Return the converted mask, placed directly after the mask, for all its readers."""
        if mask in self.found:
            return self.found[mask]
        if not value_of(mask).shape:
            return mask
        with self.graph.inserting_before(_behind(mask)):
            found = narrowed(self.graph, mask, self.narrow)
            value = value_of(found)
            if found is not mask or value.shape[-1] != 1 and strides_of(value)[-1] != 1:
                found = self.graph.call_function(aten.clone.default, (found,),
                                                 {"memory_format": torch.contiguous_format})
                found.meta = {"stack": mask.meta.get("stack", ()),
                              "val": Spec.dense(value.shape, value.dtype, value.device)}
        self.found[mask] = found
        return found

    def numbers(self, mask: fx.Node, dtype: torch.dtype) -> fx.Node:
        """Return a boolean mask as numbers, converted once for all layers."""
        if (mask, dtype) not in self.added:
            value = value_of(mask)
            with self.graph.inserting_before(_behind(mask)):
                low, zero = [self._filled(x, dtype, value.device) for x in (-math.inf, 0.0)]
                found = self.graph.call_function(aten.where.self, (mask, zero, low))
            found.meta = {"stack": mask.meta.get("stack", ()), "val": Spec.dense(value.shape, dtype, value.device)}
            self.added[mask, dtype] = found
        return self.added[mask, dtype]

    def _filled(self, number: float, dtype: torch.dtype, device: torch.device) -> fx.Node:
        node = self.graph.call_function(aten.full.default, ([], number), {"dtype": dtype, "device": device})
        node.meta = {"val": Spec((), dtype, device, ())}
        return node

    def settle(self) -> None:
        """Remove the nodes that are no longer read."""
        if self.found:
            dce(self.graph)


def _behind(node: fx.Node) -> fx.Node:
    """Return the first insertion point after a node: the next node that is no placeholder."""
    place = node.next
    while place.op == "placeholder":
        place = place.next
    return place


def _tiled(m: Match, masks: Masks, tf32: bool) -> fx.Node | None:
    """attention(scores + mask)(q, k, v, mask), or attention(where mask)(q, k, v, mask) for a boolean mask."""
    scores, operands = _scores(m, masks, tf32)
    if scores is None:
        _for_the_library(m, masks)
        return None
    return tiled(m.graph, m.root, m[q, k, v], scores, operands)


def _scores(m: Match, masks: Masks, tf32: bool) -> tuple[Scores | None, list[fx.Node]]:
    """Return the modifications of the scores of a call that is computed in tiles, and the nodes that they read."""
    query, key, value = values = [*map(value_of, m[q, k, v])]
    if m[dropout] or not has_tiles(values, tf32, bool(m[shared])):
        return None, []
    wide = max(query.shape[3], value.shape[3]) > NARROW
    if query.dtype is not torch.float32 and (m[mask] is None or m[causal] or wide):
        return None, []
    shape = (*query.shape[:3], key.shape[2])
    factor = query.shape[3] ** -0.5 if m[scale] is None else float(m[scale])
    if m[mask] is None:
        return Scores(None, None, triangle(shape, query.device) if m[causal] else None, (0, 0, 0), factor, None,
                      causal=bool(m[causal]), tf32=tf32), []
    kind = value_of(m[mask]).dtype
    if not static(value_of(m[mask])) or not (kind is torch.bool or kind.is_floating_point):
        return None, []
    read = masks.of(m[mask])
    modified, chosen = _graph(shape, value_of(read)), kind is torch.bool
    return Scores(None if chosen else modified, None, modified if chosen else None, (0, 0, 1) if chosen else (1, 0, 0),
                  factor, None, tf32=tf32), [read]


def tiled(graph: fx.Graph, node: fx.Node, inputs: tuple[fx.Node, fx.Node, fx.Node], scores: Scores,
          operands: list[fx.Node]) -> fx.Node:
    """Replace `node` by tiled attention; a result of the graph keeps its layout, others have the query's."""
    inputs = original(inputs[0]), original(inputs[1]), original(inputs[2])
    q, _, v = map(value_of, inputs)
    total = Spec.dense(tuple(q.shape[:3]), torch.float32, q.device)
    size = (*q.shape[:3], v.shape[3])
    is_result = any(user.op == "output" for user in node.users)
    out_value = node.meta["val"] if is_result else Spec(size, q.dtype, q.device, _laid_out(size, strides_of(q)))
    with graph.inserting_before(node):
        call = graph.call_function(Attention(scores), (*inputs, *[None] * LISTS, *operands))
        call.meta = {**node.meta, "val": (out_value, total)}
        out = graph.call_function(operator.getitem, (call, 0))
    out.meta = {**node.meta, "val": out_value}
    return out


def original(node: fx.Node) -> fx.Node:
    """Return the source of a copy: tiled kernels read rows at any stride, if the elements of a row are contiguous."""
    while node.target is aten.clone.default and strides_of(value_of(source := node.args[0]))[-1] == 1:
        node = source  # type: ignore[assignment]
    return node


def _laid_out(size: tuple[int, ...], like: Any) -> tuple[int, ...]:
    """Return strides with contiguous rows, the other dimensions in the query's order."""
    strides, step = [0, 0, 0, 1], size[3]
    for dim in sorted(range(3), key=lambda d: (like[d], -d)):
        strides[dim], step = step, step * size[dim]
    return tuple(strides)


def has_tiles(values: list[Any], tf32: bool, shares: bool = False) -> bool:
    """Return whether tiled kernels support a query, a key and a value: half precision or TF32, with known sizes.
    `shares`: heads share keys."""
    kinds = {*HALF, torch.float32} if tf32 else {*HALF}
    if any(len(x.shape) != 4 for x in values) or not static(*values) or {x.dtype for x in values} - kinds:
        return False
    q, k, v = values
    alike = (len({x.dtype for x in values}) == 1 and q.shape[0] == k.shape[0] == v.shape[0]
             and k.shape[1:3] == v.shape[1:3])
    widest = WIDEST if q.dtype in HALF else WIDEST // 2
    heads = k.shape[1] > 0 and (q.shape[1] == k.shape[1] or shares and q.shape[1] % k.shape[1] == 0)
    wide = max(q.shape[3], v.shape[3]) <= widest and min(*q.shape, *k.shape, *v.shape) > 0
    return alike and heads and wide and q.shape[2] >= FEWEST and q.shape[0] * q.shape[1] <= MOST


def _graph(shape: tuple[int, ...], mask: Any) -> fx.Graph:
    """(scores, b, h, q, k, mask) -> scores + mask, or (b, h, q, k, mask) -> mask."""
    graph = fx.Graph()
    scores = None if mask.dtype is torch.bool else place(graph, "scores", shape, torch.float32, mask.device)
    indices(graph, shape, mask.device)
    found = place(graph, "mask", tuple(mask.shape), mask.dtype, mask.device)
    if scores is not None:
        found = graph.call_function(aten.add.Tensor, (scores, found))
        found.meta["val"] = Spec.dense(shape, torch.float32, mask.device)
    graph.output((found,))
    return graph


def triangle(shape: tuple[int, ...], device: torch.device) -> fx.Graph:
    """(b, h, q, k) -> k <= q."""
    graph = fx.Graph()
    *_, row, column = indices(graph, shape, device)
    size = (1, 1, *shape[2:])
    found = graph.call_function(aten.le.Tensor, (column, row))
    found.meta["val"] = Spec.dense(size, torch.bool, device)
    graph.output((found,))
    return graph


def indices(graph: fx.Graph, shape: tuple[int, ...], device: torch.device) -> list[fx.Node]:
    """Placeholders for the index along each dimension of scores."""
    sizes = [tuple([n if k == dim else 1 for k, n in enumerate(shape)]) for dim in range(4)]
    return [place(graph, name, size, torch.int64, device) for name, size in zip("bhqk", sizes)]


def place(graph: fx.Graph, name: str, size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> fx.Node:
    """Add a placeholder."""
    node = graph.placeholder(name)
    node.meta["val"] = Spec.dense(size, dtype, device)
    return node
