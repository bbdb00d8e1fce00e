"""Elements of integer and boolean tensors that depend on positions and sizes alone, as expressions of their indices.

    arange(n)[:, None] >= arange(n)     at (i, j):   j <= i
    cumsum(diff(arange(n)) != 1)        at (i,):     0

An element is an integer expression, or a relation for a boolean tensor. A rule raises `Unknown` where it cannot tell
which element a result's element comes from, or has no expression for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch.fx import Node

from framesmith.symbolic.expr import TRUE, Expr, Int, Rel, Symbol, and_, eq, ge, gt, le, lt, ne, not_, or_, truth
from framesmith.symbolic.node import expr_of

aten = torch.ops.aten
Index = tuple[Expr, ...]
Element = Expr | Rel
Rule = Callable[..., Element]
RULES: dict[Any, Rule] = {}
"""Operator -> rule(elements, index, node, *arguments of the operator)."""
_EXACT = (torch.int64, torch.bool)
"""Dtypes of which elements are known; int32 may overflow at sizes that occur."""
_MOST = 4096
_FACTOR = 1 << 20
"""Greater factors may overflow int64 at sizes that occur."""


class Unknown(Exception):
    """An element is no expression that these rules find."""


class Elements:
    """The elements of values of one graph. Raises Unknown after `_MOST` of them, too."""

    def __init__(self) -> None:
        self.known: dict[tuple[Node, Index], Element] = {}

    def at(self, value: Any, index: Index) -> Element:
        """Return the element of a node's value at an index; of a number, itself."""
        if not isinstance(value, Node):
            return truth(value) if type(value) is bool else expr_of(_integer(value))
        if (value, index) not in self.known:
            rule = RULES.get(value.target)
            if rule is None or value.meta["val"].dtype not in _EXACT or len(self.known) > _MOST:
                raise Unknown
            self.known[value, index] = _as(value.meta["val"].dtype, rule(self, index, value, *value.args))
        return self.known[value, index]

    def operand(self, value: Any, index: Index, shape: Index) -> Element:
        """Return an operand's element for one of a result of `shape`, to which it is broadcast."""
        if not isinstance(value, Node):
            return self.at(value, ())
        own = shape_of(value)
        return self.at(value, tuple(_broadcast(i, n, wide) for i, n, wide in
                                    zip(index[len(index) - len(own):], own, shape[len(shape) - len(own):])))


def shape_of(node: Node) -> Index:
    """Return the sizes of a node's value."""
    return tuple(map(expr_of, node.meta["val"].shape))


def parts(shape: Sequence[Expr]) -> list[Index]:
    """Return symbolic indices that together stand for every element: along each dim 0, and any greater one."""
    return list(product(*[(Int(0),) if n is Int(1) else (Int(0), Symbol(f"index{d}", 1, n - 1))
                          for d, n in enumerate(shape)]))


def _broadcast(index: Expr, size: Expr, wide: Expr) -> Expr:
    if size is wide:
        return index
    if size is not Int(1):
        raise Unknown
    return Int(0)


def _integer(value: Any) -> Any:
    if not isinstance(value, (int, torch.SymInt, Expr)):
        raise Unknown
    return value


def _as(dtype: torch.dtype, element: Element) -> Element:
    """Convert an element to the type of its tensor."""
    if dtype is torch.bool:
        return element if isinstance(element, Rel) else ne(element, 0)
    return element if isinstance(element, Expr) else _number(element)


def _number(element: Element) -> Expr:
    if isinstance(element, Expr):
        return element
    if element.known is None:
        raise Unknown
    return Int(int(element.known))


def _is_at_least(a: Expr, b: Expr | int) -> bool:
    """Return whether a >= b for all values of the symbols."""
    return ge(a, b) is TRUE


def _rule(*targets: Any) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, rule))
        return rule

    return register


def _pointwise(function: Callable[..., Element], *targets: Any) -> None:
    def rule(elements: Elements, index: Index, node: Node, *args: Any) -> Element:
        if node.kwargs or len(args) > 2:  # a factor of the second
            raise Unknown
        shape = shape_of(node)
        return function(*[elements.operand(x, index, shape) for x in args])

    _rule(*targets)(rule)


def _numbers(function: Callable[[Expr, Expr], Element]) -> Callable[[Element, Element], Element]:
    return lambda a, b: function(_number(a), _number(b))


def _scaled(a: Expr, b: Expr) -> Expr:
    if not any(x.is_const and abs(x.const) < _FACTOR for x in (a, b)):
        raise Unknown
    return a * b


def _conditions(function: Callable[..., Rel]) -> Callable[..., Element]:
    return lambda *of: function(*[x if isinstance(x, Rel) else _of_bits(x) for x in of])


def _of_bits(element: Expr) -> Rel:
    """Return 0 and 1 as a condition; other integers have no bitwise expression here."""
    if element is not Int(0) and element is not Int(1):
        raise Unknown
    return ne(element, 0)


def _flipped(element: Element) -> Element:
    return not_(element) if isinstance(element, Rel) else -1 - element


for _function, _name in ((le, "le"), (lt, "lt"), (ge, "ge"), (gt, "gt"), (eq, "eq"), (ne, "ne")):
    _pointwise(_numbers(_function), getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)
_pointwise(_numbers(lambda a, b: a + b), aten.add.Tensor, aten.add.Scalar)
_pointwise(_numbers(lambda a, b: a - b), aten.sub.Tensor, aten.sub.Scalar)
_pointwise(_numbers(_scaled), aten.mul.Tensor, aten.mul.Scalar)
_pointwise(_conditions(and_), aten.bitwise_and.Tensor, aten.logical_and.default)
_pointwise(_conditions(or_), aten.bitwise_or.Tensor, aten.logical_or.default)
_pointwise(_conditions(not_), aten.logical_not.default)
_pointwise(_flipped, aten.bitwise_not.default)


