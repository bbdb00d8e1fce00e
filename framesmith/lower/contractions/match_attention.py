"""Match attention that is written out, on a CUDA device, and replace it by attention with modified scores, which are
never stored.

The scores are f(matmul(q * s, k^T)): `f` is elementwise: biases and masks that are added, filled in or selected,
factors, casts, views in between. Its operands are as in `masked_attention`. Between the products everything is float32;
where eager rounds intermediate results, eager is less exact.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from framesmith.graph.attention import Scores
from framesmith.graph.dce import dce
from framesmith.graph.patterns import Match, Through, p, rewrite, tensors, values
from framesmith.lower.contractions.masked_attention import Masks, has_tiles, indices, place, tiled
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.contractions.pack_linear import static, value_of
from framesmith.lower.geometry import strides_of
from framesmith.prims.core import Spec
from framesmith.util.precision import HALF

aten = torch.ops.aten
_PRODUCTS = frozenset((aten.matmul.default, aten.bmm.default))
_CASTS = frozenset((aten._to_copy.default, aten.clone.default))
_VIEWS = frozenset((aten.view.default, aten.reshape.default, aten._unsafe_view.default))
_STEPS = frozenset((
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.masked_fill.Scalar,
    aten.masked_fill.Tensor, aten.where.self,
    aten.maximum.default, aten.minimum.default, aten.tanh.default,
))
_FLOATS = frozenset((*HALF, torch.float32))


[scores, v], [dim] = tensors("scores v"), values("dim")
softmax = (p.softmax.int | p._softmax.default)(scores, dim, ...).where(lambda node: static(value_of(node)))
weights = Through(_CASTS, softmax).where(lambda node: value_of(node).dtype in _FLOATS)
ATTENTION = (p.matmul.default | p.bmm.default)(weights, v)


def match_attention(graph: fx.Graph, tf32: bool) -> None:
    """Rewrite written-out attention, in place. `tf32`: products of float32 may be rounded to TF32."""
    if rewrite(graph, {ATTENTION: _tiled}, Masks(graph), tf32):
        dce(graph)


def _tiled(m: Match, masks: Masks, tf32: bool) -> fx.Node | None:
    """attention(f, s)(q, k, v, operands of f)"""
    shape = value_of(m[softmax]).shape
    steps = _steps(m[scores], prod(shape)) if m[dim] in (-1, len(shape) - 1) else None
    if steps is None or value_of(steps[0]).shape != shape:
        return None
    query, key, scale = _operands(m.graph, steps[0])
    inputs = query, key, m[v]
    if not has_tiles([*map(value_of, inputs)], tf32):
        return None
    modified, operands = _graph(m.graph, steps, masks)
    if modified is None:
        return None
    done = Scores(modified if len(steps) > 1 else None, None, None, (len(operands), 0, 0), scale, None, undefined=True,
                  tf32=tf32)
    return tiled(m.graph, m.root, inputs, done, operands)


def _steps(node: Any, count: int) -> list[fx.Node] | None:
    """Return the chain of nodes from the product of queries and keys to `node`, each read only by the next; None if
    there is none. `count`: of scores."""
    if not isinstance(node, fx.Node) or len(node.users) != 1 or not static(value_of(node)):
        return None
    value = value_of(node)
    if value.dtype not in _FLOATS or prod(value.shape) != count:
        return None
    if node.target in _PRODUCTS:
        return [node]
    if node.target not in _STEPS | _CASTS | _VIEWS or node.kwargs and node.target not in _CASTS:
        return None
    inputs = node.all_input_nodes[:1] if node.target in _VIEWS | _CASTS else node.all_input_nodes
    ways = [way for x in inputs if (way := _steps(x, count)) is not None]
    return [*ways[0], node] if len(ways) == 1 else None


def _operands(graph: fx.Graph, product: fx.Node) -> tuple[fx.Node, fx.Node, float]:
    """Return the query, the key with rows as they are multiplied, and the scalar factor taken out of them."""
    query, turned = product.args[:2]
    query, scale = _unscaled(query)
    turned, other = _unscaled(turned)
    value = value_of(turned)
    last = len(value.shape) - 1
    if turned.target is aten.transpose.int and {d % (last + 1)  # type: ignore[operator]
                                                for d in turned.args[1:]} == {last - 1, last}:
        key, more = _unscaled(turned.args[0])
        return query, key, scale * other * more
    with graph.inserting_before(product):
        shape, strides = [list(x) for x in (value.shape, strides_of(value))]
        for x in (shape, strides):
            x[-2:] = x[:-3:-1]
        key = Nodes(graph, product)(aten.transpose.int, (turned, -2, -1), tuple(shape), tuple(strides))
    return query, key, scale * other


def _unscaled(node: Any) -> tuple[fx.Node, float]:
    """Return `node` without a scalar factor or divisor, and the factor."""
    if node.target in (aten.mul.Tensor, aten.div.Tensor) and isinstance(number := node.args[1],
                                                                        (int, float)) and number:
        return node.args[0], float(number) if node.target is aten.mul.Tensor else 1 / number
    return node, 1.0


def _graph(graph: fx.Graph, steps: list[fx.Node], masks: Masks) -> tuple[fx.Graph | None, list[fx.Node]]:
    """Return the graph (scores, b, h, q, k, *operands) -> scores modified by the steps after the product; and the
    operands."""
    made = fx.Graph()
    shape, device = tuple(value_of(steps[0]).shape), value_of(steps[0]).device
    known: dict[fx.Node, fx.Node] = {steps[0]: place(made, "scores", shape, torch.float32, device)}
    indices(made, shape, device)
    operands: dict[fx.Node, fx.Node] = {}
    on_way = set(steps)
    for x in [x for step in steps[1:] for x in step.all_input_nodes if x not in on_way]:
        if x not in operands:
            value = value_of(x)
            if not static(value) or value.dtype not in _FLOATS | {torch.bool}:
                return None, []
            operands[x] = read = masks.of(x)
            known[x] = place(made, f"operand{len(operands)}", tuple(value_of(read).shape), value.dtype, device)
    for step in steps[1:]:
        if step.target in _CASTS:
            known[step] = known[step.args[0]]  # type: ignore[index]
            continue
        args = fx.node.map_arg(step.args, known.__getitem__)
        size = tuple(value_of(step).shape)
        known[step] = made.call_function(step.target, args)  # type: ignore[arg-type]
        known[step].meta["val"] = Spec.dense(size, torch.float32, device)
    made.output((known[steps[-1]],))
    return made, list(operands.values())
