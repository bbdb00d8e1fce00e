"""Attention with score modifications in Python (`torch.nn.attention.flex_attention`): its checks are captured like
other Python; the computation itself is defined here.

A modification is a function of one score and its indices. If it is elementwise, it is called once, on all scores, with
indices that broadcast; otherwise `torch.vmap` calls it.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch.fx import Node
from torch.overrides import TorchFunctionMode

from framesmith.fake.tensor import FakeTensor
from framesmith.graph.attention import dense
from framesmith.graph.traversal import nodes_after
from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..polyfills import attention as py
from ..registry import by_name
from ..trackers import Args, Kwargs
from . import attention_tiles

aten = torch.ops.aten


@by_name("torch._higher_order_ops.flex_attention.FlexAttentionHOP.__call__")
def _attention(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    query, key, value, score_mod, block_mask, scale, options = args[1:8]
    mask = block_mask.items_list(tracer)
    if not tracer.mapping(options).get("OUTPUT_MAX", t.FALSE).truth(tracer):
        given = [_cast(tracer, x) for x in (query, key, value)]
        found = attention_tiles.attention(tracer, given, (score_mod, mask[-1]), mask, float(scale.real(tracer)),
                                          functools.partial(_at_once, tracer))
        if found is not None:
            return t.Tuple([*found, found[1]])
    mods = [t.ByRow(functools.partial(_modified, fn, scored)) for fn, scored in ((score_mod, True), (mask[-1], False))]
    return tracer.made(dense).call(tracer, [query, key, value, *mods, scale], {})  # type: ignore[no-any-return]


def _cast(tracer: Any, x: t.Tracker) -> t.Tracker:
    """Cast a tensor as autocast does."""
    device = x.fake.device.type  # type: ignore[attr-defined]
    if not torch.is_autocast_enabled(device) or x.fake.dtype is torch.float64:  # type: ignore[attr-defined]
        return x
    return tracer.torch_call(torch.Tensor.to,  # type: ignore[no-any-return]
                             [x, tracer.made(torch.get_autocast_dtype(device))],
                             {})


@by_name("torch.fx.traceback.annotate")
def _annotate(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Ignore an annotation of operators, which is for torch.compile: return a null context."""
    return tracer.made(contextlib.nullcontext).call(tracer, [], {})  # type: ignore[no-any-return]


class ByIndex(TorchFunctionMode):
    """Keep an index that is a tensor of one element a tensor, where eager would read the number."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            x, key = args
            items = key if isinstance(key, tuple) else (key,)
            if any(isinstance(i, torch.Tensor) for i in items) and all(map(_is_index, items)):
                return aten.index.Tensor(x, [i if isinstance(i, torch.Tensor) else torch.tensor(i, device=x.device)
                                             for i in items])
        return func(*args, **(kwargs or {}))


def _is_index(x: Any) -> bool:
    return type(x) is int or isinstance(x, torch.Tensor) and x.dtype is not torch.bool


def _modified(fn: t.Tracker, scored: bool, tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Apply `fn` at every position; `scored`: the first argument are the scores."""
    out = _at_once(tracer, fn, args)
    if out is not None:
        return out
    with _indexing(tracer):
        scores, places = (args[0], args[1:]) if scored else (t.NONE, args)
        return tracer.made(py.one_by_one).call(  # type: ignore[no-any-return]
            tracer, [fn, scores, t.List(list(places))],
                                               {})


def _at_once(tracer: Any, fn: t.Tracker, args: Args) -> t.Tensor | None:
    """Apply `fn` to all scores and their indices at once; return None unless that equals applying it to each."""
    last, writes = tracer.end()
    with _indexing(tracer):
        out = fn.call(tracer, args, {})
    made = nodes_after(tracer.recorder.graph, last)
    if len(tracer.recorder.written) > writes:
        raise Unsupported("a score modification that writes tensors")
    if isinstance(out, t.Tensor) and all(map(_is_elementwise, made)):
        return out
    for node in made:
        node.meta["spare"] = True
    return None


class _indexing:
    """Make `ByIndex` the innermost of the program's modes within the block."""

    def __init__(self, tracer: Any) -> None:
        self.modes = tracer.modes.functions

    def __enter__(self) -> None:
        self.modes.append((t.NONE, ByIndex()))

    def __exit__(self, *error: Any) -> None:
        self.modes.pop()


def _is_elementwise(node: Node) -> bool:
    """Return whether a recorded operator on all scores at once equals the operator on each, by its kind and its
    rank."""
    val = node.meta["val"]
    plain = node.op == "placeholder" or torch.Tag.pointwise in getattr(node.target, "tags", ()) or node.target in _ALIKE
    return plain and isinstance(val, FakeTensor) and (node.op == "placeholder" or val.dim() in (0, 4))


_ALIKE = frozenset((aten.index.Tensor, aten._to_copy.default, aten.full.default, aten.scalar_tensor.default,
                    aten.lift_fresh.default,
                    aten.full_like.default, aten.zeros_like.default, aten.ones_like.default, aten.new_ones.default,
                    aten.new_zeros.default,
                    aten.detach.default, aten.alias.default, aten.clone.default, aten.zeros.default, aten.ones.default))