@_rule(aten._to_copy.default, aten.clone.default, aten.alias.default, aten.detach.default,
       aten.lift_fresh_copy.default)
def _same(elements: Elements, index: Index, node: Node, source: Any) -> Element:
    return elements.at(source, index)


@_rule(aten.arange.start, aten.arange.start_step)
def _arange(elements: Elements, index: Index, node: Node, start: Any, end: Any, step: Any = 1) -> Element:
    return expr_of(_integer(start)) + index[0] * expr_of(_integer(step))


@_rule(aten.arange.default)
def _range(elements: Elements, index: Index, node: Node, end: Any) -> Element:
    return index[0]


@_rule(aten.full.default)
def _full(elements: Elements, index: Index, node: Node, shape: Any, value: Any) -> Element:
    return elements.at(value, ())


_rule(aten.ones.default, aten.new_ones.default, aten.ones_like.default)(lambda *_: Int(1))
_rule(aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default)(lambda *_: Int(0))


@_rule(aten.unsqueeze.default)
def _unsqueeze(elements: Elements, index: Index, node: Node, source: Any, dim: int) -> Element:
    dim %= len(index)
    return elements.at(source, (*index[:dim], *index[dim + 1:]))


@_rule(aten.expand.default)
def _expand(elements: Elements, index: Index, node: Node, source: Any, shape: Any) -> Element:
    return elements.operand(source, index, shape_of(node))


@_rule(aten.permute.default)
def _permute(elements: Elements, index: Index, node: Node, source: Any, dims: list[int]) -> Element:
    own = list(index)
    for place, dim in enumerate(dims):
        own[dim] = index[place]
    return elements.at(source, tuple(own))


@_rule(aten.transpose.int)
def _transpose(elements: Elements, index: Index, node: Node, source: Any, a: int, b: int) -> Element:
    own = list(index)
    own[a], own[b] = own[b], own[a]
    return elements.at(source, tuple(own))


@_rule(aten.t.default)
def _t(elements: Elements, index: Index, node: Node, source: Any) -> Element:
    return elements.at(source, index[::-1])


@_rule(aten.select.int)
def _select(elements: Elements, index: Index, node: Node, source: Any, dim: int, place: Any) -> Element:
    dim %= len(index) + 1
    return elements.at(source, (*index[:dim], _place(place, shape_of(source)[dim]), *index[dim:]))


@_rule(aten.slice.Tensor)
def _slice(elements: Elements, index: Index, node: Node, source: Any, dim: int = 0, start: Any = None, end: Any = None,
           step: Any = 1) -> Element:
    dim %= len(index)
    size = shape_of(source)[dim]
    first = _place(0 if start is None else start, size)
    if not _is_at_least(size, first):
        raise Unknown
    return elements.at(source, (*index[:dim], first + index[dim] * expr_of(step), *index[dim + 1:]))


def _place(place: Any, size: Expr) -> Expr:
    """Return a position, counted from the end if it is negative."""
    at = expr_of(_integer(place))
    if _is_at_least(at, 0):
        return at
    if not _is_at_least(-1 - at, 0) or not _is_at_least(size + at, 0):
        raise Unknown
    return size + at


@_rule(aten.cat.default)
def _cat(elements: Elements, index: Index, node: Node, tensors: Any, dim: int = 0) -> Element:
    """Return the element of the one part in which the index is for sure."""
    dim %= len(index)
    start: Expr = Int(0)
    for k, part in enumerate(tensors):
        if len(shape_of(part)) != len(index):  # an empty vector, which cat skips
            raise Unknown
        end = start + shape_of(part)[dim]
        if k == len(tensors) - 1 or _is_at_least(end - 1, index[dim]):
            return elements.at(part, (*index[:dim], index[dim] - start, *index[dim + 1:]))
        if not _is_at_least(index[dim], end):
            break
        start = end
    raise Unknown


@_rule(aten.cumsum.default)
def _cumsum(elements: Elements, index: Index, node: Node, source: Any, dim: int) -> Element:
    """Return the sum of equal elements."""
    dim %= len(index)
    added = {_number(elements.at(source, (*index[:dim], k, *index[dim + 1:])))
             for k in (Int(0), Symbol(f"summed {node.name}", 1, shape_of(source)[dim] - 1))}
    if len(added) != 1 or not (one := added.pop()).is_const:
        raise Unknown
    return one * (index[dim] + 1)


@_rule(aten.index.Tensor)
def _index(elements: Elements, index: Index, node: Node, source: Any, places: Any) -> Element:
    """Return the element at positions that are elements of other tensors, one tensor for each dim."""
    if len(places) != len(shape_of(source)) or not all(isinstance(p, Node) for p in places):
        raise Unknown
    own = tuple([_number(elements.operand(p, index, shape_of(node))) for p in places])
    if any(p.meta["val"].dtype is torch.bool for p in places) or not all(_is_at_least(i, 0) for i in own):
        raise Unknown
    return elements.at(source, own)


def _triangle(compare: Callable[[Any, Any], Rel]) -> Rule:
    def rule(elements: Elements, index: Index, node: Node, source: Any, diagonal: Any = 0) -> Element:
        kept = compare(index[-1], index[-2] + expr_of(_integer(diagonal)))
        element = elements.at(source, index)
        return and_(kept, element) if isinstance(element, Rel) else element * _number(kept)

    return rule


_rule(aten.tril.default)(_triangle(le))
_rule(aten.triu.default)(_triangle(ge))
