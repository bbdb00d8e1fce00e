"""The data that lets the loop graph of a short graph be scheduled as that of all parts: see `graph.repetition`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from framesmith.graph.repetition import Repetition


@dataclass(frozen=True, slots=True, eq=False)
class Repeats:
    """`constants`: the tensors that the program holds itself, by place among the inputs of the whole graph."""

    of: Repetition
    constants: Mapping[int, torch.Tensor]


__all__ = ["Repeats"]
