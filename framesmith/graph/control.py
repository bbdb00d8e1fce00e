"""Control flow as nodes: a branch on a value of the graph, whose arms are graphs, and a loop, whose body is one.

    Branch(yes, no)(condition, *operands)  ->  the results of one arm
    Loop(body, n)(condition, *operands)    ->  the last n values of the state

Both arms take all operands, and give results of the same layout; one may give None where the other gives a gradient.
The first n operands of a loop are its state; as long as the condition is true, body(*operands) gives the next condition
and the next state. Operands are tensors and the sizes that the graphs read. A result may be an operand itself: then it
is that tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.fx import Graph, Node

from framesmith.graph.digest import digest_text
from framesmith.graph.interpreter import run
from framesmith.graph.launch import OfOneGraph
from framesmith.graph.purity import draws
from framesmith.graph.traversal import last_node

aten = torch.ops.aten


class Control(OfOneGraph):
    """A node made of graphs."""

    __slots__ = ()

    @property
    def arms(self) -> tuple[Graph, ...]:
        raise NotImplementedError

    @property
    def is_pure(self) -> bool:  # type: ignore[override]
        """Return whether it draws no random numbers."""
        return not any(draws(n) for arm in self.arms for n in arm.nodes)

    def __str__(self) -> str:
        return f"{self.__name__} {[digest_text(arm) for arm in self.arms]}"  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, eq=False)
class Branch(Control):
    """See the module. `complete`: a gradient that an arm does not give is zeros, as the program's derivative has it,
    and not None. `derivatives`: what `autograd.branches` makes of it, by which operands require grad: a branch is one
    operator wherever its graph is differentiated."""

    __name__: ClassVar[str] = "branch"  # type: ignore[misc]
    yes: Graph
    no: Graph
    complete: bool = False
    derivatives: dict[Any, Any] = field(default_factory=dict)

    @property
    def arms(self) -> tuple[Graph, Graph]:
        """In the order of what the condition may be: false, true."""
        return self.no, self.yes

    @property
    def vals(self) -> list[Any]:
        """The metadata of each result, as an arm gives it."""
        return [(b if a is None else a).meta["val"] for a, b in zip(*map(results_of, self.arms))]

    def __str__(self) -> str:
        return f"{Control.__str__(self)} {self.complete}"

    def __call__(self, condition: Any, *operands: Any) -> tuple[Any, ...]:
        return tuple(run(self.arms[bool(condition)], operands))


@dataclass(frozen=True, slots=True, eq=False)
class Loop(Control):
    """See the module. `size`: of the state."""

    __name__: ClassVar[str] = "loop"  # type: ignore[misc]
    body: Graph
    size: int

    @property
    def arms(self) -> tuple[Graph, ...]:
        return (self.body,)

    def __call__(self, condition: Any, *operands: Any) -> tuple[Any, ...]:
        return self.run(lambda given: run(self.body, given), condition, operands)

    def run(self, body: Callable[[Any], Sequence[Any]], condition: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
        """The last state, by a callable that stands for the body."""
        state, rest = operands[:self.size], operands[self.size:]
        while condition:
            condition, *state = body([*state, *rest])  # type: ignore[assignment]
        return tuple(state)


def results_of(graph: Graph) -> Sequence[Any]:
    """What a closed graph gives."""
    output = last_node(graph)
    assert output is not None
    return output.args[0]  # type: ignore[return-value]


def close(graph: Graph, results: Sequence[Any]) -> Graph:
    """The graph, with these results."""
    output = graph.output(tuple(results))
    output.meta["val"] = tuple([r.meta["val"] if isinstance(r, Node) else r for r in results])
    return graph


def append(graph: Graph, target: Any, args: tuple[Any, ...], val: Any, **kwargs: Any) -> Node:
    """A call at the end of a graph; `val`: the metadata of its result."""
    node = graph.create_node("call_function", target, (), {})
    node.args, node.kwargs = args, kwargs  # `create_node` warns of sizes that vary
    node.meta["val"] = val
    return node


def append_blank(graph: Graph, val: torch.Tensor) -> Node:
    """Memory of any content in the layout of `val`."""
    layout = list(val.shape), list(val.stride())
    return append(graph, aten.empty_strided.default, layout, val, dtype=val.dtype, device=val.device)


def layout_of(val: torch.Tensor, of: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Sizes and strides, each as `of` gives it, dtype and device: equal for tensors of one layout."""
    return tuple(map(of, val.shape)), tuple(map(of, val.stride())), val.dtype, val.device


__all__ = ["Branch", "Control", "Loop", "append", "append_blank", "close", "layout_of", "results_of"]
