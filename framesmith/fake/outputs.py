"""The memory of a graph's outputs: each of the program's storages that leaves a graph has memory of its own.

In the graph a value may represent several storages (`y.copy_(x)` gives `y` the node of `x`), and a node may be a view
of another storage's; a write to one of the program's results must not change another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.layout import preserved_strides
from framesmith.fake.recording import Recording
from framesmith.fake.schema import is_view
from framesmith.fake.tensor import Alias, FakeTensor, Storage, guard_layout_assumptions, guard_layout_sizes
from framesmith.graph.derivative import behind

aten = torch.ops.aten

# Operators that return views, or may, that begin at their source's beginning.
_FROM_THE_START = frozenset((
    aten.reshape.default, aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default,
    aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.unsqueeze.default, aten.transpose.int, aten.t.default, aten.permute.default,
    aten.expand.default,
))

# Operators whose result is contiguous, with the strides of such a tensor where sizes are 1, too; views that keep that.
_ROW_MAJOR = frozenset((aten.linear.default, aten.mm.default, aten.addmm.default, aten.bmm.default,
                        aten.layer_norm.default, aten.embedding.default))
_IN_ROWS = frozenset((aten.view.default, aten._unsafe_view.default, aten.detach.default))


def _is_always_row_major(node: Node) -> bool:
    """Return whether the strides of a result follow from its sizes, whatever the operands' layouts are."""
    while node.target in _IN_ROWS:
        node = node.args[0]  # type: ignore[assignment]
    return node.target in _ROW_MAJOR


def memory_of(node: Node) -> tuple[Node, bool]:
    """Return the node whose memory `node` may share, and whether both begin at the same place."""
    same_start = True
    while node.op == "call_function":
        if (value := behind(node)) is not node:
            node = value
            continue
        if not (node.target in _FROM_THE_START or _is_view(node.target)):
            break
        same_start = same_start and node.target in _FROM_THE_START
        node = node.args[0]  # type: ignore[assignment]
    return node, same_start


def is_detached(alias: Alias) -> bool:
    """Return whether a view is detached from its base."""
    while alias.parent is not None and alias.func is not aten.detach.default:
        alias = alias.parent
    return alias.parent is not None


def _is_view(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and is_view(target)


def separate_storages(rec: Recording, outputs: list[Any]) -> list[Any]:
    """Return the output nodes, with copies where two storages would share memory with each other or an input."""
    owners: dict[Node, Storage] = {}
    out = []
    for fake in outputs:
        node = _at_its_place(rec, fake) if isinstance(fake, FakeTensor) else rec.nodes(fake)
        if isinstance(fake, FakeTensor):
            storage = fake._alias.storage
            if not _is_always_row_major(node):
                guard_layout_sizes(fake)
            guard_layout_assumptions(storage.copy_of)
            root, same_start = memory_of(node)
            if storage.input is not root:
                taken = owners.setdefault(root, storage) is not storage
                if root.op == "placeholder" or taken or fake._alias.parent is None and not same_start:
                    node = _copy(rec, node, fake)
        out.append(node)
    return out


def separate_writes(rec: Recording, written: list[FakeTensor]) -> list[Node]:
    """Return the new values of the written inputs, with copies of those in the memory of another, which a write before
    would change."""
    places = {fake._alias.storage.input for fake in written}
    values = []
    for fake in written:
        node = rec.nodes(fake)
        root, _ = memory_of(node)
        values.append(_copy(rec, node, fake) if root in places and root is not fake._alias.storage.input else node)
    return values


def _at_its_place(rec: Recording, fake: FakeTensor) -> Node:
    """Return the node of a fake; for a view that was written, one in the memory of its base."""
    alias = fake._alias
    node = rec.nodes(fake)
    if alias.parent is not None and memory_of(node)[0] is not memory_of(rec.read(alias.root))[0]:
        alias.version = -1
        node = rec.read(alias)
    return node


def _copy(rec: Recording, node: Node, fake: FakeTensor) -> Node:
    if preserved_strides(fake) == fake.stride():
        return rec.emit(aten.clone.default, (node,), fake)
    return rec.laid_out(node, fake)
