"""The autograd history of values whose derivative was captured; see `graph.derivative`."""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import Node

from framesmith.fake.tensor import FakeTensor
from framesmith.graph.derivative import Pattern, Traced, cut_out, passed, refuse
from framesmith.graph.traversal import nodes_after

from .arms import like


def tangent() -> None:
    """Return a stand-in for a gradient, while a backward is captured."""


tangent.is_pure = True  # type: ignore[attr-defined]


def spare_region(tracer: Any, last: Node | None) -> list[Node]:
    """Return the nodes recorded after `last`, which compute a derivative and are not part of the program."""
    region = nodes_after(tracer.recorder.graph, last)
    for node in region:
        node.meta.update(spare=True, turn=tracer.turn)
    return region


def attach(tracer: Any, results: list[FakeTensor], inputs: list[Node], traced: dict[Pattern, Traced],
           zeros: bool) -> None:
    """Give `results` the history of a function of `inputs`."""
    before = [tracer.recorder.nodes(x) for x in results]
    derivative, operands = cut_out(traced, before, zeros)
    vals = tuple(map(like, results))
    node = tracer.recorder.emit(passed, (tuple(before), tuple(inputs), tuple(operands)), vals)
    tracer.turn += 1
    node.meta.update(grad=True, turn=tracer.turn, derivative=derivative)
    for k, x in enumerate(results):
        x._alias.node = tracer.recorder.emit(operator.getitem, (node, k), vals[k])
        x._alias.node.meta.update(grad=True, turn=tracer.turn)


def refusing(tracer: Any, results: list[FakeTensor], inputs: list[Node], message: str) -> None:
    """Let a derivative of `results`, which have storages of their own and are computed of `inputs`, be an error."""
    last, _ = tracer.end()
    tangents = [tracer.recorder.emit(tangent, (), like(x)) for x in results]
    grads: list[Node | None] = [tracer.recorder.emit(refuse, (n, message, *tangents), n.meta["val"]) for n in inputs]
    region = spare_region(tracer, last)
    attach(tracer, results, inputs, {(True,) * len(results): Traced(region, tangents, grads)}, True)
