"""Back ends for tests: they count compiled graphs, and run them in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from framesmith.backends import lookup_backend


class CompileCounter:
    """A back end. `frame_count`: graphs compiled; `op_count`: operators in them."""

    def __init__(self) -> None:
        self.frame_count = 0
        self.op_count = 0

    def __call__(self, gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.frame_count += 1
        self.op_count += sum(1 for node in gm.graph.nodes if node.op == "call_function")
        return self.build(gm, example_inputs)

    def build(self, gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """Return the function that runs the graph."""
        return gm.forward

    def clear(self) -> None:
        """Count from zero."""
        self.frame_count = self.op_count = 0


class CompileCounterWithBackend(CompileCounter):
    """The same in front of the back end `name`; `graphs` collects the graphs that it received."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.graphs: list[fx.GraphModule] = []

    def build(self, gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)
        return lookup_backend(self.name)(gm, example_inputs)
