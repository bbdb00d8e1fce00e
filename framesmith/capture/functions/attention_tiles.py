"""Attention with score modifications as one node, for devices with tiled kernels: modifications and masks are traced
once, as functions of one score, with the derivative of the modification, and the node holds them as graphs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from framesmith.fake.tensor import FakeTensor, contiguous_strides, new_fake
from framesmith.graph.attention import LISTS, Attention, AttentionGradient, Scores
from framesmith.graph.derivative import Traced, cut_out
from framesmith.symbolic.layout import strides_in_order

from .. import trackers as t
from ..arms import like
from ..history import attach, spare_region, tangent
from ..polyfills import attention as py
from ..registry import named
from ..trackers import Args

DEVICES = frozenset({"cuda"})
"""Devices with tiled kernels."""
_NO_BLOCKS = 1 << 30
_DTYPES = (torch.bfloat16, torch.float16)


def attention(tracer: Any, tensors: Args, mods: tuple[t.Tracker, t.Tracker], mask: Args, scale: float,
              trace: Callable[..., Any]) -> Any:
    """Return (output, total) of query, key and value `tensors`; None where no tiled kernel applies, or a modification
    is not elementwise.

    `mods`: of scores, and the mask; `mask`: the block mask's fields. `trace(fn, given)` calls a modification; None if
    it is not elementwise.
    """
    query, key, value = [x.fake for x in tensors]  # type: ignore[attr-defined]
    apart = query.device.type not in DEVICES or query.dtype not in _DTYPES or {query.dtype, key.dtype,
                                                                               value.dtype} != {query.dtype}
    if apart or tracer.transformed or not all(type(s) is int for x in (query, key, value) for s in x.shape):
        return None
    wants = torch.is_grad_enabled() and any(tracer.wants_grad(x) for x in (query, key, value))
    with torch.no_grad():
        traced = _Traced(tracer, query, key, trace)
        scores = traced.scores(*mods, mask, scale, wants)
    if scores is None or torch.is_grad_enabled() and any(map(tracer.requires,
                                                             traced.operands)) or wants and key.size(0) != query.size(
                                                                 0):
        return None
    return _Call(tracer, tensors, traced, scores).recorded(wants)


class _Traced:
    """The modifications of one call."""

    def __init__(self, tracer: Any, query: FakeTensor, key: FakeTensor, trace: Callable[..., Any]) -> None:
        self.tracer, self.trace = tracer, trace
        self.shape = (*query.shape[:3], key.shape[2])
        self.device = query.device
        self.lists: list[Any] = [None] * LISTS
        self.operands: list[Node] = []

    def scores(self, score_mod: t.Tracker, mask_mod: t.Tracker, mask: Args, scale: float, wants: bool) -> Scores | None:
        """Return the modifications of scores that the node holds; None where a function makes no graph. Fills
        `operands` and `lists`."""
        tracer = self.tracer
        places = [self.stand_in(tuple([n if k == dim else 1 for k, n in enumerate(self.shape)]), torch.int64)
                  for dim in range(4)]
        scores, back = self.stand_in(self.shape, torch.float32), self.stand_in(self.shape, torch.float32)
        score = gradient = kept = None
        counts = [0, 0, 0]
        if not _is(score_mod, "_identity"):
            score, counts[0] = self.graph(score_mod, [scores, *places])
            if wants and score is not None:
                pulled = t.ByRow(functools.partial(_pulled_back, score_mod))
                gradient, counts[1] = self.graph(pulled, [scores, *places, back])
            if score is None or wants and gradient is None:
                return None
        if not _is(mask_mod, "noop_mask"):
            kept, counts[2] = self.graph(mask_mod, places)
            if kept is None:
                return None
        blocks = self.blocks(mask) if kept is not None else None
        if blocks is not None:
            self.lists = [None if x is t.NONE else tracer.recorder.nodes(x.fake)  # type: ignore[attr-defined]
                          for x in mask[2:2 + LISTS]]
        return Scores(score, gradient, kept, (counts[0], counts[1], counts[2]), scale, blocks)

    def stand_in(self, shape: tuple[int, ...], dtype: torch.dtype) -> t.Tracker:
        val = new_fake(shape, contiguous_strides(shape), dtype, self.device)
        node = self.tracer.recorder.emit(tangent, (), val)
        node.meta.update(spare=True, turn=self.tracer.turn)
        return self.tracer.made(self.tracer.recorder.own(val, node))  # type: ignore[no-any-return]

    def graph(self, fn: t.Tracker, given: Args) -> tuple[Graph | None, int]:
        """Trace `fn` on `given` to a graph of these and of operands, and return it with the number of operands; None
        and 0 where that fails."""
        last, _ = self.tracer.end()
        out = self.trace(fn, given)
        region = spare_region(self.tracer, last)
        if out is None:
            return None, 0
        nodes = [self.tracer.recorder.nodes(x.fake) for x in given]  # type: ignore[attr-defined]
        one = (True,)
        derivative, operands = cut_out({one: Traced(region, nodes, [self.tracer.recorder.nodes(out.fake)])}, [], True)
        self.operands += operands
        return derivative.graphs[one], len(operands)

    def blocks(self, mask: Args) -> tuple[int, int] | None:
        """Return the rows and columns of a block of the mask, if its lists fit these scores."""
        rows, columns = (int(self.tracer.index(x)) for x in mask[-3:-1])
        number = mask[2]
        if max(rows, columns) >= _NO_BLOCKS or not isinstance(number, t.Tensor):
            return None
        batch, heads, count = number.fake.shape
        good = batch in (1, self.shape[0]) and heads in (1, self.shape[1]) and count == -(-self.shape[2] // rows)
        return (rows, columns) if good else None


def _pulled_back(score_mod: t.Tracker, tracer: Any, args: Args, kwargs: Any) -> t.Tracker:
    return tracer.made(py.pulled_back).call(tracer, [score_mod, *args], {})  # type: ignore[no-any-return]


def _is(fn: t.Tracker, name: str) -> bool:
    """Return whether a modification is one of torch's own no-ops."""
    value = getattr(fn, "value", None)
    return value is not None and value is named(f"torch.nn.attention.flex_attention.{name}")


