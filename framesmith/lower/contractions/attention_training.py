"""Rewrite float32 attention on the CPU and its gradient, as training's graphs have them, into operators of
csrc/attention*.cpp.

    _scaled_dot_product_flash_attention_for_cpu(q, k, v, ...)              ->  framesmith::attention_sums(q, k, v, mask,
                                                                               causal, scale)
    _scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, ...)  ->  framesmith::attention_backward(g, q, k,
    v, ...)

where that was measured to be faster. Each gives what the other reads in PyTorch's form, so that either may be replaced
alone.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from framesmith import _C
from framesmith.lower.contractions.choice import CANDIDATES, WORK, Candidate, numbers
from framesmith.lower.contractions.nodes import argument
from framesmith.lower.contractions.pack_linear import Choose, Request, rewrites, static
from framesmith.lower.geometry import strides_in_order
from framesmith.lower.layouts import RESULT_LAYOUTS

aten = torch.ops.aten
library = torch.ops.framesmith
assert _C.LANES  # importing the core registers the operators

MEASURED_FLOPS = 4e7
_FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@rewrites(_FORWARD)
def _rewrite_forward(graph: fx.Graph, node: fx.Node, choose: Choose) -> fx.Node | None:
    q, k, v, dropout, causal = (argument(node, i, default) for i, default in enumerate((None, None, None, 0.0, False)))
    form = _form(node, (q, k, v), dropout, causal)
    if form is None or choose(Request("attention forward", torch.float32, form)) != "own":
        return None
    return _call(graph, node, library.attention_sums.default, (q, k, v), causal)


@rewrites(_BACKWARD)
def _rewrite_backward(graph: fx.Graph, node: fx.Node, choose: Choose) -> fx.Node | None:
    tangent, q, k, v, result, sums, dropout, causal = node.args
    form = _form(node, (q, k, v), dropout, causal)
    if form is None or choose(Request("attention backward", torch.float32, form)) != "own":
        return None
    return _call(graph, node, library.attention_backward.default, (tangent, q, k, v, result, sums), causal)


def _call(graph: fx.Graph, node: fx.Node, target: Any, tensors: tuple[Any, ...], causal: Any) -> fx.Node:
    scale = node.kwargs.get("scale")
    new = graph.call_function(target, (*tensors, node.kwargs.get("attn_mask"), causal,
                                       None if scale is None else float(scale)))  # type: ignore[arg-type]
    new.meta = {key: value for key, value in node.meta.items() if key != "frozen"}
    return new


def _form(node: fx.Node, tensors: tuple[Any, ...], dropout: Any, causal: Any) -> tuple[int, ...] | None:
    """(batch, heads, queries, keys, width, width of values, causal, masked) of a call that the kernels can take."""
    q, k, v = (t.meta["val"] for t in tensors)
    mask, scale = node.kwargs.get("attn_mask"), node.kwargs.get("scale")
    if (dropout or not isinstance(scale, (float, int, type(None))) or not isinstance(causal, bool)
        or not static(q, k, v)):
        return None
    if any(t.dtype is not torch.float32 or t.device.type != "cpu" or not prod(t.shape)
           for t in (q, k, v)) or q.shape[:2] != k.shape[:2]:
        return None
    if isinstance(mask, fx.Node) and (causal or mask.meta["val"].dtype is not torch.float32
                                      or not static(mask.meta["val"])):
        return None
    return (*q.shape[:3], k.shape[2], q.shape[3], v.shape[3], int(causal), int(mask is not None))


def _arguments(request: Request) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None, bool]:
    """Tangent, query, key and value in the layout that models have, on fewer heads where there is much to do; mask,
    causal."""
    batch, heads, queries, keys, width, value_width, causal, masked = request.shape
    count = min(batch * heads,
                max(int(MEASURED_FLOPS / (2 * queries * keys * (width + value_width))), torch.get_num_threads()))
    sizes = ((queries, value_width), (queries, width), (keys, width), (keys, value_width))
    mask = torch.zeros(1, 1, queries, keys) if masked else None
    return tuple(numbers(1, rows, count, columns).transpose(1, 2) for rows, columns in sizes), mask, bool(causal)


def _forward_candidates(request: Request) -> dict[str, Candidate]:
    (_, q, k, v), mask, causal = _arguments(request)
    return {
        "aten": lambda: _FORWARD(q, k, v, 0.0, causal, attn_mask=mask),
        "own": lambda: library.attention_sums(q, k, v, mask, causal, None),
    }


def _backward_candidates(request: Request) -> dict[str, Candidate]:
    (g, q, k, v), mask, causal = _arguments(request)
    out, sums = _FORWARD(q, k, v, 0.0, causal, attn_mask=mask)
    return {
        "aten": lambda: _BACKWARD(g, q, k, v, out, sums, 0.0, causal, attn_mask=mask),
        "own": lambda: library.attention_backward(g, q, k, v, out, sums, mask, causal, None),
    }


def _work(request: Request) -> int:
    batch, heads, queries, keys, width, value_width, *_ = request.shape
    return 2 * batch * heads * queries * keys * (width + value_width)


for _name, _make in (("attention forward", _forward_candidates), ("attention backward", _backward_candidates)):
    CANDIDATES[_name] = _make
    WORK[_name] = _work
for _target in (library.attention_sums.default, library.attention_backward.default):
    RESULT_LAYOUTS[_target] = lambda spec, values: strides_in_order(spec.shape, (0, 2, 1, 3)[: len(spec.shape)])
