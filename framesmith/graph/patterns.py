"""Patterns of graphs: the equation that a pass applies, written as ordinary Python over variables.

    q, k, v, mask = tensors("q k v mask")
    rewrite(graph, {-(-v): v, p.softmax(q @ k + mask | q @ k, -1) @ v: attention})

`p.name` matches an ATen operator in any overload that writes nothing, `p.name.overload` in that one, `p.mm | p.bmm`
either. An omitted argument has its schema's default; `...` matches any argument, in the last place all that follow, and
`*x` binds these to a variable. Operands of commutative operators may be swapped. A repeated variable is one value.
Nodes inside a match have no readers outside of it, unless they are `shared`; the root may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Graph, Node

_COMMUTATIVE = frozenset(("add", "mul", "maximum", "minimum", "eq", "ne", "logical_and", "logical_or", "bitwise_and",
                          "bitwise_or"))
_PLAIN = frozenset((int, float, bool, str, torch.device))
_REQUIRED = object()
Bound = Mapping[Any, Any]
Condition = Callable[[Any], bool]


def _arithmetic(name: str) -> Callable[[Any, Any], Any]:
    return lambda x, y: (getattr(p, name).Tensor | getattr(p, name).Scalar)(x, y)


class Pattern:
    """An expression. `targets`: of the nodes that may match it."""

    targets: frozenset[Any] = frozenset()
    parts: Sequence[Any] = ()
    condition: Condition | None = None
    is_shared = False

    def where(self, condition: Condition) -> Any:
        """Return a pattern that also requires the condition of the value."""
        new = copy(self)
        new.condition = condition
        return new

    @property
    def shared(self) -> Any:
        """Return a pattern whose nodes may have readers outside of the match."""
        new = copy(self)
        new.is_shared = True
        return new

    def ways(self, value: Any, bound: Bound) -> Iterator[Bound]:
        """Yield, for each way in which `value` matches, `bound` extended by the bindings of this pattern and its
        parts."""
        if self in bound:
            yield from (bound,) if _is_same(bound[self], value) else ()
            return
        for found in self._ways(value, bound):
            if self.condition is None or self.condition(value):
                yield {self: value, **found}

    def _ways(self, value: Any, bound: Bound) -> Iterator[Bound]:
        raise NotImplementedError

    def __repr__(self) -> str:
        condition = f" at {id(self.condition):#x}" if self.condition else ""
        return f"{type(self).__name__}{self.parts}{sorted(map(str, self.targets))}{self.is_shared}{condition}"

    def __neg__(self) -> Pattern:
        return p.neg(self)

    def __matmul__(self, other: Pattern) -> Pattern:
        return (p.matmul | p.mm.default | p.bmm.default)(self, other)

    def __or__(self, other: Pattern) -> Pattern:
        return Either(self, other)

    __add__, __sub__, __mul__, __truediv__ = map(_arithmetic, ("add", "sub", "mul", "div"))
    __radd__, __rmul__ = __add__, __mul__


class Variable(Pattern):
    """Any node; with `loose`, any argument."""

    def __init__(self, name: str, loose: bool, condition: Condition | None) -> None:
        self.parts, self.loose, self.condition = (name, loose), loose, condition

    def _ways(self, value: Any, bound: Bound) -> Iterator[Bound]:
        yield from (bound,) if self.loose or isinstance(value, Node) else ()

    def __iter__(self) -> Iterator[Any]:
        yield _Rest(self)


class Either(Pattern):
    """One of several patterns; variables of the others are None."""

    def __init__(self, *options: Pattern) -> None:
        self.parts, self.targets = options, frozenset().union(*[x.targets for x in options])

    def _ways(self, value: Any, bound: Bound) -> Iterator[Bound]:
        for option in self.parts:
            yield from option.ways(value, bound)


class Through(Pattern):
    """A pattern under calls of `passed`, which are bound, the outermost first; a condition applies to each of them."""

    def __init__(self, passed: frozenset[Any], inner: Pattern) -> None:
        self.passed, self.parts = passed, (inner, sorted(map(str, passed)))
        self.targets = passed | inner.targets

    def ways(self, value: Any, bound: Bound) -> Iterator[Bound]:
        """Yield first for `value` itself."""
        seen: tuple[Node, ...] = ()
        while True:
            for found in self.parts[0].ways(value, bound):
                yield {self: seen, **found}
            if not isinstance(value, Node) or value.target not in self.passed or self.condition and not self.condition(
                    value):
                return
            seen, value = (*seen, value), value.args[0]


class Call(Pattern):
    """A call of one of `targets`."""

    def __init__(self, targets: frozenset[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.targets, self.args, self.kwargs, self.parts = targets, args, kwargs, (args, kwargs)

    def _ways(self, value: Any, bound: Bound) -> Iterator[Bound]:
        if isinstance(value, Node) and value.target in self.targets:
            given = arguments(value)
            for order in _orders(self, value.target, len(given)):
                yield from _each([(part, given[place]) for place, part in order], bound)


@dataclass(frozen=True)
class _Rest:
    variable: Variable


class Operator:
    """A factory of patterns of calls of any of `targets`; for an operator of PyTorch, all overloads that write
    nothing."""

    def __init__(self, *targets: Any) -> None:
        every = [[getattr(t, name) for name in t.overloads()] if isinstance(t, OpOverloadPacket) else [t]
                 for t in targets]
        self.targets = frozenset([t for some in every for t in some
                                  if not isinstance(t, OpOverload) or not t._schema.is_mutable])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the pattern of a call."""
        return Call(self.targets, args, kwargs)

    def __or__(self, other: Operator) -> Operator:
        return Operator(*self.targets, *other.targets)

    def __getattr__(self, overload: str) -> Operator:
        found = [t for t in self.targets if t._overloadname == overload]
        if not found:
            raise AttributeError(overload)
        return Operator(*found)


