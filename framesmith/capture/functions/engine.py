"""The autograd engine's Python interface: its calls run in plain Python, and the graph ends before it uses a tensor
whose gradient they ask for."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from .. import trackers as t
from ..overrides import tensors_among
from ..registry import by_position, method

_NOT_CAPTURED = "the autograd engine's Python interface is not captured yet"
_METHODS = {"backward": "the backward pass is run outside of captured code",
            "register_hook": "hooks on tensors are not captured yet", "retain_grad": _NOT_CAPTURED}


def _refuse(tracer: Any, asked: t.Tracker, reason: str) -> None:
    """Break before a call that asks for the gradients of tensors, or that watches them."""
    single = asked is t.NONE or isinstance(asked, t.Tensor)
    tracer.refuse_gradients(reason, [x.fake for x in tensors_among([asked] if single else tracer.each(asked))])


def _row(fn: Callable[..., Any], name: str) -> Callable[..., None]:
    """Return the handler of a function. `name`: its parameter for the tensors of which it asks."""
    place = list(signature(fn).parameters).index(name)

    def row(tracer: Any, *args: t.Tracker, **kwargs: t.Tracker) -> None:
        asked = args[place] if len(args) > place else kwargs.get(name, t.NONE)
        _refuse(tracer, asked, f"call of {fn.__module__}.{fn.__qualname__}: {_NOT_CAPTURED}")

    return row


def _method(name: str, reason: str) -> None:
    def row(tracer: Any, x: t.Tensor, *args: t.Tracker, inputs: t.Tracker = t.NONE, **kwargs: t.Tracker) -> None:
        _refuse(tracer, x if name != "backward" else args[3] if len(args) > 3 else inputs, f"Tensor.{name}: {reason}")

    method(t.Tensor, name)(row)


graph = torch.autograd.graph
by_position({fn: _row(fn, name) for fn, name in ((torch.autograd.grad, "inputs"), (torch.autograd.backward, "inputs"),
                                                 (graph.get_gradient_edge, "tensor"),
                                                 (graph.register_multi_grad_hook, "tensors"))})
for _name, _reason in _METHODS.items():
    _method(_name, _reason)
