"""Control flow on data by function: torch.cond, known by its name."""

from __future__ import annotations

from typing import Any

from framesmith.util.errors import Unsupported

from .. import data
from .. import trackers as t
from ..arms import joined
from ..registry import by_name
from ..trackers import Args, Kwargs


@by_name("torch.cond")
def _cond(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return _chosen(tracer, *args, **kwargs)


def _chosen(tracer: Any, pred: t.Tracker, true_fn: t.Tracker, false_fn: t.Tracker,
            operands: t.Tracker = t.Tuple([])) -> t.Tracker:  # noqa: B008
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
