"""Control flow as nodes: a branch on a value of the graph, whose arms are graphs, a loop and a scan, whose body is one.

    Branch(yes, no)(condition, *operands)  ->  the results of one arm
    Loop(body, n)(condition, *operands)    ->  the last n values of the state, what the rounds gave, stacked
    Scan(body, n, m)(length, *operands)    ->  the last n values of the state, what the rounds gave, stacked

Both arms take all operands, and give results of the same layout; one may give None where the other gives a gradient.
The first n operands of a loop are its state; as long as the condition is true, body(*operands) gives the next
condition, the next state, and what is collected. Of a scan m operands follow, which have `length` slices along their
first dimension: a round takes one slice of each in the place of these. Operands are tensors and the sizes that the
graphs read. A result may be an operand itself. Stacks are contiguous. Values of different sizes are stacked as two
tensors: all elements, one value after the other, and a table of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch.fx import Graph, Node

from framesmith.graph.digest import digest_text
from framesmith.graph.interpreter import evaluate, run
from framesmith.graph.launch import OfOneGraph
from framesmith.graph.nodes import insert_call
from framesmith.graph.purity import draws
from framesmith.graph.symbols import size_sources
from framesmith.graph.traversal import last_node
from framesmith.symbolic.node import expr_of

aten = torch.ops.aten
Arm = Callable[[Any], Sequence[Any]]
"""A function that computes an arm from its operands."""


class Control(OfOneGraph):
    """A node made of graphs."""

    __slots__ = ()

    @property
    def arms(self) -> tuple[Graph, ...]:
        raise NotImplementedError

    @property
    def varying(self) -> int:
        """The number of operands that differ from round to round."""
        return 0

    def run(self, arms: Sequence[Arm], first: Any, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results, with the arms given as callables."""
        raise NotImplementedError

    def __call__(self, first: Any, *operands: Any) -> tuple[Any, ...]:
        return tuple(self.run([partial(run, arm) for arm in self.arms], first, operands))

    @property
    def is_pure(self) -> bool:  # type: ignore[override]
        """True if it draws no random numbers."""
        return not any(draws(n) for arm in self.arms for n in arm.nodes)

    def __str__(self) -> str:
        return f"{self.__name__} {[digest_text(arm) for arm in self.arms]}"  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, eq=False)
class Branch(Control):
    """See the module. `complete`: a missing gradient of an arm is zeros, as the program's derivative defines it, not
    None. `derivatives`: the derivatives by `autograd.branches`, keyed by which operands require grad, so that a branch
    is one operator wherever its graph is differentiated."""

    __name__: ClassVar[str] = "branch"  # type: ignore[misc]
    yes: Graph
    no: Graph
    complete: bool = False
    derivatives: dict[Any, Any] = field(default_factory=dict)

    @property
    def arms(self) -> tuple[Graph, Graph]:
        """The arms, in the order of the condition: false, true."""
        return self.no, self.yes

    @property
    def vals(self) -> list[Any]:
        """The metadata of each result, as an arm gives it."""
        return [(b if a is None else a).meta["val"] for a, b in zip(*map(results_of, self.arms))]

    def __str__(self) -> str:
        return f"{Control.__str__(self)} {self.complete}"

    def run(self, arms: Sequence[Arm], first: Any, operands: Sequence[Any]) -> Sequence[Any]:
        return arms[bool(first)](operands)


@dataclass(frozen=True, slots=True, eq=False)
class Loop(Control):
    """See the module. `size`: of the state. `rounds`: their number as a `torch.SymInt`, if it may be needed; a loop
    that `collects` defines its symbol, a size of the first collected stack. `ragged`: the places among what it collects
    of values whose sizes differ; their tables of sizes are the last results. `complete`, `derivatives`: as a branch has
    them."""

    __name__: ClassVar[str] = "loop"  # type: ignore[misc]
    body: Graph
    size: int
    complete: bool = False
    rounds: Any = None
    collects: bool = False
    ragged: tuple[int, ...] = ()
    derivatives: dict[Any, Any] = field(default_factory=dict)

    @property
    def arms(self) -> tuple[Graph, ...]:
        return (self.body,)

    @property
    def varying(self) -> int:
        return self.size

    def __str__(self) -> str:
        rounds = self.rounds if self.collects else ""
        return f"{Control.__str__(self)} {self.size} {self.complete} {rounds} {self.ragged}"

    def run(self, arms: Sequence[Arm], first: Any, operands: Sequence[Any]) -> Sequence[Any]:
        state, rest = operands[:self.size], operands[self.size:]
        rounds: list[Sequence[Any]] = []
        while first:
            first, *state = arms[0]([*state, *rest])
            if self.collects:
                rounds.append(state[self.size:])
                state = state[:self.size]
        if not self.collects:
            return state
        stacks, tables = [], []
        for k, (n, blank) in enumerate(zip(results_of(self.body)[1 + self.size:], self._nothing(operands))):
            values = [given[k] for given in rounds]
            if k in self.ragged:
                stacks.append(torch.cat([blank.new_empty(0), *[x.reshape(-1) for x in values]]))
                sizes = torch.tensor([x.shape for x in values], dtype=torch.int64)
                tables.append(sizes.reshape(-1, n.meta["val"].dim()))
            else:
                stacks.append(torch.stack(values) if values else blank)
        return [*state, *stacks, *tables]

    def _nothing(self, operands: Sequence[Any]) -> list[torch.Tensor]:
        """Return stacks of no values, for which the body is not run."""
        places = [n for n in self.body.nodes if n.op == "placeholder"]
        symbols = {s: operands[k].shape[dim] for s, (k, dim) in size_sources(self.body).items()}
        symbols |= {expr_of(n.meta["val"]): x for n, x in zip(places, operands)  # type: ignore[misc]
                    if isinstance(n.meta["val"], torch.SymInt)}
        vals = [n.meta["val"] for n in results_of(self.body)[1 + self.size:]]
        sizes = [[0 if k in self.ragged else n if type(n) is int else evaluate(n, symbols) for n in val.shape]
                 for k, val in enumerate(vals)]
        return [torch.empty((0, *size), dtype=val.dtype, device=val.device) for size, val in zip(sizes, vals)]


