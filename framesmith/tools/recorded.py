"""The graphs of one call with their inputs: captured, and run operator by operator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith import _C
from framesmith.backends import Compiled
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.fake.layout import meets_itself
from framesmith.graph.interpreter import run
from framesmith.graph.traversal import copy_node
from framesmith.ledger import Ledger
from framesmith.pipeline import Report


@dataclass(frozen=True, slots=True)
class Recorded:
    """A graph of functional ATen operators, and the values of its placeholders in one call."""

    graph: fx.Graph
    inputs: list[Any]


class Recorder(FrameCompiler):
    """Captures as `compile` would, for static sizes, and records the graphs in the order in which they run, operator by
    operator, under autograd."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.with_(dynamic=False, data_symbols=False, warn=False), Ledger())
        self.graphs: list[Recorded] = []

    def compile_graph(self, graph: fx.Graph, examples: Sequence[Any],
                      keep: Callable[..., None] | None = None) -> tuple[Compiled, Report | None]:
        kept = copied(graph)

        def call(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            self.graphs.append(Recorded(kept, [own(x) for x in inputs]))
            return tuple(run(kept, inputs))

        return _C.CompiledFunction(call, None), None


def recorded(root: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], config: Config,
             train: bool) -> list[Recorded]:
    """Return the graphs of `root(*args, **kwargs)`."""
    recorder = Recorder(config)
    with torch.set_grad_enabled(train):
        _C.CompiledFunction(root, recorder)(*args, **kwargs)
    recorder.forget()
    return recorder.graphs


def copied(graph: fx.Graph, results: Sequence[Any] | None = None) -> fx.Graph:
    """Return a copy of a graph, with other nodes of it as its results if they are given."""
    out, made = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        if node.op == "output" and results is not None:
            out.output(tuple([made[r] for r in results])).meta["val"] = tuple([r.meta.get("val") for r in results])
        else:
            made[node] = copy_node(out, node, made.__getitem__)
    return out


def own(x: Any) -> Any:
    """Return a tensor with the same numbers, layout and need of gradients, in memory of its own."""
    if not isinstance(x, torch.Tensor):
        return x
    kept: Any = x.detach()
    if kept.layout is torch.strided and not meets_itself(kept):
        kept = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(kept)
    else:
        kept = kept.clone()
    return kept.requires_grad_(x.requires_grad)


@contextlib.contextmanager
def seeded(seed: int = 0) -> Iterator[Callable[[], bool]]:
    """Seed the generators within the block, and restore them. Yields a function that tells whether random numbers were
    drawn."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        before = _states()
        yield lambda: not all(map(torch.equal, before, _states()))


def _states() -> list[torch.Tensor]:
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(k) for k in devices)]
