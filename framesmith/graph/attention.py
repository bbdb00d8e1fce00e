"""Attention whose scores a program modifies.

    Attention(scores)(q, k, v, *lists, *operands)  ->  (output, log2 of the sum of the exponentials of each row's
    scores)

`Scores` holds the modification of scores and the mask as graphs over all scores at once: element-wise, with indices
that broadcast. A tiled kernel evaluates them on tiles of scores; `dense` is their definition. The *lists* say which
blocks of scores are unmasked (full), partly masked (partial) or masked (in no list): a kernel may skip the last, which
the mask also covers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.fx import Graph

from framesmith.graph.digest import digest_text
from framesmith.graph.interpreter import run
from framesmith.graph.launch import OfOneGraph

LISTS = 8
"""Numbers and columns of the partial and of the full blocks of each row of blocks, then numbers and rows of those of
each column."""


def dense(query: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, scale: Any) -> Any:
    """(output, log2 of the sum of the exponentials of each row's scores, their maximum in the same units).

    `score_mod(scores, b, h, q, k)` and `mask_mod(b, h, q, k)` take all scores [B, H, M, N], and indices that broadcast
    to them.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = [x if x.dtype == torch.float64 else x.to(dtype) for x in (query, key, value)]
        with torch.autocast(device, enabled=False):
            return _dense(query, key, value, score_mod, mask_mod, scale)
    return _dense(query, key, value, score_mod, mask_mod, scale)


def _dense(query: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, scale: Any) -> Any:
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    key, value = spread(key, query), spread(value, query)
    scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * scale
    places = indices(scores)
    scores = torch.where(mask_mod(*places), score_mod(scores, *places).to(wide), -math.inf)
    masked = (scores == -math.inf).all(-1, keepdim=True)  # a row without keys gives zeros
    scores = scores.masked_fill(masked, 0.0)
    weights = scores.softmax(-1).masked_fill(masked, 0.0)
    found = weights.to(query.dtype) @ value.to(query.dtype)
    masked = masked.squeeze(-1)
    total = scores.logsumexp(-1).masked_fill(masked, -math.inf) / math.log(2)
    return laid_out(found, query), total, scores.amax(-1).masked_fill(masked, -math.inf) / math.log(2)


def spread(x: Any, query: Any) -> Any:
    """Return keys or values expanded to the heads and batches of the query."""
    groups = query.size(1) // x.size(1)
    if groups > 1:
        x = x.repeat_interleave(groups, dim=1)
    if query.size(0) != x.size(0) and x.size(0) != 1:
        raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={query.size(0)} and Bkv={x.size(0)}")
    return x.expand(query.size(0), -1, -1, -1)


def indices(scores: Any) -> list[Any]:
    """Return the index of each score along each of the four dimensions, with one element along the others."""
    made = []
    for dim in range(4):
        shape = [1, 1, 1, 1]
        shape[dim] = scores.size(dim)
        made.append(torch.arange(scores.size(dim), device=scores.device).view(shape))
    return made


def laid_out(x: Any, query: Any) -> Any:
    """Return a copy with the last dimension innermost and the others in the query's order."""
    order = sorted([2, 1, 0], key=lambda dim: query.stride(dim))[::-1] + [3]
    return x.permute(order).contiguous().permute([order.index(dim) for dim in range(4)])


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """`score`: (scores, b, h, q, k, *operands) -> scores. `gradient`: (scores, b, h, q, k, tangent, *operands) -> the
    tangent of what is modified. `mask`: (b, h, q, k, *operands) -> bool. None: no modification, or no mask.

    `counts`: the numbers of operands of `score`, `gradient` and `mask`, in this order. `blocks`: how many rows and
    columns a block of the lists has; None: there are no lists. `undefined`: a fully masked row gives NaN (zero by
    zero), not zeros. `causal`: no row attends to a later column. `tf32`: products of float32 may drop the last 13 bits
    of their operands.
    """

    score: Graph | None
    gradient: Graph | None
    mask: Graph | None
    counts: tuple[int, int, int]
    scale: float
    blocks: tuple[int, int] | None
    undefined: bool = False
    causal: bool = False
    tf32: bool = False

    def __str__(self) -> str:
        graphs = [graph and digest_text(graph) for graph in (self.score, self.gradient, self.mask)]
        flags = "".join([f" {name}" for name in ("undefined", "causal", "tf32") if getattr(self, name)])
        return f"{graphs} {self.counts} {self.scale!r} {self.blocks}{flags}"

    def operands(self, given: Any, which: int) -> Any:
        """Return the operands of `score` (0), `gradient` (1) or `mask` (2) among all."""
        first = sum(self.counts[:which])
        return given[first:first + self.counts[which]]

    def modified(self, given: Any) -> tuple[Any, Any]:
        """Return the modifications as functions, for `dense`."""

        def score(scores: Any, *places: Any) -> Any:
            return scores if self.score is None else run(self.score, [scores, *places, *self.operands(given, 0)])[0]

        def mask(*places: Any) -> Any:
            kept = torch.ones((), dtype=torch.bool, device=places[0].device)
            return kept if self.mask is None else run(self.mask, [*places, *self.operands(given, 2)])[0]

        return score, mask


@dataclass(frozen=True, slots=True, eq=False)
class Attention(OfOneGraph):
    """See the module. It is called with grad mode off, and without autocast."""

    __name__: ClassVar[str] = "attention"  # type: ignore[misc]
    scores: Scores

    def __str__(self) -> str:
        return f"attention {self.scores}"

    def __call__(self, query: Any, key: Any, value: Any, *given: Any) -> tuple[Any, Any]:
        score, mask = self.scores.modified(given[LISTS:])
        out, total, _ = _dense(query, key, value, score, mask, self.scores.scale)
        if self.scores.undefined:
            out = out.masked_fill((total == -math.inf)[..., None], math.nan)
        return out, total


@dataclass(frozen=True, slots=True, eq=False)
class AttentionGradient(OfOneGraph):
    """(q, k, v, tangent of the output, `total`, sum over each row of output times tangent, *lists, *operands) ->
    gradients of q, k, v."""

    __name__: ClassVar[str] = "attention_gradient"  # type: ignore[misc]
    scores: Scores

    def __str__(self) -> str:
        return f"gradient of attention {self.scores}"

    def __call__(self, query: Any, key: Any, value: Any, tangent: Any, total: Any, delta: Any,
                 *given: Any) -> tuple[Any, Any, Any]:
        q, k, v, g = [x.float() for x in (query, spread(key, query), spread(value, query), tangent)]
        score, mask = self.scores.modified(given[LISTS:])
        scores = q @ k.transpose(-2, -1) * self.scores.scale
        places = indices(scores)
        kept = mask(*places) & (total > -math.inf)[..., None]
        weights = torch.exp2(score(scores, *places).float() / math.log(2) - total[..., None]).masked_fill(~kept, 0.0)
        back = weights * (g @ v.transpose(-2, -1) - delta[..., None])
        if self.scores.gradient is not None:
            back = run(self.scores.gradient, [scores, *places, back, *self.scores.operands(given[LISTS:], 1)])[0]
        back = back.masked_fill(~kept, 0.0) * self.scores.scale
        found = back @ k, back.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ g
        return tuple([gathered(x, like).to(like.dtype) for x,  # type: ignore[return-value]
                      like in zip(found, (query, key, value))])


def gathered(x: Any, like: Any) -> Any:
    """Return the sum over the heads that share those of `like`."""
    return x.unflatten(1, (like.size(1), -1)).sum(2)
