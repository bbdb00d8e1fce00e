"""Rewrite linear layers with frozen weights into the kernel that was chosen for them; `convolution` does the same with
convolutions. Bias, activation and residual are ordinary pointwise nodes then, which the scheduler fuses into the
contraction's epilogue. `pack` depends on parameters only: `graph.freeze` makes it a constant that follows the
parameter's version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import torch
from torch import fx

from framesmith.graph.freeze import is_input_free, is_parameter_expression
from framesmith.graph.patterns import Match, Pattern, p, rewrite, tensors, values
from framesmith.loops.contract import packed_columns
from framesmith.lower.contractions.geometry import Geometry, VectorUnit, contract, linear_geometry, pack
from framesmith.lower.contractions.nodes import Nodes, as_eager
from framesmith.prims.core import Size, numel, size_of
from framesmith.symbolic.expr import as_expr
from framesmith.symbolic.node import hint_of

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Request:
    """A contraction to choose a kernel for. `kind` is a row of `choice.CANDIDATES`; `shape` holds every size that
    matters."""

    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def key(self) -> str:
        return f"{self.kind} {str(self.dtype).removeprefix('torch.')} {'x'.join(map(str, self.shape))}"


class Choose(Protocol):
    """Answers a request with the name of a candidate. `unit`: what own kernels are made for."""

    @property
    def unit(self) -> VectorUnit: ...

    def __call__(self, request: Request) -> str: ...


Rule = Callable[[Match, Choose], fx.Node | None]
RULES: dict[Pattern, Rule] = {}
"""In the order in which they are tried."""


def rewrites(pattern: Pattern) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES[pattern] = as_eager(rule)
        return rule

    return register


def choose_contractions(graph: fx.Graph, choose: Choose) -> fx.Graph:
    """Replace every contraction that has a better kernel, in place; returns `graph`."""
    rewrite(graph, RULES, choose)
    return graph


def static(*values: Any) -> bool:
    return all(type(size) is int for value in values for size in value.shape)


def sizes_of(value: Any) -> tuple[Size, ...]:
    """The shape of a value, expressions where sizes vary."""
    return tuple(map(size_of, value.shape))


def surely_filled(*values: Any, behind: int = 0) -> bool:
    """Return whether no size of the values is ever 0, but for the first `behind` of each."""
    return all((as_expr(size).lo or 0) > 0 for value in values for size in sizes_of(value)[behind:])


MORE = 8
"""A kernel of a varying number of rows is measured for this many or more, and for this many times as many."""


def usual(*sizes: Any) -> int:
    """The product of sizes, for which a kernel is chosen: where it varies, the power of two at the present one, which
    says little of others where it is 0 or 1."""
    present = prod(map(hint_of, sizes))
    return present if all(type(n) is int for n in sizes) else max(1 << (present - 1).bit_length(), MORE)


def value_of(node: Any) -> Any:
    return node.meta["val"] if isinstance(node, fx.Node) else None


def add_bias(add: Nodes, out: fx.Node, bias: Any) -> fx.Node:
    return out if bias is None else add(aten.add.Tensor, (out, bias), out.meta["val"].shape)


[x], [w], [b] = tensors("x"), tensors("w", is_parameter_expression), values("b")


@rewrites(p.linear(x, w, b) | p.addmm.default(b, x, w) | (p.mm.default | p.matmul)(x, w))
def _linear(m: Match, choose: Choose) -> fx.Node | None:
    """contract(x, pack(w)) + b"""
    weight, vx, vw, transposed = m[w], *map(value_of, m[x, w]), m.root.target is aten.linear.default
    if len(vw.shape) != 2 or not static(vw) or not transposed and len(vx.shape) < 2:
        return None
    n, k = vw.shape if transposed else vw.shape[::-1]
    shape = (*sizes_of(vx)[:-1], n)
    if not surely_filled(vw) or vx.dtype is not vw.dtype or vx.device.type != "cpu":
        return None
    add, rows = Nodes(m.graph, m.root), usual(*vx.shape[:-1])
    kernel = _kernel(choose, vx.dtype, (rows,) if static(vx) else (rows, MORE * rows), k, n)
    if kernel == "own":
        geometry = linear_geometry(numel(shape[:-1]), k, n, shape, choose.unit)
        columns = add(aten.t.default, (weight,), (k, n), (1, k)) if transposed else weight
        packed = add(pack, (columns, geometry.columns, geometry.lane), (packed_elements(geometry, k),))
        return add_bias(add, add(contract, (m[x], packed, geometry), shape), m[b])
    if kernel in ("mkldnn", "mkldnn_plain"):
        packed = weight if transposed else add(aten.t.default, (weight,), (n, k), (1, n))
        if kernel == "mkldnn":
            packed = add(torch.ops.mkldnn._reorder_linear_weight.default, (packed, rows), (n, k))
        return add(torch.ops.mkldnn._linear_pointwise.default, (m[x], packed, m[b], "none", [], ""), shape)
    return None


def _kernel(choose: Choose, dtype: torch.dtype, rows: Sequence[int], k: int, n: int) -> str:
    """The kernel that is chosen for each of the numbers of rows; where they differ, one that loses little anywhere."""
    chosen = {choose(Request("linear", dtype, (count, k, n))) for count in rows}
    return chosen.pop() if len(chosen) == 1 else "own" if dtype is torch.float32 else "mkldnn_plain"


def packed_elements(geometry: Geometry, depth: int) -> int:
    """Elements of the packed weight."""
    return depth * packed_columns(geometry.n, geometry.columns, geometry.lane)


def worth_freezing(node: fx.Node) -> bool:
    """Return whether an expression of parameters that holds `node` saves work in every call (views alone do not).

    What reads no parameter costs its kernels no memory traffic: it must hold work (rotary angles, a table looked up) to
    be kept, or be there for an operator that reads it in memory (`meta["kept"]`), or come from another device, for
    which a call would wait.
    """
    if node.meta.get("kept") or _comes_over(node):
        return True
    if is_input_free(node):
        return not _is_view(node) and node.target not in _CHEAP
    return not _is_view(node)


_CHEAP = frozenset(
    getattr(aten, name).default if not overload else getattr(getattr(aten, name), overload)
    for name, overload in (
        ("arange", ""), ("arange", "start"), ("arange", "start_step"), ("full", ""), ("zeros", ""), ("ones", ""),
        ("empty", "memory_format"), ("eye", ""), ("eye", "m"), ("scalar_tensor", ""),
        ("full_like", ""), ("zeros_like", ""), ("ones_like", ""), ("empty_like", ""),
        ("add", "Tensor"), ("sub", "Tensor"), ("rsub", "Scalar"), ("mul", "Tensor"), ("neg", ""), ("_to_copy", ""),
        ("clone", ""),
        ("eq", "Scalar"), ("ne", "Scalar"), ("lt", "Scalar"), ("le", "Scalar"), ("gt", "Scalar"), ("ge", "Scalar"),
        ("eq", "Tensor"), ("ne", "Tensor"), ("lt", "Tensor"), ("le", "Tensor"), ("gt", "Tensor"), ("ge", "Tensor"),
        ("bitwise_and", "Tensor"), ("bitwise_or", "Tensor"), ("bitwise_not", ""), ("logical_and", ""),
        ("logical_or", ""),
        ("logical_not", ""), ("where", "self"), ("fill", "Scalar"), ("lift_fresh_copy", ""), ("lift_fresh", ""),
    )
)


def _comes_over(node: fx.Node) -> bool:
    """Return whether a copy goes from one device to another."""
    return node.target is aten._to_copy.default and value_of(node).device != value_of(node.args[0]).device


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


