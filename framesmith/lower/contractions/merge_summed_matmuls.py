"""Merge sums of products, such as the gradient of a weight that is used repeatedly, into one product of longer
operands.

    a1 @ b1 + a2 @ b2 + ... + rest  ->  sum + rest,   sum = addmm(sum, cat(a1, a2, ..., 1), cat(b1, b2, ..., 0)), some
                                                      at a time

One accumulator replaces a buffer for each product. Operands that are small compared to it are collected, so that it is
read and written less often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.contractions.pack_linear import static, value_of

aten = torch.ops.aten
FEWEST, LEAST, MOST = 4, 8, 16
"""The least number of products to merge, and the least and largest number that are merged into one."""


def merge_summed_matmuls(graph: fx.Graph) -> None:
    """Rewrite every such sum, in place. A merged product is placed after the last of its parts."""
    place = {node: k for k, node in enumerate(graph.nodes)}
    for node in reversed(list(graph.nodes)):
        if not _is_sum(node) or len(node.users) == 1 and _is_sum(next(iter(node.users))):
            continue
        groups: dict[Any, list[fx.Node]] = {}
        rest: list[fx.Node] = []
        for term in sorted(_terms(node), key=place.__getitem__):
            key = _key(term)
            (rest if key is None else groups.setdefault(key, [])).append(term)
        large = [group for group in groups.values() if len(group) >= FEWEST]
        if not large:
            continue
        rest += [term for group in groups.values() if len(group) < FEWEST for term in group]
        total, *others = [*[_joined(graph, group) for group in large], *rest]
        for term in others:
            with graph.inserting_before(node):
                total = Nodes(graph, node)(aten.add.Tensor, (total, term), tuple(value_of(node).shape))
        total.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(total)


def _is_sum(node: fx.Node) -> bool:
    return node.target is aten.add.Tensor and not node.kwargs and all(isinstance(a, fx.Node)
                                                                      for a in node.args) and _like(*node.args, node)


def _like(*nodes: Any) -> bool:
    """Return whether values have the same static shape and dtype."""
    found = [value_of(n) for n in nodes]
    return static(*found) and len({(tuple(v.shape), v.dtype) for v in found}) == 1


def _terms(node: fx.Node) -> list[fx.Node]:
    """Return the terms of a tree of sums, in order."""
    found: list[fx.Node] = []
    todo = [node]
    while todo:
        at = todo.pop()
        if _is_sum(at) and (at is node or len(at.users) == 1):
            todo += reversed(at.all_input_nodes if len(set(at.args)) == 2 else at.args)  # type: ignore[arg-type]
        else:
            found.append(at)
    return found


def _product(term: fx.Node) -> tuple[fx.Node, bool] | None:
    """Return the product that `term` is, or whose transpose it is (then True), if it has no other user."""
    turned = False
    while term.target is aten.t.default and len(term.users) == 1:
        (term,), turned = term.all_input_nodes, not turned
    if term.target is not aten.mm.default or len(term.users) != 1 or not static(*map(value_of, term.args)):
        return None
    return term, turned


def _key(term: fx.Node) -> Any:
    """Return the key on which terms of one merged product agree; None for a term that is no product, or whose operands
    are larger than two results."""
    found = _product(term)
    if found is None:
        return None
    a, b = map(value_of, found[0].args)
    (m, k), n = a.shape, b.shape[1]
    return (found[1], m, n) if k * (m + n) <= 2 * m * n else None


def _joined(graph: fx.Graph, terms: Sequence[fx.Node]) -> fx.Node:
    """Return the sum of `terms`, which are in the graph's order."""
    found = [pair for term in terms if (pair := _product(term)) is not None]
    total: fx.Node | None = None
    many = _together(found[0][0])
    for start in range(0, len(found), many):
        products = [product for product, _ in found[start : start + many]]
        last = products[-1]
        with graph.inserting_before(last):
            a = _end_to_end(graph, last, [p.args[0] for p in products], 1)  # type: ignore[misc]
            b = _end_to_end(graph, last, [p.args[1] for p in products], 0)  # type: ignore[misc]
            add, shape = Nodes(graph, last), (value_of(a).shape[0], value_of(b).shape[1])
            total = add(aten.mm.default, (a, b), shape) if total is None else add(aten.addmm.default, (total, a, b),
                                                                                  shape)
    assert total is not None
    if not found[-1][1]:
        return total
    with graph.inserting_after(total):
        return add(aten.t.default, (total,), shape[::-1], (1, shape[1]))


def _together(product: fx.Node) -> int:
    """Return how many products like this one are merged into one: their operands are no larger than two results."""
    a, b = map(value_of, product.args)
    (m, k), n = a.shape, b.shape[1]
    many = min(2 * m * n // max(k * (m + n), 1), MOST)
    return many if many >= LEAST else 1


def _end_to_end(graph: fx.Graph, like: fx.Node, parts: list[fx.Node], dim: int) -> fx.Node:
    """Concatenate matrices along `dim` (a single one is unchanged) by eager's kernel: kernels of ours would differ only
    in their target. Transposed ones are concatenated in memory order."""
    if len(parts) == 1:
        return parts[0]
    add = Nodes(graph, like)
    if all(p.target is aten.t.default for p in parts):
        whole = _end_to_end(graph, like, [p.args[0] for p in parts], 1 - dim)  # type: ignore[misc]
        rows, columns = value_of(whole).shape
        return add(aten.t.default, (whole,), (columns, rows), (1, columns))
    shape = list(value_of(parts[0]).shape)
    shape[dim] = sum(value_of(p).shape[dim] for p in parts)
    return add(aten.hstack.default if dim else aten.vstack.default, (parts,), tuple(shape))
