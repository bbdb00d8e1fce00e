"""The contraction node of tile programs: operands that are blocks of the loop IR, and a fused epilogue.

    product i0<128 i1<768 over ik<512 in bfloat16
      left:
        v0 = load p0[512*i0 + ik]
      right:
        v1 = load p1[512*i1 + ik]
      v2 = accumulator
      v3 = load p2[i1]
      v4 = add v2 v3
      store p3[768*i0 + i1] = v4

For every (m, n) it forms, in float32, the sum over k of left(m, k) * right(k, n), and runs `body` with `Accumulator` as
it. Unlike in `loops.contract`, nothing is packed: an element of an operand is computed by its block, which may include
a cast or a scale (the prologue).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from framesmith.loops.ir import Axis, Node, Op
from framesmith.symbolic.expr import Expr


@dataclass(frozen=True, slots=True, eq=False)
class MatrixProduct:
    """A contraction inside a kernel, the last statement of its body; see the module's text.

    `m`, `n`, `k`: axes, of any extents. `left` is over outer axes, m and k, `right` over outer axes, k and n; the last
    operation of each is the element, and neither stores. `dtype`: the type in which elements are multiplied. `tf32`:
    float32 operands may drop the last 13 bits.
    """

    m: Axis
    n: Axis
    k: Axis
    left: tuple[Op, ...]
    right: tuple[Op, ...]
    dtype: torch.dtype
    tf32: bool
    body: tuple[Node, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.m, self.n

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return self.m.extent, self.n.extent, self.k.extent

    @property
    def blocks(self) -> tuple[tuple[Node, ...], ...]:
        """All blocks, in order."""
        return self.left, self.right, self.body
