"""The order of a function's results in the backward: which results' gradients flow through others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def later_results(results: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
    """Return for each result the places of those from which autograd computes its gradient."""
    if len(results) < 2:
        return ((),) * len(results)
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
    return tuple([tuple([j for j, y in enumerate(results) if k in beneath[y.grad_fn]]) for k in range(len(results))])


__all__ = ["later_results"]
