"""Scans and maps of torch, followed as Python over slices; an associative scan whose combining function works element
by element in log2(n) steps, each of which joins elements twice as far apart (W. D. Hillis, G. L. Steele: Data parallel
algorithms, CACM 29(12), 1986)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..arms import drop, recorded
from ..polyfills import scans as py
from ..registry import BY_NAME
from ..trackers import Args, Kwargs

_MOVES = frozenset({torch.ops.aten.slice.Tensor, torch.ops.aten.cat.default, torch.ops.aten.flip.default})
LONGEST = 128
"""Slices that are computed one by one."""


def _unrolled(fn: Callable[..., Any], place: int, along: int) -> Callable[[Any, Args, Kwargs], t.Tracker]:
    """A handler that inlines `fn`, whose argument `place` is sliced along dimension `dim`, or along `along`."""

    def handler(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        xs = args[place] if len(args) > place else kwargs["xs"]
        dim = kwargs["dim"].real(tracer) if "dim" in kwargs else along
        while not isinstance(xs, t.Tensor):
            items = list(xs.entries.values()) if isinstance(xs, t.Dict) else xs.items_list(tracer)
            if not items:
                break
            xs = items[0]
        size = xs.fake.shape[dim] if isinstance(xs, t.Tensor) else 0
        if int(size) > LONGEST:
            raise Unsupported(f"more than {LONGEST} slices of a {fn.__name__}", hint="loop over fewer of them")
        return tracer.inline(tracer.made(fn), args, kwargs)  # type: ignore[no-any-return]

    return handler


def _associative_scan(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if "dim" not in kwargs and len(args) > 2:
        args, kwargs = [*args[:2], *args[3:]], {**kwargs, "dim": args[2]}
    try:
        at_once = recorded(tracer, lambda: [tracer.inline(tracer.made(py.scanned), args, kwargs)])
    except Unsupported:
        at_once = None
    if at_once is not None:
        if all(n.target in _MOVES or torch.Tag.pointwise in getattr(n.target, "tags", ()) for n in at_once.region):
            return at_once.values[0]  # type: ignore[return-value]
        drop(at_once)
    return _one_by_one(tracer, args, kwargs)


_one_by_one = _unrolled(py.associative_scan, 1, 0)
BY_NAME["torch._higher_order_ops.associative_scan.associative_scan"] = _associative_scan
BY_NAME["torch._higher_order_ops.scan.scan"] = _unrolled(py.scan, 2, 0)
BY_NAME["torch._higher_order_ops.map.map"] = _unrolled(py.map_slices, 1, 0)
