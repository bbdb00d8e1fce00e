"""Modifications of attention's scores: called at each place, and differentiated."""

from __future__ import annotations

from typing import Any

import torch


def one_by_one(fn: Any, scores: Any, places: Any) -> Any:
    """Apply `fn` to one score (if `scores` are given) and its four indices, at every position."""
    first = () if scores is None else (0,)
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        fn = torch.vmap(fn, in_dims=first + dims)
    given = [place.flatten() for place in places]
    return fn(*given) if scores is None else fn(scores, *given)


def pulled_back(fn: Any, scores: Any, b: Any, h: Any, q: Any, k: Any, tangent: Any) -> Any:
    """Return the gradient of scores from that of the scores modified by `fn`."""
    pullback: Any = torch.func.vjp(lambda s: fn(s, b, h, q, k), scores)[1]
    return pullback(tangent)[0]


def keeps_padded_places(layer: Any, src: Any) -> bool:
    """Return False where eager's transformer encoder may use nested tensors of the unmasked elements, and zero the
    rest: it then runs in eager."""
    return torch.is_grad_enabled() and (src.requires_grad or layer.self_attn.in_proj_weight.requires_grad)
