"""Assertions on the data of tensors: the graph computes their conditions, residual code checks them before it has any
effect, and if one is false, the whole frame runs again in plain Python, with its own effects and exception. Before
that, the states of the default generators that the graph drew from are restored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from framesmith.fake.schema import draws
from framesmith.util.generators import restore, states_of

STATES = "__fs_states"


def checks(rebuilder: Any, plain: Callable[[], str]) -> list[str]:
    """Return the statements of residual code that check the conditions; `plain` gives the call that runs the user's
    code instead."""
    if not rebuilder.tracer.checks:
        return []
    conditions = " and ".join([f"{rebuilder.hold(bool)}({text})" for text in rebuilder.values(rebuilder.tracer.checks)])
    rebuilder.drawn_from = _drawn(rebuilder.tracer)
    return [f"if not ({conditions}):", *(f"    {line}" for line in [*back(rebuilder), f"return {plain()}"])]


def before(rebuilder: Any) -> list[str]:
    """Return the statements that save the states of the generators that may have to be restored."""
    return ([f"{STATES} = {rebuilder.hold(states_of)}({rebuilder.hold(rebuilder.drawn_from)})"] if rebuilder.drawn_from
            else [])


def back(rebuilder: Any) -> list[str]:
    """Return the statements that restore the generators."""
    return [f"{rebuilder.hold(restore)}({STATES})"] if rebuilder.drawn_from else []


def drawing(nodes: Iterable[Node]) -> list[Node]:
    """Nodes that draw random numbers."""
    return [n for n in nodes if isinstance(n.target, torch._ops.OpOverload)  # type: ignore[arg-type]
            and draws(n.target, n.args, n.kwargs)]


def _drawn(tracer: Any) -> list[torch.Generator]:
    """Return the default generators that the graph draws from, or that the program seeds before it."""
    values = tree_leaves([n.meta["val"] for n in drawing(tracer.recorder.graph.nodes)])
    devices = {x.device for x in values if isinstance(x, torch.Tensor) and x.device.type in ("cpu", "cuda")}
    if tracer.seeds.before:
        devices |= {torch.device("cpu"), *[torch.device("cuda", i) for i in range(len(torch.cuda.default_generators))]}
    return [torch.default_generator if d.type == "cpu" else torch.cuda.default_generators[d.index or 0]
            for d in devices]
