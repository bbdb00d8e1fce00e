"""Tiled attention: a call whose modifications of scores are blocks of the loop IR.

    forward   q, k, v, ...                   -> out, total
    rows      q, k, v, g, total, delta, ...  -> dq         rows of scores, the columns one tile after the other
    columns   q, k, v, g, total, delta, ...  -> dk, dv     columns of scores, the rows one tile after the other

A block is over the symbols `BATCH`, `HEAD`, `ROW`, `COLUMN` of one score; a load from `SCORES` is that score, and one
from `TANGENT` the gradient of the modified score. Other loads are of arguments of the call, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from framesmith.graph.attention import LISTS, Attention, AttentionGradient
from framesmith.loops.ir import Op

SCORES, TANGENT = "scores", "tangent"
BATCH, HEAD, ROW, COLUMN = "batch", "head", "row", "column"
LIST_NAMES = tuple([f"{what}_{how}_{of}" for of in ("columns", "rows") for how in ("partial", "full")
                    for what in ("number", "list")])
"""The names of the lists of blocks, in the order of `graph.attention`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor argument."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, eq=False)
class AttentionTiles:
    """The call. `arguments`: in order, by name: inputs, lists, operands, then results, which are written.

    `score`, `gradient`, `mask`: blocks, the last operation of which is the value; empty where there is none.
    """

    kind: str
    whole: Attention | AttentionGradient
    arguments: Mapping[str, Layout]
    score: tuple[Op, ...]
    gradient: tuple[Op, ...]
    mask: tuple[Op, ...]

    @property
    def __name__(self) -> str:
        return f"attention_{self.kind}"

    def __str__(self) -> str:
        return self.__name__

    @property
    def results(self) -> tuple[str, ...]:
        return RESULTS[self.kind]

    def __call__(self, *given: Any) -> None:
        """Compute the results with all scores at once, and write them to the results' tensors, as a reference."""
        named = dict(zip(self.arguments, given, strict=True))
        operands = [x for name, x in named.items() if name.startswith("operand")]
        found = self.whole(*[named[name] for name in INPUTS[self.kind]], *[None] * LISTS, *operands)
        for name, x in zip(WHOLE[self.kind], found, strict=True):
            if name in self.results:
                named[name].copy_(x)


INPUTS = {"forward": ("q", "k", "v"), **dict.fromkeys(("rows", "columns"), ("q", "k", "v", "g", "total", "delta"))}
WHOLE = {"forward": ("out", "total"), **dict.fromkeys(("rows", "columns"), ("dq", "dk", "dv"))}
RESULTS = {"forward": ("out", "total"), "rows": ("dq",), "columns": ("dk", "dv")}
