"""Rewrite LSTM and GRU layers with frozen weights into the operators of csrc/rnn.cpp, where those were measured to be
faster.

    lstm(x, [h, c], weights, ...)  ->  framesmith::lstm(x, [h, c], [pack_rnn(weights of a layer and direction), ...],
    ...)

Initial states that are known zeros are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith import _C
from framesmith.graph.freeze import is_parameter_expression
from framesmith.graph.patterns import Match, Operator, values
from framesmith.lower.contractions.choice import CANDIDATES, Candidate, numbers
from framesmith.lower.contractions.geometry import HOST, VectorUnit
from framesmith.lower.contractions.pack_linear import Choose, Request, Rule, rewrites, surely_filled, usual
from framesmith.prims.core import Spec

aten = torch.ops.aten
library = torch.ops.framesmith
assert _C.LANES  # importing the core registers the operators

# Steps that a measurement runs: the time of each is the same.
MEASURED_STEPS = 16


@dataclass(frozen=True, slots=True)
class Cell:
    """An operator of recurrent layers: PyTorch's, ours, the gates, and the number of initial states."""

    eager: Any
    own: Any
    gates: int
    states: int


CELLS = {
    "lstm": Cell(aten.lstm.input, library.lstm.default, 4, 2),
    "gru": Cell(aten.gru.input, library.gru.default, 3, 1),
}


@dataclass(frozen=True, slots=True)
class Layers:
    """The arguments of a recorded call. `weights`: one group a layer and direction, [w_x, w_h] or [w_x, w_h, b_x,
    b_h]."""

    x: fx.Node
    states: tuple[fx.Node, ...]
    weights: tuple[tuple[fx.Node, ...], ...]
    bidirectional: bool
    batch_first: bool


arguments = values("x state weights biases layers dropout train bidirectional batch_first")


def _layers(m: Match, cell: Cell) -> Layers | None:
    """Return the call's arguments if it is plain inference: no dropout, no projection, float32 on the CPU, frozen
    weights, sizes that are never 0."""
    x, state, flat, biases, layers, dropout, train, bidirectional, batch_first = m[tuple(arguments)]
    states = tuple(state) if cell.states > 1 else (state,)
    group = 4 if biases else 2
    directions = 2 if bidirectional else 1
    if (train and dropout) or len(flat) != group * layers * directions:
        return None
    if not all(map(is_parameter_expression, flat)):
        return None
    tensors = [x.meta["val"], *(s.meta["val"] for s in states), *(w.meta["val"] for w in flat)]
    if any(t.dtype is not torch.float32 or t.device.type != "cpu" for t in tensors) or not surely_filled(*tensors):
        return None
    if len(tensors[0].shape) != 3 or type(tensors[0].shape[2]) is not int:
        return None
    weights = tuple(tuple(flat[i : i + group]) for i in range(0, len(flat), group))
    return Layers(x, states, weights, bidirectional, batch_first)


def _is_zeros(node: fx.Node) -> bool:
    return node.target is aten.zeros.default


def _rewriter(name: str) -> Rule:
    cell = CELLS[name]

    def rewrite(m: Match, choose: Choose) -> fx.Node | None:
        graph, node, found = m.graph, m.root, _layers(m, cell)
        if found is None:
            return None
        batch, steps = found.x.meta["val"].shape[:2] if found.batch_first else found.x.meta["val"].shape[1::-1]
        width, hidden = found.x.meta["val"].shape[2], found.weights[0][1].meta["val"].shape[1]
        directions = 2 if found.bidirectional else 1
        shape = (usual(batch), usual(steps), width, hidden, len(found.weights) // directions, directions,
                 len(found.weights[0]) // 2)
        if choose(Request(name, torch.float32, shape)) != "own":
            return None
        packed = [_pack(graph, node, group, cell.gates, choose.unit) for group in found.weights]
        states = [] if all(map(_is_zeros, found.states)) else list(found.states)
        args = (found.x, states, packed, hidden, found.bidirectional, found.batch_first)
        new = graph.call_function(cell.own, args)
        new.meta = {k: v for k, v in node.meta.items() if k != "frozen"}
        return new

    return rewrite


def _pack(graph: fx.Graph, like: fx.Node, group: tuple[fx.Node, ...], gates: int,
          unit: VectorUnit) -> fx.Node:
    shapes = [tuple(w.meta["val"].shape) for w in group]
    size = sum(-(-shapes[1][1] // unit.lanes) * unit.lanes * gates * rows for rows in (shapes[0][1], shapes[1][1], 2))
    node = graph.call_function(pack_rnn, (list(group), gates, unit.lanes))
    node.meta = {"val": Spec((size,), torch.float32, torch.device("cpu"), (1,)), "stack": like.meta.get("stack", ())}
    return node


def pack_rnn(weights: Sequence[torch.Tensor], gates: int, lanes: int) -> torch.Tensor:
    """Pack the weights of a layer and direction as csrc/rnn.cpp reads them, for vectors of so many floats: panels of
    `lanes` units, in each a row for each input, and in it a vector for each gate; then so for the states; then both
    biases."""
    if lanes == HOST.lanes:
        return library.pack_rnn(weights, gates)
    w_x, w_h, *biases = weights
    b_x, b_h = biases or [w_x.new_zeros(len(w_x))] * 2
    joined, apart = b_x + b_h, torch.zeros_like(b_h)
    if gates == CELLS["gru"].gates:  # the new gate scales the recurrent product with its bias
        new = slice(-w_h.shape[1], None)
        joined[new], apart[new] = b_x[new], b_h[new]

    def panels(w: torch.Tensor) -> torch.Tensor:
        rows = w.reshape(gates, -1, w[0].numel())
        rows = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[1] % lanes))
        return rows.unflatten(1, (-1, lanes)).permute(1, 3, 0, 2).reshape(-1)

    return torch.cat([panels(w) for w in (w_x, w_h, joined, apart)])


pack_rnn.is_pure = True  # type: ignore[attr-defined]


def _candidates(request: Request) -> dict[str, Candidate]:
    """Return the candidates: our layers and eager's call, as a module makes it, on random data."""
    batch, steps, width, hidden, layers, directions, pairs = request.shape
    cell = CELLS[request.kind]
    x = numbers(batch, min(steps, MEASURED_STEPS), width)
    states = [torch.zeros(layers * directions, batch, hidden) for _ in range(cell.states)]
    groups = []
    for layer in range(layers):
        for _ in range(directions):
            rows, depth = cell.gates * hidden, hidden * directions if layer else width
            group = [numbers(rows, depth), numbers(rows, hidden), numbers(rows), numbers(rows)]
            groups.append([w.div_(hidden**0.5) for w in group[: 2 * pairs]])
    packed = [library.pack_rnn(group, cell.gates) for group in groups]
    flat = [w for group in groups for w in group]
    first = states if cell.states > 1 else states[0]
    return {
        "aten": lambda: cell.eager(x, first, flat, pairs == 2, layers, 0.0, False, directions == 2, True),
        "own": lambda: cell.own(x, [], packed, hidden, directions == 2, True),
    }


for _name, _cell in CELLS.items():
    rewrites(Operator(_cell.eager)(*arguments))(_rewriter(_name))
    CANDIDATES[_name] = _candidates
