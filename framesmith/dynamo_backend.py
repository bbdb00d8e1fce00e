"""The back end `framesmith` of torch.compile itself: TorchDynamo captures, and its graphs are compiled here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from framesmith.api import compile as compiled


def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None,
                  options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """Compile a graph that TorchDynamo has captured. The result is called on tensors, with or without gradients.
    Symbolic sizes stay symbolic."""
    dynamic = any(isinstance(x, torch.SymInt) for x in example_inputs) or None
    return compiled(gm, dynamic=dynamic, mode=mode, options=options)
