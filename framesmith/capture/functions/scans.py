"""Scans and maps of torch, followed as Python over slices, or as one node over many; an associative scan whose
combining function works element by element in log2(n) steps, each of which joins elements twice as far apart (W. D.
Hillis, G. L. Steele: Data parallel algorithms, CACM 29(12), 1986)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.fake.tensor import FakeTensor
from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..arms import discard, recorded
from ..listed_slices import split_by_lengths
from ..polyfills import scans as py
from ..registry import BY_NAME, calls
from ..scanning import scanned
from ..trackers import Args, Kwargs

_MOVES = frozenset({torch.ops.aten.slice.Tensor, torch.ops.aten.cat.default, torch.ops.aten.flip.default})
LONGEST = 128
"""The maximal number of slices that are computed one by one."""


def _by_slices(unrolled: Callable[..., Any], at_once: Callable[..., Any], place: int,
               along: int) -> Callable[[Any, Args, Kwargs], t.Tracker]:
    """Make a handler that inlines `unrolled`, whose argument `place` is sliced along dimension `dim`, or along `along`;
    for more slices, or a dynamic number of them, it inlines `at_once`, which is one node."""

    def handler(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        x = _first_tensor(tracer, args[place] if len(args) > place else kwargs["xs"])
        dim = kwargs["dim"].real(tracer) if "dim" in kwargs else along
        size = x.shape[dim] if x is not None else 0
        few = type(size) is int and size <= LONGEST
        return tracer.inline(tracer.made(unrolled if few else at_once), args, kwargs)  # type: ignore[no-any-return]

    return handler


def _first_tensor(tracer: Any, xs: t.Tracker) -> FakeTensor | None:
    while not isinstance(xs, t.Tensor):
        items = list(xs.entries.values()) if isinstance(xs, t.Dict) else xs.items_list(tracer)
        if not items:
            return None
        xs = items[0]
    return xs.fake


@calls(py.over_slices)
def _over_slices(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    step, state, xs, backwards = args

    def one(given: list[t.Tensor]) -> tuple[list[t.Tracker], list[t.Tracker], t.Tracker]:
        after, out, kind = step.call(tracer, list(given), {}).items_list(tracer)
        return after.items_list(tracer), out.items_list(tracer), kind

    last, stacks, kind = scanned(tracer, one, state.items_list(tracer), xs.items_list(tracer), backwards.real(tracer))
    return t.Tuple([t.List(list(last)), t.List(list(stacks)), kind])


def _varies(tracer: Any, xs: t.Tracker, dim: t.Tracker) -> bool:
    """Return whether the number of slices is a symbol, of which log2(n) steps would be a variant for each power of two.
    A device works on all slices at once so much faster that it has these variants."""
    x = _first_tensor(tracer, xs)
    return x is not None and x.device.type == "cpu" and type(x.shape[dim.real(tracer)]) is torch.SymInt


def _associative_scan(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if "dim" not in kwargs and len(args) > 2:
        args, kwargs = [*args[:2], *args[3:]], {**kwargs, "dim": args[2]}
    if _varies(tracer, args[1] if len(args) > 1 else kwargs["xs"], kwargs["dim"]):
        return _one_by_one(tracer, args, kwargs)
    try:
        at_once = recorded(tracer, lambda: [tracer.inline(tracer.made(py.scanned), args, kwargs)])
    except Unsupported:
        at_once = None
    if at_once is not None:
        if all(n.target in _MOVES or torch.Tag.pointwise in getattr(n.target, "tags", ()) for n in at_once.region):
            return at_once.values[0]  # type: ignore[return-value]
        discard(tracer, at_once)
    return _one_by_one(tracer, args, kwargs)


_one_by_one = _by_slices(py.associative_scan, py.associative_scan_at_once, 1, 0)
BY_NAME["torch._higher_order_ops.associative_scan.associative_scan"] = _associative_scan
BY_NAME["torch._higher_order_ops.scan.scan"] = _by_slices(py.scan, py.scan_at_once, 2, 0)
BY_NAME["torch._higher_order_ops.map.map"] = _by_slices(py.map_slices, py.map_at_once, 1, 0)


def _of_slices(fn: Any, polyfill: Callable[..., Any]) -> None:
    """Let `fn` of a list that a loop has filled be `polyfill` of its stacks."""

    @calls(fn)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        if not args or not isinstance(args[0], t.FilledList):
            return tracer.torch_function(fn, args, kwargs)  # type: ignore[no-any-return]
        dim = args[1] if len(args) > 1 else kwargs.get("dim", t.Const(0))
        if fn is not torch.stack and (whole := args[0].whole(tracer, dim.real(tracer))) is not None:
            return tracer.torch_call(torch.clone, [whole], {})  # type: ignore[no-any-return]
        parts = t.List(args[0].stacks(tracer))
        return tracer.inline(tracer.made(polyfill), [parts, *args[1:]], kwargs)  # type: ignore[no-any-return]


_of_slices(torch.stack, py.stacked)
_of_slices(torch.cat, py.concatenated)
_of_slices(torch.concat, py.concatenated)


@calls(torch.split)
def _split(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Split a tensor into parts of lengths whose number may vary."""
    lengths = args[1] if len(args) > 1 else kwargs.get("split_size_or_sections")
    dim = args[2] if len(args) > 2 else kwargs.get("dim", t.Const(0))
    if type(lengths) is not t.FilledList or not args or not isinstance(args[0], t.Tensor):
        return tracer.torch_function(torch.split, args, kwargs)  # type: ignore[no-any-return]
    return split_by_lengths(tracer, args[0], lengths, dim.real(tracer))
