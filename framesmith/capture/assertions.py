"""Assertions on the data of tensors: the graph computes their conditions, residual code looks at them before it changes
anything, and where one does not hold the whole frame runs again in plain Python, which raises what it raises and leaves
what it leaves. Before that, the default generators that the graph drew from are put back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from framesmith.fake.schema import draws

STATES = "__fs_states"


def checks(rebuilder: Any, plain: Callable[[], str]) -> list[str]:
    """The statements of residual code that hold the conditions to their word; `plain` gives the call that runs the
    user's code instead."""
    if not rebuilder.tracer.checks:
        return []
    conditions = " and ".join([f"{rebuilder.hold(bool)}({text})" for text in rebuilder.values(rebuilder.tracer.checks)])
    rebuilder.drawn_from = _drawn(rebuilder.tracer)
    return [f"if not ({conditions}):", *(f"    {line}" for line in [*back(rebuilder), f"return {plain()}"])]


def before(rebuilder: Any) -> list[str]:
    """The statements that keep the states of the generators that may have to be put back."""
    return ([f"{STATES} = {rebuilder.hold(_kept)}({rebuilder.hold(rebuilder.drawn_from)})"] if rebuilder.drawn_from
            else [])


def back(rebuilder: Any) -> list[str]:
    """The statements that put them back."""
    return [f"{rebuilder.hold(_put_back)}({STATES})"] if rebuilder.drawn_from else []


def drawing(nodes: Iterable[Node]) -> list[Node]:
    """Nodes that draw random numbers."""
    return [n for n in nodes if isinstance(n.target, torch._ops.OpOverload)  # type: ignore[arg-type]
            and draws(n.target, n.args, n.kwargs)]


def _drawn(tracer: Any) -> list[torch.Generator]:
    """The default generators that the graph draws from, or that the program seeds before it."""
    values = tree_leaves([n.meta["val"] for n in drawing(tracer.recorder.graph.nodes)])
    devices = {x.device for x in values if isinstance(x, torch.Tensor) and x.device.type in ("cpu", "cuda")}
    if tracer.seeds.before:
        devices |= {torch.device("cpu"), *[torch.device("cuda", i) for i in range(len(torch.cuda.default_generators))]}
    return [torch.default_generator if d.type == "cpu" else torch.cuda.default_generators[d.index or 0]
            for d in devices]


def _kept(generators: list[torch.Generator]) -> list[tuple[torch.Generator, torch.Tensor]]:
    return [(generator, generator.get_state()) for generator in generators]


def _put_back(states: list[tuple[torch.Generator, torch.Tensor]]) -> None:
    for generator, state in states:
        generator.set_state(state)