class _Call:
    """The node of a call, and its derivative."""

    def __init__(self, tracer: Any, tensors: Args, traced: _Traced, scores: Scores) -> None:
        self.tracer, self.scores = tracer, scores
        self.fakes: list[FakeTensor] = [x.fake for x in tensors]  # type: ignore[attr-defined]
        self.rest = (*traced.lists, *traced.operands)

    def recorded(self, wants: bool) -> tuple[t.Tracker, t.Tracker]:
        tracer, (query, _, value) = self.tracer, self.fakes
        size = (*query.shape[:3], value.shape[3])
        out = new_fake(size, _strides(size, query), query.dtype, query.device)
        total = new_fake(size[:3], contiguous_strides(size[:3]), torch.float32, query.device)
        self.emit(Attention(self.scores), [tracer.recorder.nodes(x) for x in self.fakes], (out, total))
        if wants:
            wanted = [k for k, x in enumerate(self.fakes) if tracer.wants_grad(x)]
            inputs = [tracer.recorder.nodes(self.fakes[k]) for k in wanted]
            with torch.no_grad():
                traced = self.backward(out, total, wanted)
            attach(tracer, [out, total], inputs, {(True, True): traced}, True)
        return tracer.made(out), tracer.made(total)

    def emit(self, target: Any, given: list[Node], vals: tuple[FakeTensor, ...]) -> None:
        tracer = self.tracer
        tracer.recorder.stack = tracer.user_stack()
        with torch.no_grad():
            before = tracer.mark()
            tracer.recorder.results(tracer.recorder.emit(target, (*given, *self.rest), vals), vals)
            if before is not None:
                tracer.follow(*before)

    def backward(self, out: FakeTensor, total: FakeTensor, wanted: list[int]) -> Traced:
        """Return the nodes that compute the gradients of the inputs at `wanted`."""
        tracer = self.tracer
        last, _ = tracer.end()
        vals = like(out), like(total)
        tangents = [tracer.recorder.emit(tangent, (), val) for val in vals]
        given, of_total = (tracer.recorder.own(val, node) for val, node in zip(vals, tangents))
        delta = (out.float() * given.float()).sum(-1) - of_total / math.log(2)
        grads = tuple(map(like, self.fakes))
        nodes = [tracer.recorder.nodes(x) for x in (*self.fakes, given, total, delta)]
        self.emit(AttentionGradient(self.scores), nodes, grads)
        return Traced(spare_region(tracer, last), tangents, [tracer.recorder.nodes(grads[k]) for k in wanted])


def _strides(size: tuple[int, ...], query: FakeTensor) -> tuple[int, ...]:
    """Return strides with the last dimension innermost and the others in the order of the query's."""
    order = [*sorted([2, 1, 0], key=lambda dim: query.stride(dim))[::-1], 3]
    return strides_in_order(size, order)
