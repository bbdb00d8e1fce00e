"""Products with quantised weights: their integers are packed (csrc/quantized.cpp), so that neither a file nor memory
holds them as floats.

    x @ ((q - zero) * scale).T      becomes  framesmith::quantized_linear(x, pack(q.T), scale, zero)
    x @ float(q)                    becomes  framesmith::quantized_linear(x, pack(q))
    int_mm(a, q)                    becomes  framesmith::integer_matmul(a, pack(q)), exactly

`q`: of 8 bits, or of 4 where its placeholder's `meta["bits"]` says that all its elements fit. Rows of `scale` and
`zero` are groups of elements of the sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith import _C
from framesmith.graph.freeze import is_parameter_expression
from framesmith.graph.patterns import Match, Through, p, rewrite, tensors, values
from framesmith.lower.contractions.nodes import Nodes, as_eager
from framesmith.lower.contractions.pack_linear import add_bias, sizes_of, static, surely_filled, value_of
from framesmith.prims.core import Spec

aten = torch.ops.aten
library = torch.ops.framesmith
assert _C.LANES  # importing the core registers the operators

PANEL = 16
"""Columns of a packed panel."""
WORD = 32
"""Bits of a packed word: elements of one column."""

[x, a], [b] = tensors("x a"), values("b")
[q] = tensors("q", lambda node: value_of(node).dtype is torch.int8 and is_parameter_expression(node))
[zero, scale] = tensors("zero scale", is_parameter_expression)
LEVELS = p._to_copy(q, dtype=torch.float32).shared
SCALED = p.mul.Tensor(p.sub.Tensor(LEVELS, zero).shared | LEVELS, scale).shared
ROWS = Through((p.view | p.reshape | p._unsafe_view).targets, SCALED).shared
COLUMNS = p.permute(ROWS, [1, 0]).shared | p.t(ROWS).shared | LEVELS
LINEAR = p.linear(x, ROWS | LEVELS, b) | p.addmm.default(b, x, COLUMNS) | (p.mm.default | p.matmul)(x, COLUMNS)
INTEGERS = p._int_mm(a, q)


def pack_quantized_weights(graph: fx.Graph) -> None:
    """Replace products with quantised weights, in place."""
    rewrite(graph, {LINEAR: as_eager(_linear), INTEGERS: as_eager(_integers)})


def _linear(m: Match) -> fx.Node | None:
    vx, vq, add = value_of(m[x]), value_of(m[q]), Nodes(m.graph, m.root)
    n, k, bits = m.root.meta["val"].shape[-1], vx.shape[-1], _bits(m[q])
    if not static(vq) or not surely_filled(vq) or vx.dtype is not torch.float32 or vx.device.type != "cpu":
        return None
    scaled = m[scale] is not None
    group = vq.shape[-1] if scaled else k
    rows = [node for node in m[scale, zero] if node is not None]
    if k % group or group < k and group * bits % WORD or not all(_are_rows(value_of(r), n, k // group) for r in rows):
        return None
    turned = scaled or m.root.target is aten.linear.default
    packed = _packed(add, m[q], k, n, bits, turned)
    factors = [node if node is None else _rows(add, node, n, k // group) for node in m[scale, zero]]
    out = add(library.quantized_linear.default, (m[x], packed, *factors, n, bits, group), (*sizes_of(vx)[:-1], n))
    return add_bias(add, out, m[b])


def _integers(m: Match) -> fx.Node | None:
    va, vq, add = value_of(m[a]), value_of(m[q]), Nodes(m.graph, m.root)
    if not static(vq) or not surely_filled(vq) or va.dtype not in (torch.int8, torch.uint8) or va.device.type != "cpu":
        return None
    k, n = vq.shape
    return add(library.integer_matmul.default, (m[a], _packed(add, m[q], k, n, 8, False), n), (sizes_of(va)[0], n))


def _bits(node: fx.Node) -> int:
    """Return how many bits the elements of a parameter, or of views of it, need."""
    while node.op == "call_function":
        node = node.all_input_nodes[0]
    return node.meta.get("bits", 8)  # type: ignore[no-any-return]


def _packed(add: Nodes, weight: fx.Node, k: int, n: int, bits: int, turned: bool) -> fx.Node:
    words = -(-n // PANEL) * PANEL * -(-k * bits // WORD)
    spec = Spec.dense((words,), torch.int32, torch.device("cpu"))
    return add.of(pack_integers, (weight, k, n, bits, turned), spec)


def _are_rows(value: Any, n: int, groups: int) -> bool:
    """Return whether there is an element for each group of each column, in order."""
    return static(value) and value.numel() == n * groups and value.shape[-1] == 1


def _rows(add: Nodes, node: fx.Node, n: int, groups: int) -> fx.Node:
    spec = Spec.dense((groups * -(-n // PANEL) * PANEL,), torch.float32, torch.device("cpu"))
    return add.of(rows_of_groups, (node, n, groups), spec)


def pack_integers(weight: torch.Tensor, k: int, n: int, bits: int, turned: bool) -> torch.Tensor:
    """Pack the integers of a matrix (k, n), or of its transpose where it is `turned`, as csrc/quantized.cpp reads
    them."""
    per = WORD // bits
    matrix = weight.reshape(n, k).t() if turned else weight.reshape(k, n)
    words = torch.nn.functional.pad(matrix.to(torch.int32) & ((1 << bits) - 1), (0, -n % PANEL, 0, -k % per))
    places = bits * torch.arange(per, dtype=torch.int32)
    joined = (words.unflatten(0, (-1, per)) << places[:, None]).sum(1, dtype=torch.int32)  # modulo 2 ** 32
    return joined.unflatten(1, (-1, PANEL)).transpose(0, 1).reshape(-1)


def rows_of_groups(numbers: torch.Tensor, n: int, groups: int) -> torch.Tensor:
    """Arrange the scales or zero points of (column, group) as rows of groups, filled up to whole panels."""
    rows = numbers.reshape(n, groups).t().to(torch.float32)
    return torch.nn.functional.pad(rows, (0, -n % PANEL)).reshape(-1)
