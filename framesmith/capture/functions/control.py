"""Control flow on data by functions: torch.cond and torch.while_loop, known by their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from framesmith.util.errors import Unsupported

from .. import data
from .. import trackers as t
from ..arms import joined
from ..looping import looped
from ..registry import by_name
from ..trackers import Args, Kwargs

_NOTHING = t.Tuple([])


@by_name("torch.cond")
def _cond(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return _chosen(tracer, *args, **kwargs)


def _chosen(tracer: Any, pred: t.Tracker, true_fn: t.Tracker, false_fn: t.Tracker,
            operands: t.Tracker = _NOTHING) -> t.Tracker:
    given = operands.items_list(tracer)
    if not isinstance(pred, t.Data) and not data.decides(tracer, pred):
        return (true_fn if pred.truth(tracer) else false_fn).call(tracer, given, {})
    condition = data.condition(tracer, pred)
    if condition is None:
        raise Unsupported(f"torch.cond of {pred.describe()}")
    ways = [lambda fn=fn: [fn.call(tracer, given, {})] for fn in (false_fn, true_fn)]  # type: ignore[misc]
    out = joined(tracer, condition, ways, None, True)[0]
    assert out is not None
    return out


@by_name("torch._higher_order_ops.while_loop.while_loop")
def _while_loop(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return _repeated(tracer, *args, **kwargs)


def _repeated(tracer: Any, cond_fn: t.Tracker, body_fn: t.Tracker, carried_inputs: t.Tracker) -> t.Tracker:
    """Record the loop over tensors; an integer of its state is a tensor within the loop, and data after it."""
    initial = [_as_tensor(tracer, x) for x in _leaves(tracer, carried_inputs)]
    kinds = [x.pytype() for x in _leaves(tracer, carried_inputs)]

    def unflattened(state: Sequence[t.Tensor]) -> t.Tracker:
        values = [data.number(tracer, x) if kind is int else x for kind, x in zip(kinds, state, strict=True)]
        return _like(tracer, carried_inputs, iter(values))  # type: ignore[arg-type]

    def step(state: Sequence[t.Tensor]) -> tuple[t.Tracker, list[t.Tracker]]:
        after = body_fn.call(tracer, unflattened(state).items_list(tracer), {})
        leaves = _leaves(tracer, after)
        if len(leaves) != len(kinds):
            raise Unsupported(f"the body of a while_loop gives {len(leaves)} values for {len(kinds)}")
        found = [_as_tensor(tracer, x) if kind is int else x for kind, x in zip(kinds, leaves)]
        return cond_fn.call(tracer, after.items_list(tracer), {}), found

    first = cond_fn.call(tracer, carried_inputs.items_list(tracer), {})
    if not isinstance(first, (t.Tensor, t.Data)):
        first = tracer.torch_call(torch.tensor, [t.boolean(first.truth(tracer))], {})
    condition = data.condition(tracer, first)
    if condition is None:
        raise Unsupported(f"a while_loop that {first.describe()} ends")
    made = looped(tracer, condition, initial, step, None, True)
    assert made is not None
    return unflattened(made)


def _as_tensor(tracer: Any, x: t.Tracker) -> t.Tensor:
    """Return a copy of a tensor: a loop that does not run returns no earlier tensor."""
    return tracer.torch_call(torch.clone, [data.tensor_of(tracer, x)], {})  # type: ignore[no-any-return]


def _leaves(tracer: Any, x: t.Tracker) -> list[t.Tracker]:
    if isinstance(x, t.Dict):
        return [leaf for v in x.entries.values() for leaf in _leaves(tracer, v)]
    if isinstance(x, t.Sequence):
        return [leaf for v in x.open(tracer) for leaf in _leaves(tracer, v)]
    return [x]


def _like(tracer: Any, x: t.Tracker, leaves: Iterator[t.Tracker]) -> t.Tracker:
    """Return a value of the structure of `x`, with other leaves."""
    if isinstance(x, t.Dict):
        return t.Dict({k: _like(tracer, v, leaves) for k, v in x.entries.items()})
    if isinstance(x, t.Sequence):
        items = [_like(tracer, v, leaves) for v in x.open(tracer)]
        return t.List(items) if isinstance(x, t.List) else t.Tuple(items)
    return next(leaves)
