"""The operators that may raise for the data of their arguments, with known shapes and dtypes: a graph writes its inputs
after them.

So when a graph raises, no object of the program's has changed, and eager, which runs instead, raises with the effects
that precede the error.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch

from framesmith.graph.launch import OfOneGraph
from framesmith.graph.purity import communicates

_OURS = frozenset(("mkldnn", "framesmith", "prims"))
_NEVER = re.compile(
    r"_?(thnn_|native_|cudnn_|miopen_|mkldnn_|scaled_dot_product_|efficient_|flash_|fused_|foreach_|weight_norm|adaptive_|max_|avg_)?"
    r"(conv|mm\b|addmm|baddbmm|bmm|linear|matmul|mv\b|dot|attention|dropout|lstm|gru|rnn|rand(n|_like|n_like)?\b|empty|zeros|ones|full|copy"
    r"|clone|contiguous|to_copy|sort|topk|cum|pool|upsample|fft|batch_norm|layer_norm|group_norm|softmax|log_softmax|gelu|sum|mean|adam|sgd)"
)
"""Operators of ATen, without the prefix before `::`, that raise only when out of memory."""


def may_raise(target: Any) -> bool:
    """Return whether a call of the operator or Python function may raise for the data of its arguments."""
    if isinstance(target, torch._ops.OpOverload):
        return _operator_may_raise(target)
    return communicates(target) or not isinstance(target, OfOneGraph)


@cache  # of operators alone: others live as long as their graph
def _operator_may_raise(target: torch._ops.OpOverload) -> bool:
    space, name = target._schema.name.split("::")
    return not (space in _OURS and "embedding" not in name or space == "aten" and _NEVER.match(name))


def may_draw(target: Any) -> bool:
    """Return whether a call may advance a generator: the program's own functions may."""
    if not isinstance(target, torch._ops.OpOverload):
        return not communicates(target)
    known = target.namespace in _OURS | {"aten"} or communicates(target)
    return torch.Tag.nondeterministic_seeded in target.tags or not known
