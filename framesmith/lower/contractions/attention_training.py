"""Rewrite float32 attention on the CPU and its gradient, as training's graphs have them, into operators of
csrc/attention*.cpp, where that was measured to be faster. Each returns the other's operands in PyTorch's form, so that
either may be replaced alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith import _C
from framesmith.graph.patterns import Match, p, tensors, values
from framesmith.lower.contractions.choice import CANDIDATES, WORK, Candidate, numbers
from framesmith.lower.contractions.pack_linear import Choose, Request, rewrites, sizes_of, surely_filled, usual
from framesmith.lower.geometry import strides_in_order
from framesmith.lower.layouts import RESULT_LAYOUTS

aten = torch.ops.aten
library = torch.ops.framesmith
assert _C.LANES  # importing the core registers the operators

MEASURED_FLOPS = 4e7
_FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


tangent, q, k, v, result, sums = tensors("tangent q k v result sums")
causal, mask, scale = values("causal mask scale")
options = {"attn_mask": mask, "scale": scale}
FORWARD = p._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, **options)
BACKWARD = p._scaled_dot_product_flash_attention_for_cpu_backward(tangent, q, k, v, result, sums, 0.0, causal,
                                                                  **options)


@rewrites(FORWARD)
def _rewrite_forward(m: Match, choose: Choose) -> fx.Node | None:
    """framesmith::attention_sums(q, k, v, mask, causal, scale)"""
    return _rewrite(m, choose, "attention forward", library.attention_sums.default, m[q, k, v])


@rewrites(BACKWARD)
def _rewrite_backward(m: Match, choose: Choose) -> fx.Node | None:
    """framesmith::attention_backward(tangent, q, k, v, result, sums, mask, causal, scale)"""
    return _rewrite(m, choose, "attention backward", library.attention_backward.default,
                    m[tangent, q, k, v, result, sums])


def _rewrite(m: Match, choose: Choose, kind: str, target: Any, given: tuple[Any, ...]) -> fx.Node | None:
    form = _form(m)
    if form is None or choose(Request(kind, torch.float32, form)) != "own":
        return None
    factor = None if m[scale] is None else float(m[scale])
    new = m.graph.call_function(target, (*given, m[mask], m[causal], factor))
    new.meta = {key: value for key, value in m.root.meta.items() if key != "frozen"}
    return new


def _form(m: Match) -> tuple[int, ...] | None:
    """Return (batch, heads, queries, keys, width, width of values, causal, masked) of a call that the kernels
    support."""
    query, key, value = values = [t.meta["val"] for t in m[q, k, v]]
    if not isinstance(m[scale], (float, int, type(None))) or not isinstance(m[causal], bool):
        return None
    if any(t.dtype is not torch.float32 or t.device.type != "cpu" or not surely_filled(t)
           for t in values) or sizes_of(query)[:2] != sizes_of(key)[:2]:
        return None
    if m[mask] and (m[causal] or m[mask].meta["val"].dtype is not torch.float32):
        return None
    sizes = (*query.shape[:3], key.shape[2], query.shape[3], value.shape[3])
    return (*map(usual, sizes), int(m[causal]), int(m[mask] is not None))


def _arguments(request: Request) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None, bool]:
    """Return example arguments for a measurement: tangent, query, key and value in the layout of models, on fewer heads
    where the work is large; mask, causal."""
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
