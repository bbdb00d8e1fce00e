"""Loading of a plan and a library as a callable graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from framesmith._C import CompiledGraph
from framesmith.runtime.plan import Plan

Refresh = Callable[[tuple[Any, ...]], Sequence[torch.Tensor]]


def load(
    plan: Plan, library: Path, constants: Sequence[torch.Tensor] | None = None, refresh: Refresh | None = None,
    checked: bool = False
) -> CompiledGraph:
    """Return the graph of `plan` in `library`: called with one tuple of inputs, it returns a tuple.

    `constants`: the plan's constants, when they are known. `refresh(inputs)`: computes them from the inputs; called
    before the first call when `constants` is None, and whenever a watched input is another tensor, has other memory or
    was written to. `checked`: raise ValueError in each call unless the inputs have the geometry that the code was made
    for.
    """
    graph = CompiledGraph(plan.encode(), str(library), constants, refresh)
    graph.checked = checked
    return graph
