"""Rewrite float32 attention on the CPU into the operator of csrc/attention.cpp, where that was measured to be faster.

Query heads may share key heads in the kernel. Its result is stored as (batch, row, head, column), so that joining the
heads afterwards is a view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from framesmith import _C
from framesmith.graph.patterns import Match, Through, match, p, tensors, values
from framesmith.lower.contractions.choice import CANDIDATES, MEASURED_FLOPS, Candidate, numbers
from framesmith.lower.contractions.pack_linear import Choose, Request, rewrites, sizes_of, surely_filled, usual
from framesmith.lower.geometry import strides_in_order
from framesmith.lower.layouts import RESULT_LAYOUTS
from framesmith.symbolic.expr import as_expr, divides

aten = torch.ops.aten
library = torch.ops.framesmith
assert _C.LANES  # importing the core registers the operators

# A mask by what it costs, as a measurement sees it: its dtype and whether it is a row of keys or has a row for each
# query.
MASKS: dict[int, Callable[[int, int], torch.Tensor | None]] = {
    0: lambda queries, keys: None,
    1: lambda queries, keys: torch.zeros(1, 1, 1, keys),
    2: lambda queries, keys: torch.zeros(1, 1, queries, keys),
    3: lambda queries, keys: torch.ones(1, 1, 1, keys, dtype=torch.bool),
    4: lambda queries, keys: torch.ones(1, 1, queries, keys, dtype=torch.bool),
}


q, k, v, base = tensors("q k v base")
mask, dropout, causal, scale, shared = values("mask dropout causal scale shared")
ATTENTION = p.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=shared)
"""The pattern of attention, for all devices."""
spread = p.expand((p.unsqueeze(base, 2) | p.unsqueeze(base, -3)).shared, ...).shared
REPEATED = Through((p.reshape.default | p.view.default | p._unsafe_view | p.clone).targets, spread).shared
"""The pattern of repeated heads."""


def _plain(value: Any, rank: int | None = 4) -> bool:
    """Return whether a value is a float32 tensor on the CPU."""
    fits = rank is None or len(value.shape) == rank
    return fits and value.dtype is torch.float32 and value.device.type == "cpu"


def _fits(m: Match) -> bool:
    """Return whether the kernel can take a call."""
    vq, vk, vv = (t.meta["val"] for t in m[q, k, v])
    if m[dropout] or not all(map(_plain, (vq, vk, vv))) or not isinstance(m[scale], (float, int, type(None))):
        return False
    query, key, value = map(sizes_of, (vq, vk, vv))
    if not surely_filled(vq, vv, behind=2):
        return False
    if (query[0], query[3]) != (key[0], key[3]) or key[:3] != value[:3]:
        return False
    if not divides(as_expr(key[1]), as_expr(query[1])) or (query[1] != key[1] and not m[shared]):
        return False
    if m[mask] is None:
        return True
    added = m[mask].meta["val"]
    return not m[causal] and 2 <= len(added.shape) <= 4 and (added.dtype is torch.bool or _plain(added, None))


def _unrepeated(node: fx.Node) -> fx.Node:
    """Return the heads (batch, shared heads, keys, width) that `node` repeats; `node` itself if it does not."""
    m = match(REPEATED, node)
    if m is None or len(m[base].meta["val"].shape) != 4:
        return node
    batch, heads, keys, width = sizes_of(m[base].meta["val"])
    wide = sizes_of(m[spread].meta["val"])
    repeats = len(wide) == 5 and wide[:2] == (batch, heads) and wide[3:] == (keys, width)
    return m[base] if repeats and sizes_of(node.meta["val"]) == (batch, heads * wide[2], keys, width) else node


def _mask_kind(mask: fx.Node | None) -> int:
    if mask is None:
        return 0
    value = mask.meta["val"]
    return (3 if value.dtype is torch.bool else 1) + (sizes_of(value)[-2] != 1)


@rewrites(ATTENTION)
def _rewrite(m: Match, choose: Choose) -> fx.Node | None:
    """framesmith::attention(q, k, v, mask, causal, scale)"""
    if not _fits(m):
        return None
    keys, rows = _unrepeated(m[k]), _unrepeated(m[v])
    if sizes_of(keys.meta["val"])[:3] != sizes_of(rows.meta["val"])[:3]:
        keys, rows = m[k, v]
    batch, heads, queries, width = map(usual, m[q].meta["val"].shape)
    _, shared_heads, count, _ = map(usual, keys.meta["val"].shape)
    shape = (batch, heads, shared_heads, queries, count, width, usual(rows.meta["val"].shape[3]))
    if shared_heads and heads % shared_heads:  # not so of the numbers that stand for sizes that vary
        return None
    request = Request("attention", torch.float32, (*shape, int(m[causal]), _mask_kind(m[mask])))
    # eager's kernel divides by some sizes before PyTorch 2.12, so that it is not run where one is 0
    if 0 not in shape and choose(request) != "own":
        return None
    factor = None if m[scale] is None else float(m[scale])
    new = m.graph.call_function(library.attention.default, (m[q], keys, rows, m[mask], m[causal], factor))
    new.meta = {key: value for key, value in m.root.meta.items() if key != "frozen"}
    return new


def _candidates(request: Request) -> dict[str, Candidate]:
    """Return both candidates on random data in the layout of models; on fewer heads where the work is large."""
    batch, heads, shared_heads, queries, keys, width, value_width, causal, kind = request.shape
    repeat = heads // shared_heads
    work = 2 * queries * keys * (width + value_width) * repeat
    groups = min(batch * shared_heads, max(int(MEASURED_FLOPS / work), torch.get_num_threads()))
    q = numbers(1, queries, groups * repeat, width).transpose(1, 2)
    k = numbers(1, keys, groups, width).transpose(1, 2)
    v = numbers(1, keys, groups, value_width).transpose(1, 2)
    mask = MASKS[kind](queries, keys)
    eager = torch.nn.functional.scaled_dot_product_attention
    return {
        "aten": lambda: eager(q, k, v, mask, is_causal=bool(causal), enable_gqa=repeat > 1),
        "own": lambda: library.attention(q, k, v, mask, bool(causal), None),
    }


CANDIDATES["attention"] = _candidates
RESULT_LAYOUTS[library.attention.default] = lambda spec, values: strides_in_order(spec.shape, (0, 2, 1, 3))