@dataclass(frozen=True, slots=True, eq=False)
class Scan(Control):
    """See the module. `carried`, `scanned`: n and m. `backwards`: from the last slice to the first. `absent`: those of
    the state that are None if there is no slice. `ragged`: the places among the scanned operands of those whose slices
    differ in sizes; tables of sizes follow all operands. `joined`: the places among what it collects of values that are
    joined along their first dimension, in which they may differ. `derivatives`: as a branch has them."""

    __name__: ClassVar[str] = "scan"  # type: ignore[misc]
    body: Graph
    carried: int
    scanned: int
    backwards: bool = False
    absent: tuple[int, ...] = ()
    ragged: tuple[int, ...] = ()
    joined: tuple[int, ...] = ()
    derivatives: dict[Any, Any] = field(default_factory=dict)

    @property
    def arms(self) -> tuple[Graph, ...]:
        return (self.body,)

    @property
    def varying(self) -> int:
        return self.carried + self.scanned

    def __str__(self) -> str:
        told = self.carried, self.scanned, self.backwards, self.absent, self.ragged, self.joined
        return " ".join(map(str, (Control.__str__(self), *told)))

    def run(self, arms: Sequence[Arm], first: Any, operands: Sequence[Any]) -> Sequence[Any]:
        count = len(operands) - len(self.ragged)
        state, over, rest = operands[:self.carried], operands[self.carried:self.varying], operands[self.varying:count]
        if self.ragged:
            over = list(over)
            for k, table in zip(self.ragged, operands[count:]):
                sizes = table.tolist()
                parts = over[k].split([math.prod(size) for size in sizes])
                over[k] = [part.view(size) for part, size in zip(parts, sizes)]
        if not first and len(results_of(self.body)) == self.carried:
            return [None if k in self.absent else x for k, x in enumerate(state)]
        if not first:
            blank = arms[0]([*state, *[x.new_zeros(x.shape[1:]) for x in over], *rest])[self.carried:]
            return [*[None if k in self.absent else x for k, x in enumerate(state)],
                    *[y.new_empty((0, *y.shape[k in self.joined:])) for k, y in enumerate(blank)]]
        stacks: list[torch.Tensor] | None = None
        pieces: dict[int, list[torch.Tensor]] = {k: [] for k in self.joined}
        for k in range(first - 1, -1, -1) if self.backwards else range(first):
            given = arms[0]([*state, *[x[k] for x in over], *rest])
            state, out = given[:self.carried], given[self.carried:]
            if stacks is None:
                stacks = [y.new_empty((0 if n in self.joined else first, *y.shape)) for n, y in enumerate(out)]
            for n, (stack, y) in enumerate(zip(stacks, out, strict=True)):
                if n in pieces:
                    pieces[n].append(y)
                else:
                    stack[k] = y
        return [*state, *[torch.cat(pieces[n]) if n in pieces else x for n, x in enumerate(stacks)]]  # type: ignore[arg-type]


def results_of(graph: Graph) -> Sequence[Any]:
    """Return the results of a closed graph."""
    output = last_node(graph)
    assert output is not None
    return output.args[0]  # type: ignore[return-value]


def close(graph: Graph, results: Sequence[Any]) -> Graph:
    """Close the graph with these results, and return it."""
    output = graph.output(tuple(results))
    output.meta["val"] = tuple([r.meta["val"] if isinstance(r, Node) else r for r in results])
    return graph


def append(graph: Graph, target: Any, args: tuple[Any, ...], val: Any, **kwargs: Any) -> Node:
    """Append a call to a graph; `val`: the metadata of its result."""
    node = insert_call(graph, target, args, kwargs)
    node.meta["val"] = val
    return node


def append_blank(graph: Graph, val: torch.Tensor) -> Node:
    """Append uninitialised memory in the layout of `val`."""
    layout = list(val.shape), list(val.stride())
    return append(graph, aten.empty_strided.default, layout, val, dtype=val.dtype, device=val.device)


def layout_of(val: torch.Tensor, of: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return sizes and strides, each mapped by `of`, dtype and device: equal for tensors of one layout."""
    return tuple(map(of, val.shape)), tuple(map(of, val.stride())), val.dtype, val.device


__all__ = ["Branch", "Control", "Loop", "Scan", "append", "append_blank", "close", "layout_of", "results_of"]
