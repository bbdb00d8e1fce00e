"""Half-precision products whose results are used only in float32, such as gradients of weights under autocast: the
library writes float32 directly."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith.graph.patterns import Match, Through, p, rewrite, tensors
from framesmith.lower.contractions.fuse_matmul_activation import VIEWS
from framesmith.lower.contractions.pack_linear import value_of
from framesmith.lower.geometry import strides_of
from framesmith.prims.core import Spec, size_of
from framesmith.util.precision import HALF

aten = torch.ops.aten
WIDE: dict[Any, Any] = {aten.mm.default: aten.mm.dtype, aten.bmm.default: aten.bmm.dtype}
"""The operator that computes a product in another output dtype."""

a, b = tensors("a b")
product = (p.mm.default | p.bmm.default)(a, b).where(lambda node: value_of(node).dtype in HALF)
views = Through(VIEWS, product)
WIDENED = p._to_copy(views, ..., dtype=torch.float32)


def widen_matmul_results(graph: fx.Graph) -> None:
    """Rewrite such products in place, where the cast would be a kernel of its own; kernels that compute with a result
    read half precision faster."""
    rewrite(graph, {WIDENED: _widened})


def _widened(m: Match) -> fx.Node | None:
    """mm(a, b, float32), with the same views behind it."""
    old = m[product]
    if not all(map(_leaves, m.root.users)) or not _same_place(m.root):
        return None
    with m.graph.inserting_before(old):
        new = m.graph.call_function(WIDE[old.target], (*m[a, b], torch.float32))
    new.meta = dict(old.meta)
    old.replace_all_uses_with(new)
    for changed in (new, *m[views]):
        changed.meta["val"] = _in_float32(value_of(changed))
    return (*m[views], new)[0]


def _leaves(user: fx.Node) -> bool:
    """Return whether a user only passes the value on, out of the graph."""
    return user.op == "output" or user.target in VIEWS and all(map(_leaves, user.users))


def _same_place(cast: fx.Node) -> bool:
    """Return whether a cast changes neither device nor layout of memory."""
    before, after = value_of(cast.args[0]), value_of(cast)
    return before.device == after.device and cast.kwargs.get("memory_format") in (None, torch.preserve_format)


def _in_float32(value: Any) -> Spec:
    return Spec(tuple(map(size_of, value.shape)), torch.float32, value.device, tuple(map(size_of, strides_of(value))))
