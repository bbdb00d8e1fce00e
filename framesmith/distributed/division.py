"""A chain of operators divided into stages, by the predicted time and memory of each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from framesmith.distributed.chain import Chain, bytes_of
from framesmith.distributed.links import Hardware
from framesmith.distributed.work import recorded

aten = torch.ops.aten
SLACK = 1.05
"""A division whose slowest stage takes up to this much longer than the best one's is taken if it sends less."""
_AS = {aten.scaled_dot_product_attention.default: nn.functional.scaled_dot_product_attention,
       aten.view.default: torch.reshape}
"""Functions in the place of operators: what `recorded` knows as fused, and what is a view of a kernel's result alone,
which has other strides on meta tensors."""


def like(node: fx.Node, grad: bool = False) -> Tensor:
    """Return a meta tensor of a value's metadata."""
    x: Tensor = node.meta["val"]
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta", requires_grad=grad)


def part_at(bounds: Sequence[int], place: int) -> int:
    """Return the part in which a place lies; the model's inputs, at -1, are in the first."""
    return max(0, bisect_right(bounds, place, hi=len(bounds) - 1) - 1)


Values = dict[fx.Node, Any]


class _Part(nn.Module):
    """A part of the model as a block of `recorded`: its parameters, and a function that computes its nodes."""

    def __init__(self, parameters: Sequence[nn.Parameter], run: Callable[[Values], None]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(parameters)
        self.run = run

    def forward(self, values: Values) -> None:
        self.run(values)


class _Step(nn.Module):
    """A call of the model by parts, on meta tensors. Copies of the module share what is within its functions: nodes,
    and `differentiable`, which gets those whose values require grad."""

    def __init__(self, chain: Chain, bounds: Sequence[int], differentiable: set[fx.Node]) -> None:
        super().__init__()
        whole = chain.whole
        arguments = [n for n, (kind, _) in whole.places.items() if kind in ("input", "keyword")]
        self.examples = [like(n, whole.wants_grad(n)) for n in arguments]
        buffers: list[fx.Node] = []
        owned: list[list[fx.Node]] = [[] for _ in bounds[1:]]
        for n in chain.state():
            kind, name = whole.places[n]
            if kind == "parameter":
                owned[part_at(bounds, chain.first[n])].append(n)
            else:
                self.register_buffer(f"b{len(buffers)}", whole.state[name])
                buffers.append(n)
        nodes: list[list[fx.Node]] = [[] for _ in bounds[1:]]
        at = 0
        for node in whole.nodes:
            at = max(at, part_at(bounds, chain.place.get(node, 0)))
            nodes[at].append(node)

        def computes(nodes: list[fx.Node]) -> Callable[[Values], None]:
            def run(values: Values) -> None:
                for node in nodes:
                    values[node] = _on_meta(node, values)
                differentiable.update(n for n in nodes if isinstance(x := values[n], Tensor) and x.requires_grad)
            return run

        def parameter(x: Tensor) -> nn.Parameter:
            return x if isinstance(x, nn.Parameter) else nn.Parameter(x, x.requires_grad)

        self.parts = nn.ModuleList([_Part([parameter(whole.state[whole.places[n][1]]) for n in own], computes(part))
                                    for own, part in zip(owned, nodes, strict=True)])

        def begin(step: Any, examples: Sequence[Tensor]) -> Values:
            values: Values = dict(zip((*arguments, *buffers), (*examples, *step.buffers()), strict=True))
            for own, part in zip(owned, step.parts, strict=True):
                values.update(zip(own, part.weights, strict=True))
            differentiable.update(n for n, x in values.items() if x.requires_grad)
            return values

        self.begin, self.results = begin, lambda values: [values[n] for n in whole.results]

    def forward(self, examples: Sequence[Tensor]) -> list[Tensor]:
        values = self.begin(self, examples)
        for part in self.parts:
            part(values)
        return self.results(values)


def _on_meta(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    args, kwargs = map_arg((node.args, dict(node.kwargs)), values.__getitem__)
    placed = {"device": torch.device("meta")} if kwargs.get("device") is not None else {}
    target: Any = node.target
    return _AS.get(target, target)(*args, **{**kwargs, **placed})


def _loss(results: Sequence[Tensor]) -> Tensor:
    """Return the sum of means of the results that require grad; a model without any has no backward."""
    means = [x.abs().mean() if x.is_complex() else x.mean() for x in results if x.requires_grad]
    return torch.stack(means).sum() if means else torch.zeros((), requires_grad=True)


class Costs:
    """Predicted seconds and bytes of stages that consist of the parts a .. b - 1. `differentiable`: nodes whose values
    require grad. `states`: copies of the parameters that the optimiser keeps."""

    def __init__(self, chain: Chain, bounds: Sequence[int], hardware: Hardware, states: int) -> None:
        self.parts = len(bounds) - 1
        self.differentiable: set[fx.Node] = set()
        step = _Step(chain, bounds, self.differentiable)
        work = recorded(step, (step.examples,), {}, _loss)
        seconds, state, saved = [0.0] * (self.parts + 1), [0.0] * (self.parts + 1), [*work.saved, 0.0]
        for op in (*work.forward, *work.backward):
            seconds[op.unit] += hardware.seconds(op.flops, op.bytes, op.dtype)
        for p in work.parameters:
            state[p.unit] += p.bytes * (2 + states if p.ready >= 0 else 1)
        self.sent = [0, *[sum(map(bytes_of, chain.crossing(k))) for k in bounds[1:-1]], 0]
        self._sends = [2 * hardware.collective("send", n, 2) if n else 0.0 for n in self.sent]
        self._seconds, self._state, self._saved = ([0.0, *accumulate(x[1:self.parts + 1])]
                                                   for x in (seconds, state, saved))

    def seconds(self, a: int, b: int) -> float:
        """Return the seconds of a micro-batch, forward and backward, and of what is sent at both ends."""
        return self._seconds[b] - self._seconds[a] + self._sends[a] + self._sends[b]

    def memory(self, stage: int, stages: int, a: int, b: int) -> float:
        """Return the bytes of parameters, gradients and states of the optimiser, and of the activations of as many
        micro-batches as there are stages from this one on (1F1B)."""
        return self._state[b] - self._state[a] + (stages - stage) * (self._saved[b] - self._saved[a])


def divided(stages: int, costs: Costs, memory: float) -> list[int]:
    """Return bounds of stages, by part: the least time of the slowest stage where all fit in `memory` bytes, or else in
    the least that the fullest stage can need; then the fewest bytes sent, and the most even, within `SLACK` of it."""

    def kept(k: int, a: int, b: int) -> Cost:
        return (costs.memory(k, stages, a, b),)

    limit = max((memory,), _best(costs.parts, stages, kept, max)[0])

    def seconds(k: int, a: int, b: int) -> Cost:
        return (costs.seconds(a, b) if kept(k, a, b) <= limit else torch.inf,)

    slowest = SLACK * _best(costs.parts, stages, seconds, max)[0][0]

    def sent(k: int, a: int, b: int) -> Cost:
        time = seconds(k, a, b)[0]
        return (costs.sent[a], time ** 2) if time <= slowest else (torch.inf, torch.inf)

    return [0, *_best(costs.parts, stages, sent, lambda x, y: (x[0] + y[0], x[1] + y[1]))[1]]


Cost = tuple[float, ...]


def _best(parts: int, stages: int, cost: Callable[[int, int, int], Cost], combine: Callable[[Cost, Cost], Cost]
          ) -> tuple[Cost, tuple[int, ...]]:
    """Minimise `combine` of the costs of stages over all divisions, by dynamic programming over the bounds: return the
    least cost, and the ends of its stages."""
    best: dict[int, tuple[Cost, tuple[int, ...]]] = {b: (cost(0, 0, b), (b,)) for b in range(1, parts + 1)}
    for k in range(1, stages):
        best = {b: min((combine(value, cost(k, a, b)), (*ends, b)) for a, (value, ends) in best.items() if a < b)
                for b in range(k + 1, parts + 1)}
    return best[parts]
