"""Activation checkpointing: a call, whose nodes say that their values are not to be kept for the backward
(`meta["checkpoint"]`: the number of the outermost region)."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.graph.purity import draws
from framesmith.graph.traversal import nodes_after
from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..arms import changes, mutates_existing, mutations_collected, roots_of
from ..registry import by_name

_IDLE = ("determinism_check", "debug", "early_stop", "preserve_rng_state")


@by_name("torch.utils.checkpoint.checkpoint")
def _checkpoint(tracer: Any, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
    reentrant = kwargs.get("use_reentrant", t.NONE)
    if reentrant is t.NONE:
        raise Unsupported("checkpoint() without use_reentrant, which warns", hint="pass use_reentrant=False")
    if "context_fn" in kwargs or torch.is_grad_enabled() and reentrant.truth(tracer):
        raise Unsupported("reentrant activation checkpointing while grad mode is on, or with contexts of its own")
    if tracer.asks(*args[1:], *kwargs.values()):
        raise Unsupported("activation checkpointing of tensors of a class with a __torch_function__")
    rest = {k: v for k, v in kwargs.items() if k not in _IDLE and k != "use_reentrant"}
    if reentrant.truth(tracer) and rest:
        tracer.raise_(ValueError("Unexpected keyword arguments: " + ",".join(rest)))
    (last, writes), before = tracer.end(), changes(tracer)
    with mutations_collected(tracer) as touched:
        out = args[0].call(tracer, args[1:], rest)
    if torch.is_grad_enabled():
        tracer.regions += 1
        region = nodes_after(tracer.recorder.graph, last)
        own = {n for n in region if n.op != "placeholder"}
        if any(map(tracer.requires, region)) and (
                changes(tracer) != before
                or any(n not in own for _, _, n in tracer.recorder.written[writes:])
                or mutates_existing(touched, roots_of(tracer))):
            raise Unsupported("activation checkpointing of code that changes earlier objects or tensors, which its "
                              "second run does again")
        if not kwargs.get("preserve_rng_state", t.TRUE).truth(tracer) and any(map(draws, region)):
            raise Unsupported("activation checkpointing whose second run draws other random numbers",
                              hint="leave preserve_rng_state at True")
        for node in region:
            if node.op == "call_function":
                node.meta["checkpoint"] = tracer.regions
    return out
