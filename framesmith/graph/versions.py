"""Version counters of a graph's inputs: writes through `.data` do not increment them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import fx
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from framesmith._C import CompiledFunction

Call = Callable[[Any], Any]


def uncounted_inputs(graph: fx.Graph) -> list[int]:
    """Return the positions of the inputs to which the graph writes without counting it."""
    return [k for k, place in enumerate(graph.find_nodes(op="placeholder"))
            if any(n.args[0] is place and n.meta.get("uncounted") for n in place.users)]


def uncounted(graph: fx.Graph) -> Callable[[Call], Call]:
    """Wrap compiled code so that uncounted writes leave the version counters of inputs unchanged."""
    places = uncounted_inputs(graph)
    return (lambda call: CompiledFunction(partial(_quiet, call, places), None)) if places else lambda call: call


def _quiet(call: Call, places: list[int], inputs: Any) -> Any:
    with _unsafe_preserve_version_counter(tuple([inputs[k] for k in places if not inputs[k].is_inference()])):
        return call(inputs)
