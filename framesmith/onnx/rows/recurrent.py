"""Recurrent layers: a node of ONNX for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from framesmith.onnx.emitter import Emitter, NoForm, Value, shape_of
from framesmith.onnx.table import aten, row

recurrent = partial(row, "recurrent")
GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""The positions of ONNX's gates among eager's: iofc in ifgo, zrh in rzn."""


def _gates(m: Emitter, op: str, x: Value, size: int) -> Value:
    order = GATES[op]
    return m.concat([m.slice(x, 0, g * size, (g + 1) * size) for g in order], 0) if len(order) > 1 else x


def _layers(m: Emitter, op: str, x: Value, states: Sequence[Value], weights: Sequence[Value], biased: bool, layers: int,
            dropout: float, train: bool, bidirectional: bool, batch_first: bool, **how: Any) -> tuple[Value, ...]:
    if train and dropout:
        raise NoForm("a recurrent layer with dropout")
    directions = 2 if bidirectional else 1
    size, step = shape_of(weights[1])[1], len(weights) // (layers * directions)
    if step != (4 if biased else 2):
        raise NoForm("a recurrent layer with a projection")
    if batch_first:
        x = m.transpose(x, [1, 0, 2])
    last: list[list[Value]] = [[] for _ in states]
    for layer in range(layers):
        first = layer * directions
        given = [weights[(first + d) * step:(first + d + 1) * step] for d in range(directions)]
        parts: list[Any] = [m.concat([m.unsqueeze(_gates(m, op, part[k], size), 0) for part in given], 0)
                            for k in range(2)]
        parts.append(m.concat([m.unsqueeze(m.concat([_gates(m, op, v, size) for v in part[2:]], 0), 0)
                               for part in given], 0) if biased else None)
        begin = [m.slice(s, 0, first, first + directions) for s in states]
        made = m(op, x, *parts, None, *begin, hidden_size=size, outputs=1 + len(states),
                 direction="bidirectional" if bidirectional else "forward", **how)
        x = m("Reshape", m.transpose(made[0], [0, 2, 1, 3]), m.ints([0, 0, -1]))
        for row_, value in zip(last, made[1:], strict=True):
            row_.append(value)
    return (m.transpose(x, [1, 0, 2]) if batch_first else x, *[m.concat(parts, 0) for parts in last])


@recurrent(aten.lstm.input)
def _lstm(m: Emitter, x: Value, states: Sequence[Value], weights: Sequence[Value], *how: Any) -> tuple[Value, ...]:
    return _layers(m, "LSTM", x, states, weights, *how)


@recurrent(aten.gru.input)
def _gru(m: Emitter, x: Value, state: Value, weights: Sequence[Value], *how: Any) -> tuple[Value, ...]:
    return _layers(m, "GRU", x, [state], weights, *how, linear_before_reset=1)


def _plain(activation: str) -> Any:
    def emit(m: Emitter, x: Value, state: Value, weights: Sequence[Value], biased: bool, layers: int, dropout: float,
             train: bool, bidirectional: bool, batch_first: bool) -> tuple[Value, ...]:
        return _layers(m, "RNN", x, [state], weights, biased, layers, dropout, train, bidirectional, batch_first,
                       activations=[activation] * (2 if bidirectional else 1))

    return emit


recurrent(aten.rnn_tanh.input)(_plain("Tanh"))
recurrent(aten.rnn_relu.input)(_plain("Relu"))
