"""The order of a function's results in the backward, and which of autograd's nodes the gradient of each passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class GradientOrder:
    """`later`: for each result the places of those from which autograd computes its gradient. `passed`: autograd's
    node -> the results whose gradients pass it, as bits. `uneven`: the different such sets of one node, where gradients
    of some results pass some of its outputs and not others."""

    later: tuple[tuple[int, ...], ...]
    passed: Mapping[Any, int] = field(default_factory=dict)
    uneven: frozenset[frozenset[int]] = frozenset()


def gradient_order(results: Sequence[Tensor]) -> GradientOrder:
    """Return the order of several results; of one, the trivial one."""
    if len(results) < 2:
        return GradientOrder(((),) * len(results))
    places: dict[Any, set[int]] = {}
    for k, x in enumerate(results):
        places.setdefault((x.grad_fn, x.output_nr), set()).add(k)
    beneath: dict[Any, set[int]] = {}
    for x in results:
        stack = [x.grad_fn]
        while stack:
            node = stack[-1]
            edges = [edge for edge in node.next_functions if edge[0] is not None]  # type: ignore[union-attr]
            missing = [child for child, _ in edges if child not in beneath]
            if node not in beneath and missing:
                stack += missing
                continue
            if stack.pop() not in beneath:
                beneath[node] = set().union(*(beneath[child] | places.get((child, number), set()) for child,
                                              number in edges))
    later = tuple([tuple([j for j, y in enumerate(results) if k in beneath[y.grad_fn]]) for k in range(len(results))])
    outputs: dict[Any, dict[int, int]] = {node: {} for node in beneath}
    for (node, number), found in places.items():
        outputs[node][number] = sum(1 << k for k in found)
    passed: dict[Any, int] = {}
    for node in reversed(beneath):  # those that it passes gradients to come before a node
        by = passed[node] = reduce(or_, outputs[node].values(), 0)
        for child, number in node.next_functions:
            if child is not None:
                outputs[child][number] = outputs[child].get(number, 0) | by
    uneven = {frozenset(found.values()) for found in outputs.values() if len(found) > 1}
    return GradientOrder(later, passed, frozenset(sets for sets in uneven if len(sets) > 1))


__all__ = ["GradientOrder", "gradient_order"]
