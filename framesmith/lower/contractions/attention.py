"""Rewrite float32 attention on the CPU into the operator of csrc/attention.cpp, where that was measured to be faster.

    scaled_dot_product_attention(q, k, v, mask, ...)        ->  framesmith::attention(q, k, v, mask, causal, scale)
    the same with k = reshape(expand(unsqueeze(k', 2)))     ->  on k': query heads share key heads in the kernel

Its result lies in memory as (batch, row, head, column), so that joining the heads afterwards is a view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith import _C
from framesmith.lower.contractions.choice import CANDIDATES, MEASURED_FLOPS, Candidate, numbers
from framesmith.lower.contractions.pack_linear import Choose, Request, rewrites
from framesmith.lower.geometry import strides_in_order
from framesmith.lower.layouts import RESULT_LAYOUTS

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


@dataclass(frozen=True, slots=True)
class Attention:
    """The arguments of a recorded call, defaults filled in."""

    q: fx.Node
    k: fx.Node
    v: fx.Node
    mask: fx.Node | None
    causal: bool
    scale: float | None


def _plain(value: Any, rank: int | None = 4) -> bool:
    """A float32 tensor on the CPU of static, non-empty shape."""
    static = all(type(n) is int and n for n in value.shape)
    return static and (rank is None
                       or len(value.shape) == rank) and value.dtype is torch.float32 and value.device.type == "cpu"


def _attention(node: fx.Node) -> Attention | None:
    """The call's arguments when the kernel can take them."""
    args: tuple[Any, ...] = (*node.args, *(None, 0.0, False)[len(node.args) - 3 :])
    q, k, v, mask, dropout, causal, *_ = args
    defaults = {"attn_mask": mask, "dropout_p": dropout, "is_causal": causal, "scale": None, "enable_gqa": False}
    given: dict[str, Any] = defaults | dict(node.kwargs)
    mask, causal, scale, shared = given["attn_mask"], given["is_causal"], given["scale"], given["enable_gqa"]
    vq, vk, vv = (t.meta["val"] for t in (q, k, v))
    if given["dropout_p"] or not all(map(_plain, (vq, vk, vv))) or not isinstance(scale, (float, int, type(None))):
        return None
    if (vq.shape[0], vq.shape[3]) != (vk.shape[0], vk.shape[3]) or tuple(vk.shape[:3]) != tuple(vv.shape[:3]):
        return None
    if vq.shape[1] % vk.shape[1] or (vq.shape[1] != vk.shape[1] and not shared):
        return None
    if mask is not None:
        value = mask.meta["val"]
        if value.dtype is not torch.bool and not _plain(value, None) or causal or not 2 <= len(value.shape) <= 4:
            return None
    return Attention(q, k, v, mask, causal, scale)


def _unrepeated(node: fx.Node) -> fx.Node:
    """k' (batch, shared heads, keys, width) of `reshape(expand(unsqueeze(k', 2)))`, which repeats each head; else
    `node`."""
    expand: Any = _argument_of(node, (aten.reshape.default, aten.view.default, aten._unsafe_view.default,
                                      aten.clone.default))
    while expand is not None and expand.target is aten.clone.default:
        expand = expand.args[0]
    unsqueeze: Any = _argument_of(expand, (aten.expand.default,))
    base: Any = _argument_of(unsqueeze, (aten.unsqueeze.default,))
    if base is None or unsqueeze.args[1] not in (2, -3) or len(base.meta["val"].shape) != 4:
        return node
    batch, heads, keys, width = base.meta["val"].shape
    wide = tuple(expand.meta["val"].shape)
    repeats = len(wide) == 5 and wide[:2] == (batch, heads) and wide[3:] == (keys, width)
    return base if repeats and tuple(node.meta["val"].shape) == (batch, heads * wide[2], keys, width) else node


def _argument_of(node: Any, targets: tuple[Any, ...]) -> Any:
    return node.args[0] if isinstance(node, fx.Node) and node.target in targets else None


def _mask_kind(mask: fx.Node | None) -> int:
    if mask is None:
        return 0
    value = mask.meta["val"]
    return (3 if value.dtype is torch.bool else 1) + (value.shape[-2] != 1)


@rewrites(aten.scaled_dot_product_attention.default)
def _rewrite(graph: fx.Graph, node: fx.Node, choose: Choose) -> fx.Node | None:
    found = _attention(node)
    if found is None:
        return None
    k, v = _unrepeated(found.k), _unrepeated(found.v)
    if tuple(k.meta["val"].shape[:3]) != tuple(v.meta["val"].shape[:3]):
        k, v = found.k, found.v
    batch, heads, queries, width = found.q.meta["val"].shape
    shape = (batch, heads, k.meta["val"].shape[1], queries, k.meta["val"].shape[2], width, v.meta["val"].shape[3])
    if choose(Request("attention", torch.float32, (*shape, int(found.causal), _mask_kind(found.mask)))) != "own":
        return None
    scale = None if found.scale is None else float(found.scale)
    new = graph.call_function(library.attention.default, (found.q, k, v, found.mask, found.causal, scale))
    new.meta = {key: value for key, value in node.meta.items() if key != "frozen"}
    return new


def _candidates(request: Request) -> dict[str, Candidate]:
    """Both on random data in the layout that models have; on fewer heads where there is much to do."""
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
