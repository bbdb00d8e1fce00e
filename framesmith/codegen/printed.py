"""Descriptions of kernels for readers and reports."""

from __future__ import annotations

from dataclasses import dataclass

from framesmith.loops.ir import Origin
from framesmith.symbolic.expr import Expr
from framesmith.util.serialize import serializable


@serializable
@dataclass(frozen=True, slots=True)
class KernelFacts:
    """A kernel's `text`, the `bytes` that it moves and its scalar `operations` (see `loops.ir.Kernel`), in size
    symbols."""

    name: str
    text: str
    bytes: Expr
    operations: Expr
    origins: tuple[Origin, ...] = ()
