"""Minimum vertex cuts: the cheapest set of vertices that separates sources and sinks of a graph.

Source of the algorithm: Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation",
1970; a vertex's price is the capacity of the edge between its two halves (Ford and Fulkerson, "Flows in Networks",
1962).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

V = TypeVar("V", bound=Hashable)
FREE = 1 << 62
"""An unreachable price: the vertex is never chosen."""


def cheapest_cut(prices: Mapping[V, int], edges: Iterable[tuple[V, V]], sources: Iterable[V],
                 sinks: Iterable[V]) -> set[V]:
    """Return the vertices of the least total price that cut every path from a source to a sink (ends included), nearest
    the sources.

    Raises `ValueError` if a path has none with a finite price.
    """
    at = {v: 2 * k + 2 for k, v in enumerate(prices)}  # the entry of a vertex; its exit is the next number
    net = _Net(2 * len(at) + 2)
    for v, k in at.items():
        net.edge(k, k + 1, prices[v])
    for a, b in edges:
        net.edge(at[a] + 1, at[b], FREE)
    for v in sources:
        net.edge(0, at[v], FREE)
    for v in sinks:
        net.edge(at[v] + 1, 1, FREE)
    if net.flow() >= FREE:
        raise ValueError("no cut of a finite price")
    reached = net.levels()
    return {v for v, k in at.items() if reached[k] >= 0 and reached[k + 1] < 0}


class _Net:
    """A flow network from vertex 0 to vertex 1. Edge `e` and its reverse `e ^ 1` share the residual capacity."""

    def __init__(self, size: int) -> None:
        self.out: list[list[int]] = [[] for _ in range(size)]
        self.to: list[int] = []
        self.left: list[int] = []

    def edge(self, a: int, b: int, capacity: int) -> None:
        for x, y, c in ((a, b, capacity), (b, a, 0)):
            self.out[x].append(len(self.to))
            self.to.append(y)
            self.left.append(c)

    def levels(self) -> list[int]:
        """Return distances from the source over edges with residual capacity; -1: unreachable."""
        level = [-1] * len(self.out)
        level[0] = 0
        queue = [0]
        for v in queue:
            for e in self.out[v]:
                if self.left[e] and level[self.to[e]] < 0:
                    level[self.to[e]] = level[v] + 1
                    queue.append(self.to[e])
        return level

    def flow(self) -> int:
        """Saturate the network, and return the flow (at most `FREE`)."""
        total = 0
        while (level := self.levels())[1] >= 0:
            places = [0] * len(self.out)
            while (pushed := self._push(level, places)) and total < FREE:
                total += pushed
            if total >= FREE:
                break
        return total

    def _push(self, level: list[int], places: list[int]) -> int:
        """Augment one path along rising levels, and return its flow."""
        path: list[int] = []
        v = 0
        while v != 1:
            out = self.out[v]
            while places[v] < len(out):
                e = out[places[v]]
                if self.left[e] and level[self.to[e]] == level[v] + 1:
                    break
                places[v] += 1
            else:
                if not path:
                    return 0
                v = self.to[path.pop() ^ 1]
                places[v] += 1
                continue
            path.append(e)
            v = self.to[e]
        amount = min(self.left[e] for e in path)
        for e in path:
            self.left[e] -= amount
            self.left[e ^ 1] += amount
        return amount


__all__ = ["FREE", "cheapest_cut"]
