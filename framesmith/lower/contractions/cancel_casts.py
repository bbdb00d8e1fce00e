"""Cancel casts to a wider type and back: a value that is widened for a layer, and narrowed again by autocast, is
unchanged."""

from __future__ import annotations

import torch
from torch import fx

from framesmith.graph.patterns import Match, p, rewrite, tensors, values
from framesmith.lower.contractions.pack_linear import value_of

WIDER = {
    torch.bfloat16: frozenset((torch.float32, torch.float64)), torch.float16: frozenset((torch.float32, torch.float64)),
    torch.float32: frozenset((torch.float64,)),
}
"""The types that can represent all values of a type."""

[x], [wider, narrow] = tensors("x"), values("wider narrow")
THERE_AND_BACK = p._to_copy(p._to_copy(x, dtype=wider).shared, dtype=narrow)


def cancel_casts(graph: fx.Graph) -> None:
    """Remove such casts, in place. A cast that is a result stays: it has memory of its own."""
    rewrite(graph, {THERE_AND_BACK: _original})


def _original(m: Match) -> fx.Node | None:
    """Return the value before both casts, if it has the final type, and the type in between represents all its
    values."""
    start = m[x]
    whole = value_of(start).dtype is m[narrow] and m[wider] in WIDER.get(m[narrow], ())
    return start if whole and start.op == "call_function" and not any(u.op == "output" for u in m.root.users) else None
