"""Programs of other people's libraries under `framesmith.install()`: results are eager's, and graphs are counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import benchmarks.models  # noqa: F401  (what torchvision declares, for libraries that look for it)
import framesmith
from framesmith.compiler import FrameCompiler


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Gradients, a fixed seed, no variants of tests before, and their warnings to be seen again."""
    torch.manual_seed(0)
    framesmith.reset()
    with torch.enable_grad():
        yield
    framesmith.reset()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of operators of the graphs that were compiled."""
    compiled: list[int] = []
    backend = FrameCompiler.compile_graph

    def counted(self: FrameCompiler, graph: Any, *given: Any) -> Any:
        compiled.append(sum(node.op == "call_function" for node in graph.nodes))
        return backend(self, graph, *given)

    monkeypatch.setattr(FrameCompiler, "compile_graph", counted)
    return compiled
