"""Recurrent layers on a CUDA device whose weights are frozen casts: they are placed in the one contiguous buffer that
cuDNN requires.

Otherwise each call would copy them there. `_cudnn_rnn_flatten_weight` turns the casts into views of its result, which
nothing else writes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import fx

from framesmith.graph.freeze import is_parameter_expression
from framesmith.graph.patterns import Match, Operator, rewrite, values
from framesmith.lower.contractions.pack_linear import static, value_of
from framesmith.prims.core import Spec

aten = torch.ops.aten
_FLATTEN = aten._cudnn_rnn_flatten_weight.default
_MODES: dict[Any, int] = {aten.rnn_relu.input: 0, aten.rnn_tanh.input: 1, aten.lstm.input: 2, aten.gru.input: 3}
"""cuDNN's numbers of the cells."""


arguments = values("x state weights biases layers dropout train bidirectional batch_first")
LAYERS = Operator(*_MODES)(*arguments)


def flatten_rnn_weights(graph: fx.Graph) -> None:
    """Flatten the weights of every such layer, in place."""
    rewrite(graph, {LAYERS: _flattened})


def _flattened(m: Match) -> fx.Node | None:
    """_cudnn_rnn(x, casts, ..., _cudnn_rnn_flatten_weight(casts, ...), h, c, ...)"""
    x, state, weights, biases, layers, dropout, train, bidirectional, batch_first = m[tuple(arguments)]
    graph, node, group = m.graph, m.root, 4 if biases else 2
    count = layers * (2 if bidirectional else 1)
    if (train and dropout) or len(weights) != group * count or not all(map(_is_cast, weights)):
        return None
    first, hidden = value_of(weights[0]), value_of(weights[1]).shape[1]
    shapes = tuple([tuple(value_of(w).shape) for w in weights])
    geometry = (group, first.shape[1], _MODES[node.target], hidden, 0, layers, batch_first, bidirectional)
    size = _size(first.dtype, first.device, shapes, geometry)
    if not size:
        return None
    states = tuple(state) if node.target is aten.lstm.input else (state, None)
    memory = graph.call_function(_FLATTEN, (weights, *geometry))
    args = (x, weights, group, memory, *states, *geometry[2:6], batch_first, 0.0, False, bidirectional, [], None)
    new = graph.call_function(aten._cudnn_rnn.default, args)
    memory.meta = {"val": Spec((size,), first.dtype, first.device, (1,)), "stack": node.meta.get("stack", ())}
    results = tuple(node.meta["val"])
    new.meta = {"val": (*results, *[None] * (5 - len(results))), "stack": node.meta.get("stack", ())}
    return new


def _is_cast(weight: fx.Node) -> bool:
    """Return whether a weight is a frozen value, not a parameter's own memory."""
    return weight.target is aten._to_copy.default and is_parameter_expression(weight) and static(value_of(weight))


@cache
def _size(dtype: torch.dtype, device: torch.device, shapes: tuple[tuple[int, ...], ...],
          geometry: tuple[Any, ...]) -> int:
    """Return the number of elements in the buffer, by cuDNN; 0 if cuDNN does not run the layer."""
    with torch.no_grad(), torch._C._DisableAutocast():
        weights = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
        return _FLATTEN(weights, *geometry).numel() if torch.cudnn_is_acceptable(weights[0]) else 0