class _Aten:
    def __getattr__(self, name: str) -> Operator:
        return Operator(getattr(torch.ops.aten, name))


p = _Aten()


def tensors(names: str, where: Condition | None = None) -> list[Variable]:
    """Variables for nodes for which the condition holds."""
    return [Variable(name, False, where) for name in names.split()]


def values(names: str, where: Condition | None = None) -> list[Variable]:
    """Variables for arguments of any kind."""
    return [Variable(name, True, where) for name in names.split()]


class Match:
    """A match of a pattern at `root`. `nodes`: the matched nodes, each before those that it reads, and whether others
    may read them."""

    def __init__(self, root: Node, bound: Bound) -> None:
        self.root, self.graph, self.bound = root, root.graph, bound
        self.nodes = {node: x.is_shared for x, value in bound.items() if isinstance(x, (Call, Through))
                      for node in (value if isinstance(x, Through) else (value,))}

    def __getitem__(self, key: Any) -> Any:
        """Return the value bound to a pattern, or to each of several; None for an unbound one."""
        return tuple(map(self.bound.get, key)) if isinstance(key, tuple) else self.bound.get(key)

    def __bool__(self) -> bool:
        """Return whether no node outside of the match reads one inside."""
        return all(shared or node is self.root or all(user in self.nodes for user in node.users)
                   for node, shared in self.nodes.items())


def match(pattern: Pattern, root: Any) -> Match | None:
    """Return the first match of the pattern at `root`."""
    return next(filter(None, (Match(root, bound) for bound in pattern.ways(root, {}))), None)


def rewrite(graph: Graph, rules: Mapping[Any, Any], *context: Any) -> int:
    """Replace, in place, each node that matches a pattern of `rules`; return the number of replacements. A replacement
    is a variable, or a function of the match and `context` that adds nodes before the root and returns one (without
    metadata it gets the root's), or None to try the next match."""
    table: dict[Any, list[tuple[Pattern, Any]]] = {}
    for pattern, replacement in rules.items():
        for target in pattern.targets:
            table.setdefault(target, []).append((pattern, replacement))
    roots = [node for node in graph.nodes if node.op == "call_function" and node.target in table]
    return sum([any(_replace(Match(root, bound), replacement, context) for pattern, replacement in table[root.target]
                    for bound in pattern.ways(root, {})) for root in roots])


def _replace(found: Match, replacement: Any, context: tuple[Any, ...]) -> bool:
    if not found:
        return False
    with found.graph.inserting_before(found.root):
        new = found[replacement] if isinstance(replacement, Pattern) else replacement(found, *context)
    if new is None:
        return False
    new.meta = new.meta if "val" in new.meta else dict(found.root.meta)
    found.root.replace_all_uses_with(new)
    for node in found.nodes:
        if not node.users:
            found.graph.erase_node(node)
    return True


def arguments(node: Node) -> list[Any]:
    """Return all arguments of a call in the order of its schema, defaults filled in."""
    places, defaults = _parameters(node.target)
    out = [*node.args, *defaults[len(node.args) :]]
    for name, value in node.kwargs.items():
        out[places[name]] = value
    return out


def _parameters(target: Any) -> tuple[dict[str, int], list[Any]]:
    """Return the places of an operator's arguments, and their defaults; none for another function."""
    return _of_operator(target) if isinstance(target, OpOverload) else ({}, [])


@cache
def _of_operator(target: OpOverload) -> tuple[dict[str, int], list[Any]]:
    known = target._schema.arguments
    return ({x.name: k for k, x in enumerate(known)},
            [x.default_value if x.has_default_value() else _REQUIRED for x in known])


@cache
def _orders(call: Call, target: Any, count: int) -> list[list[tuple[Any, Any]]]:
    """Yield for each permitted order of operands the pairs (place among `count` arguments, pattern)."""
    places, defaults = _parameters(target)
    args, rest = call.args, call.args[-1:]
    if rest == (...,) or rest and isinstance(rest[0], _Rest):
        args = args[:-1]
    else:
        rest = ()
    order: list[tuple[Any, Any]] = [*enumerate(args)]
    order += [(places.get(name, count), part) for name, part in call.kwargs.items()]
    if any(place >= count for place, _ in order):
        return []
    left = () if rest else sorted(set(range(count)).difference([place for place, _ in order]))
    order += [(k, defaults[k] if k < len(defaults) else _REQUIRED) for k in left]
    order += [(slice(len(args), None), x.variable) for x in rest if x is not ...]
    order = [(place, part) for place, part in order if part is not ...]
    swaps = len(call.args) == 2 and not rest and not call.kwargs and target.__name__.split(".")[0] in _COMMUTATIVE
    return [order, [(1 - place if place < 2 else place, part) for place, part in order]] if swaps else [order]


def _each(pairs: list[tuple[Any, Any]], bound: Bound) -> Iterator[Bound]:
    """Yield the bindings of each way in which all values match their patterns."""
    if not pairs:
        yield bound
        return
    part, value = pairs[0]
    for found in part.ways(value, bound) if isinstance(part, Pattern) else (bound,) if _is_same(part, value) else ():
        yield from _each(pairs[1:], found)


def _is_same(a: Any, b: Any) -> bool:
    """Return whether arguments are equal, without guards on dynamic sizes."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_is_same, a, b))
    return a is b or (type(a) in _PLAIN and type(b) in _PLAIN and a == b)
