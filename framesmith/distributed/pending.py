"""Values of functional collectives that eager began (`AsyncCollectiveTensor`): captured code waits for one before it
runs, and has a plain tensor."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.capture import trackers as t
from framesmith.capture.registry import OUTSIDE
from framesmith.capture.sources import Applied, Source
from framesmith.util.tables import entry


@entry(OUTSIDE, "torch.distributed._functional_collectives.AsyncCollectiveTensor")
def _pending(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    found = tracer.known(value, source)
    if found is not None or source is None:
        return found or tracer.input(value, source)  # type: ignore[no-any-return]
    tracer.guard(source, "type", type(value))
    plain = Applied(source, waited, "{}.wait()")
    tracer.wrapped_parts[plain] = None
    with tracer.recorder.off(), torch.set_grad_enabled(tracer.state.grad_enabled):
        part = waited(value)
    return tracer.remember(value, tracer.input(part, plain))  # type: ignore[no-any-return]


def waited(x: Any) -> torch.Tensor:
    """Return the plain tensor, with the history of `x`, when it is there."""
    x.trigger_wait()
    return _Plain.apply(x) if x.requires_grad else x.elem  # type: ignore[no-any-return]


class _Plain(torch.autograd.Function):
    """The tensor in an `AsyncCollectiveTensor`. Gradients of both are plain."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> torch.Tensor:  # type: ignore[override]
        return x.elem.detach()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        return grad
