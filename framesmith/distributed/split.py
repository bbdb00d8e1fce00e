"""`split`: a model as stages of a pipeline, balanced by the predicted time and memory of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn

from framesmith.distributed.chain import Chain, memory_order
from framesmith.distributed.division import Costs, divided, like, part_at
from framesmith.distributed.layouts import STATES
from framesmith.distributed.links import H100, Hardware
from framesmith.export.exported import Program
from framesmith.export.model_graph import model_graph_of
from framesmith.export.modules import register
from framesmith.graph.purity import is_pure
from framesmith.graph.traversal import ancestors
from framesmith.util.errors import FramesmithError


class Stage(nn.Module):
    """A stage of a pipeline. Its parameters and buffers are those of the model, with their names.

    The first takes the tensors among the model's positional arguments, another the results of the one before it, and
    all take the tensors among the keyword arguments. The last returns the model's result. `example_inputs`,
    `example_outputs`: meta tensors like those of a micro-batch, for `PipelineStage`. `predicted_seconds`: of a
    micro-batch, forward and backward; `predicted_bytes`: of the stage's memory.
    """

    def __init__(self, graph: fx.Graph, examples: tuple[Sequence[Tensor], Sequence[Tensor]], state: Sequence[str],
                 written: Sequence[str], keywords: Mapping[str, Tensor], finish: Callable[[Sequence[Any]], Any]
                 ) -> None:
        super().__init__()
        self.example_inputs, self.example_outputs = map(tuple, examples)
        self.predicted_seconds = self.predicted_bytes = 0.0
        self._graph = fx.GraphModule(nn.Module(), graph)
        self._state, self._written, self._keywords, self._finish = tuple(state), tuple(written), dict(keywords), finish

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        """Compute the stage. Raises TypeError or ValueError where arguments are unlike the examples."""
        if len(args) != len(self.example_inputs) or kwargs.keys() != self._keywords.keys():
            raise TypeError(f"a stage of {len(self.example_inputs)} inputs and {', '.join(self._keywords) or 'no'} "
                            f"keyword arguments was called with {len(args)} and {', '.join(kwargs) or 'none'}")
        values = [*args, *[kwargs[name] for name in self._keywords]]
        for x, example in zip(values, (*self.example_inputs, *self._keywords.values()), strict=True):
            if x.shape != example.shape or x.dtype != example.dtype:
                raise ValueError(f"a tensor {tuple(x.shape)} of {x.dtype} where the stage takes one "
                                 f"{tuple(example.shape)} of {example.dtype}: it is for one size of micro-batches")
        state = [attrgetter(name)(self) for name in self._state]
        state = [x.clone() if name in self._written else x for name, x in zip(self._state, state, strict=True)]
        out = self._graph(*values, *state)
        count = len(out) - len(self._written)
        for name, value in zip(self._written, out[count:], strict=True):
            attrgetter(name)(self).copy_(value)
        return self._finish(out[:count])

    def extra_repr(self) -> str:
        return (f"predicted: {self.predicted_seconds * 1e3:.3g} ms a micro-batch, {self.predicted_bytes / 1e9:.3g} GB "
                "of memory")


def split(model: nn.Module | Program, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, stages: int,
          hardware: Hardware = H100, optimizer: str = "adamw") -> tuple[Stage, ...]:
    """Divide a model into stages of a pipeline, so that the slowest takes the least time of those that fit in memory.

    `args`, `kwargs`: a micro-batch, for whose sizes, dtypes and device the stages are. `model`: a module in training or
    evaluation mode, whose parameters the stages share, or an exported program. `hardware`: what a stage runs on, with
    its memory in bytes. `optimizer`: a key of `STATES`. Raises FramesmithError where a parameter would be in several
    stages, there are fewer parts than stages, or the model cannot be captured whole.
    """
    if optimizer not in STATES:
        raise FramesmithError(f"no optimizer {optimizer!r}; there are {', '.join(STATES)}")
    with torch.enable_grad():
        chain = Chain(model_graph_of(model, tuple(args), dict(kwargs or {})))
        bounds = chain.cuts()
        if not 1 <= stages <= len(bounds) - 1:
            raise FramesmithError(chain.refusal(stages, len(bounds) - 1))
        costs = Costs(chain, bounds, hardware, STATES[optimizer])
        chosen = divided(stages, costs, hardware.memory)
        made = _built(chain, [bounds[k] for k in chosen], costs.differentiable)
    for k, (a, b) in enumerate(pairwise(chosen)):
        made[k].predicted_seconds, made[k].predicted_bytes = costs.seconds(a, b), costs.memory(k, stages, a, b)
    return made


def _built(chain: Chain, bounds: Sequence[int], differentiable: set[fx.Node]) -> tuple[Stage, ...]:
    whole, last = chain.whole, len(bounds) - 2
    made: list[Stage] = []
    taken = set[str]()
    for k, (a, b) in enumerate(pairwise(bounds)):
        enters = [n for n, (kind, _) in whole.places.items() if kind == "input"] if k == 0 else chain.crossing(a)
        leaves = whole.results if k == last else chain.crossing(b)
        written = {name: value for name, value in whole.written.items() if k == part_at(bounds, chain.home(value))}
        examples = ([_sent(n, n in differentiable) if k else like(n, whole.wants_grad(n)) for n in enters],
                    [_sent(n, n in differentiable) if k < last else like(n, n in differentiable) for n in leaves])
        effects = [n for n in chain.order[a:b] if not is_pure(n)]
        stage, names = _stage(chain, (enters, leaves), examples, written, effects, (k == 0, k == last))
        made.append(stage)
        taken.update(names)
        _register(chain, stage, names)
    _register(chain, made[0], [name for name in whole.state if name not in taken])  # checkpoints have them, too
    return tuple(made)


def _register(chain: Chain, stage: Stage, names: Sequence[str]) -> None:
    """Give a stage tensors of the state under all their names."""
    whole = chain.whole
    for first in names:
        for name in whole.names[first]:
            if (head := name.partition(".")[0]) in vars(stage) or head == "_graph":
                raise FramesmithError(f"a stage has an attribute {head} of its own, and cannot have the model's {name}")
            register(stage, name, whole.kind(name), whole.state[first])


def _sent(node: fx.Node, grad: bool) -> Tensor:
    """Return a tensor like the one that is sent: its dimensions in their order in memory."""
    x = like(node)
    return x.permute(memory_order(x)).requires_grad_(grad)


def _stage(chain: Chain, values: tuple[Sequence[fx.Node], Sequence[fx.Node]],
           examples: tuple[Sequence[Tensor], Sequence[Tensor]], written: Mapping[str, fx.Node],
           effects: Sequence[fx.Node], ends: tuple[bool, bool]) -> tuple[Stage, list[str]]:
    """Make a stage that computes the second of `values` from the first, and return it with the names of its state.
    `effects`: calls that run even if nothing reads them. `ends`: whether it is the first stage, and the last."""
    whole, graph, (enters, leaves), (is_first, is_last) = chain.whole, fx.Graph(), values, ends
    keywords = [n for n, (kind, _) in whole.places.items() if kind == "keyword"]
    there = {n: graph.placeholder(n.name) for n in (*enters, *keywords)}
    needed = ancestors([*leaves, *written.values(), *effects], stop=there)
    state = [n for n in whole.places if n in needed and n not in there]
    there.update({n: graph.placeholder(n.name) for n in state})
    for n in enters if not is_first else ():
        there[n] = _laid_out(graph, there[n], memory_order(n.meta["val"]), back=True)
    for node in whole.nodes:
        if node in needed and node not in there:
            there[node] = graph.node_copy(node, there.__getitem__)
            there[node].meta = {}
    results = [there[n] if is_last else _laid_out(graph, there[n], memory_order(n.meta["val"])) for n in leaves]
    graph.output((*results, *[there[n] for n in written.values()]))
    names = [whole.places[n][1] for n in state]
    stage = Stage(graph, examples, names, list(written), {whole.places[n][1]: like(n) for n in keywords},
                  whole.finish if is_last else _sent_on)
    return stage, list(dict.fromkeys([*names, *written]))


def _sent_on(values: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return values[0] if len(values) == 1 else tuple(values)


def _laid_out(graph: fx.Graph, node: fx.Node, order: list[int], *, back: bool = False) -> fx.Node:
    """Permute a value so that it is contiguous, or `back`."""
    if order == sorted(order):
        return node
    dims = [order.index(d) for d in range(len(order))] if back else order
    return graph.call_function(torch.ops.aten.permute.default, (node, dims))
