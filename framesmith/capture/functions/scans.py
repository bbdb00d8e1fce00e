"""An associative scan whose combining function works element by element: log2(n) steps, each of which joins elements
twice as far apart (W. D. Hillis, G. L. Steele: Data parallel algorithms, CACM 29(12), 1986)."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import BY_NAME

_MOVES = frozenset({torch.ops.aten.slice.Tensor, torch.ops.aten.cat.default, torch.ops.aten.flip.default})


def _scanned(combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise") -> Any:
    """Followed in the place of PyTorch's: `xs` is a tensor or a flat tuple or list of them."""
    single = isinstance(xs, torch.Tensor)
    parts = [xs] if single else list(xs)
    kind = tuple if isinstance(xs, tuple) else list
    if reverse:
        parts = [x.flip(dim) for x in parts]
    size = parts[0].size(dim)
    reach = 1
    while reach < size:
        before = [x.narrow(dim, 0, size - reach) for x in parts]
        here = [x.narrow(dim, reach, size - reach) for x in parts]
        out = combine_fn(before[0], here[0]) if single else combine_fn(kind(before), kind(here))
        joined = [out] if single else list(out)
        parts = [torch.cat([x.narrow(dim, 0, reach), y], dim) for x, y in zip(parts, joined, strict=True)]
        reach = 2 * reach
    if reverse:
        parts = [x.flip(dim) for x in parts]
    return parts[0] if single else kind(parts)


def _associative_scan(tracer: Any, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
    known = set(tracer.recorder.graph.nodes)
    result = tracer.inline(tracer.made(_scanned), args, kwargs)
    for node in tracer.recorder.graph.nodes:
        if node not in known and node.target not in _MOVES and torch.Tag.pointwise not in getattr(node.target, "tags",
                                                                                                  ()):
            raise Unsupported("an associative scan whose combining function is not pointwise", hint="scan in a loop")
    return result


BY_NAME["torch._higher_order_ops.associative_scan.associative_scan"] = _associative_scan
