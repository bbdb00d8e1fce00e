"""Control flow in exported graphs: a branch, loop or scan (`graph.control`) whose arms have sizes as nodes, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import fx

from framesmith.export.sizes import symbols_in
from framesmith.graph.control import Branch, Control, Loop, Scan, close
from framesmith.symbolic.expr import Symbol
from framesmith.util.errors import ExportError

KINDS: dict[str, tuple[type, tuple[str, ...]]] = {
    "branch": (Branch, ("complete",)), "loop": (Loop, ("size", "complete")),
    "scan": (Scan, ("carried", "scanned", "backwards")),
}
"""The classes by name, and what they are made of besides their arms."""


def fields_of(target: Control) -> dict[str, Any]:
    """Return the fields of a node other than its arms. Raises `ExportError` for one that a derivative has made."""
    if isinstance(target, Loop) and target.collects or isinstance(target, Scan) and (
            target.absent or target.ragged or target.joined):
        raise ExportError("the derivative of a loop that data ends cannot be exported")
    return {name: getattr(target, name) for name in KINDS[target.__name__][1]}  # type: ignore[attr-defined]


def made_of(kind: str, arms: Sequence[fx.Graph], fields: dict[str, Any]) -> Control:
    """Return the node of these arms. Raises `ExportError` for an unknown kind."""
    if kind not in KINDS or set(fields) != set(KINDS[kind][1]) or len(arms) != (2 if kind == "branch" else 1):
        raise ExportError(f"there is no control flow {kind} of {len(arms)} arms and {sorted(fields)}")
    cls = KINDS[kind][0]
    return cls(*reversed(arms), **fields)  # type: ignore[no-any-return]


def with_arms(target: Control, change: Callable[[fx.Graph], fx.Graph]) -> Control:
    """Return the node with other arms."""
    return made_of(target.__name__, [change(arm) for arm in target.arms], fields_of(target))  # type: ignore[attr-defined]


def of_copies(arm: fx.Graph, spec: Callable[[Any], Any], copy: Callable[..., list[Any]]) -> fx.Graph:
    """Return an arm with what `copy(arm, into, values, inputs)` copies."""
    into = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for place in arm.nodes:
        if place.op == "placeholder":
            values[place] = into.create_node("placeholder", place.name, name=place.name)
            values[place].meta["val"] = spec(place.meta["val"])
    inputs = list(values.values())
    return close(into, copy(arm, into, values, inputs))


def calls(graph: fx.Graph) -> Iterator[fx.Node]:
    """Return the calls of operators in a graph and in the arms of its control flow."""
    for node in graph.nodes:
        if isinstance(node.target, Control):
            for arm in node.target.arms:
                yield from calls(arm)
        elif node.op == "call_function":
            yield node


def symbols(graph: fx.Graph) -> Iterator[Symbol]:
    """Yield the symbols in the sizes of values in a graph and in the arms of its control flow."""
    for node in graph.nodes:
        yield from sorted(symbols_in(node.meta.get("val")), key=str)
        for arm in node.target.arms if isinstance(node.target, Control) else ():
            yield from symbols(arm)


__all__ = ["KINDS", "calls", "fields_of", "made_of", "of_copies", "symbols", "with_arms"]
