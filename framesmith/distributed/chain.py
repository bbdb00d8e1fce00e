"""The operators of a model in their order, and where the order can be cut into stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

from torch import Tensor, fx

from framesmith.export.model_graph import ModelGraph
from framesmith.export.program import STATE
from framesmith.graph.purity import is_pure, is_view


class Chain:
    """`order`: operators; `place`: by value, the place of its operator in `order`, and -1 for the model's inputs.

    A view, and a value that depends on keyword arguments and constants alone, has no place: each stage that reads it
    computes it. `reads`: by node, the values with a place and the placeholders that it is computed of. `first`, `last`:
    the places at which these are read; a written buffer is read where its new value is made, too.
    """

    def __init__(self, whole: ModelGraph) -> None:
        self.whole = whole
        self.order: list[fx.Node] = []
        self.place = {node: -1 for node, (kind, _) in whole.places.items() if kind == "input"}
        self.reads = {node: frozenset((node,)) for node in whole.places}
        free = {node for node, (kind, name) in whole.places.items()
                if kind in ("buffer", "constant", "keyword") and name not in whole.written}
        for node in whole.nodes:
            sources = node.all_input_nodes
            read = frozenset[fx.Node]().union(*[self.reads[n] for n in sources])
            item = sources[0] in self.place and not isinstance(sources[0].meta["val"], Tensor) if sources else False
            if is_pure(node) and read <= free or is_view(node.target) and not item:
                self.reads[node] = read
                continue
            self.reads[node] = frozenset((node,))
            self.place[node] = self.place[sources[0]] if item else len(self.order)
            if not item:
                self.order.append(node)
        self.first: dict[fx.Node, int] = {}
        self.last: dict[fx.Node, int] = {}
        for node, k in self._uses():
            self.first[node], self.last[node] = min(self.first.get(node, k), k), max(self.last.get(node, k), k)

    def _uses(self) -> Iterator[tuple[fx.Node, int]]:
        for k, node in enumerate(self.order):
            yield from [(n, k) for source in node.all_input_nodes for n in self.reads[source]]
        end = max(0, len(self.order) - 1)
        yield from [(n, end) for result in self.whole.results for n in self.reads[result]]
        buffers = {name: node for node, (kind, name) in self.whole.places.items() if kind in STATE}
        for name, value in self.whole.written.items():
            yield from [(n, self.home(value)) for n in (buffers[name], *self.reads[value])]

    def home(self, value: fx.Node) -> int:
        """Return the first place at which all that a value is computed of is known."""
        return max([0, *[self.place[n] for n in self.reads[value] if n in self.place]])

    def state(self) -> list[fx.Node]:
        """Return the placeholders of state that are read or written."""
        return [n for n, (kind, _) in self.whole.places.items() if kind in STATE and n in self.first]

    def is_trained(self, node: fx.Node) -> bool:
        """Return whether a placeholder of state is a parameter that requires grad."""
        kind, name = self.whole.places[node]
        return kind == "parameter" and self.whole.state[name].requires_grad

    def _whole_spans(self) -> list[tuple[fx.Node, int, int]]:
        """First and last place of state that has to be in one stage: it is trained or written."""
        return [(n, self.first[n], self.last[n]) for n in self.state()
                if self.is_trained(n) or self.whole.places[n][1] in self.whole.written]

    def _beginnings(self) -> list[int]:
        """Return the places of the first readers of parameters."""
        return sorted({self.first[n] for n in self.state() if self.whole.places[n][0] == "parameter"})

    def crossing(self, cut: int) -> list[fx.Node]:
        """Return the values of places before `cut` that are read at or behind it."""
        return [n for n, at in self.place.items() if at < cut <= self.last.get(n, -1)]

    def cuts(self) -> list[int]:
        """Return the bounds of the parts that a stage may consist of: between the first readers of two parameters, the
        cut that fewest bytes cross, if there is one that tensors cross which are dense in memory, and nothing else."""
        crossing = [(at, self.last[n], n) for n, at in self.place.items() if n in self.last]
        values = self._over((a, b, 1) for a, b, _ in crossing)
        size = self._over((a, b, bytes_of(n)) for a, b, n in crossing if _is_dense(n))
        barred = self._over([*((a, b, 1) for a, b, n in crossing if not _is_dense(n)),
                             *((a, b, 1) for _, a, b in self._whole_spans())])
        found = [0]
        for a, b in pairwise(self._beginnings()):
            if places := [k for k in range(a + 1, b + 1) if values[k] and not barred[k]]:
                found.append(min(places, key=lambda k: (size[k], k)))
        return [*found, len(self.order)]

    def _over(self, spans: Iterable[tuple[int, int, int]]) -> list[int]:
        """Return, by cut, the sum of the weights of those spans (place before, last place, weight) that it lies
        in."""
        steps = [0] * (len(self.order) + 2)
        for before, last, weight in spans:
            steps[before + 1] += weight
            steps[last + 1] -= weight
        return list(accumulate(steps))

    def shared(self) -> list[str]:
        """Return names of state that would be in several stages, if each began with the first reader of a parameter."""
        cuts = self._beginnings()
        return sorted({self.whole.places[n][1] for n, a, b in self._whole_spans() if any(a < k <= b for k in cuts)})

    def refusal(self, stages: int, parts: int) -> str:
        """Say why there are no `stages` stages."""
        text = f"{stages} stages of a model that has {parts} part{'s' * (parts != 1)}"
        if names := self.shared():
            text += "; these are read or written in several parts, and have to stay in one stage: " + ", ".join(
                " (also ".join(self.whole.names[n]) + ")" * (len(self.whole.names[n]) - 1) for n in names)
        return text


def bytes_of(node: fx.Node) -> int:
    """Return the bytes of a value's elements."""
    x: Tensor = node.meta["val"]
    return x.numel() * x.itemsize


def memory_order(x: Tensor) -> list[int]:
    """Return the dimensions of a tensor from the outermost in memory to the innermost."""
    return sorted(range(x.dim()), key=lambda d: (-x.stride()[d], d))


def _is_dense(node: fx.Node) -> bool:
    """Return whether a value is a tensor without gaps between its elements."""
    x = node.meta["val"]
    return isinstance(x, Tensor) and x.permute(memory_order(x)).is_contiguous()
