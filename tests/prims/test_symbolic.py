"""Graphs recorded on symbolic sizes decompose into prims that run at other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

from framesmith.fake import Recorder
from framesmith.graph.interpreter import run
from framesmith.prims.decompose import decompose
from framesmith.symbolic.env import ShapeEnv
from tests.fake.test_symbolic import symbolic_input

W = torch.randn(8, 6)

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "pointwise": lambda x: F.gelu(x * 2 + 1),
    "softmax": lambda x: x.softmax(1),
    "mean": lambda x: x.mean(1),
    "mean_all": lambda x: x.mean(),
    "variance": lambda x: x.var(dim=(0, 1)),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "matmul": lambda x: x @ W,
    "batched": lambda x: x @ x.transpose(-1, -2),
    "view": lambda x: x.view(-1, 4, 2).transpose(0, 1).reshape(4, -1),
    "head": lambda x: x[:, 1:],
    "tail": lambda x: x[:, :-1],
    "steps": lambda x: x[:, ::2],
    "last": lambda x: x[:, -1],
    "cat": lambda x: torch.cat([x, x[:, :1]], 1),
    "causal": lambda x: torch.tril(x @ x.transpose(-1, -2)),
    "places": lambda x: x + torch.arange(x.size(1)).unsqueeze(-1),
    "scaled": lambda x: x * x.size(1),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "interleave": lambda x: x.repeat_interleave(2, 1),
    "roll": lambda x: x.roll(1, 1),
    "pad": lambda x: F.pad(x, (0, 0, 1, 2)),
    "reflect": lambda x: F.pad(x, (2, 1), mode="reflect"),
    "split": lambda x: x.split(3, -1),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "argmax": lambda x: x.argmax(1),
    "norm": lambda x: F.normalize(x, dim=1),
    "zeros": lambda x: torch.zeros(x.size(0), x.size(1)) + x[..., 0],
    "index": lambda x: x[:, torch.tensor([0, 1])],
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "expand": lambda x: x[:, :1].expand(-1, x.size(1), -1),
    "gap": lambda x: (x - x.flip(1)).pow(2).mean(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_at_another_size(name: str) -> None:
    program = PROGRAMS[name]
    recorder = Recorder(ShapeEnv())
    first, second = torch.randn(2, 5, 8), torch.randn(2, 7, 8)
    x = symbolic_input(recorder, first, "x", [1])
    with torch.no_grad(), recorder:
        fakes = tree_leaves(program(x))
    graph = decompose(recorder.finish(fakes), strict=True)
    constants = [node.meta["constant"] for node in graph.nodes if "constant" in node.meta]
    for real in (first, second):
        for actual, expected in zip(run(graph, [real, *constants]), tree_leaves(program(real)), strict=True):
            torch.testing.assert_close(actual, expected)


def test_symbols_need_no_nodes() -> None:
    recorder = Recorder(ShapeEnv())
    x = symbolic_input(recorder, torch.randn(3, 5), "x", [0, 1])
    with torch.no_grad(), recorder:
        y = x.view(x.size(0) * x.size(1)) * x.size(0)
    assert [node.op for node in decompose(recorder.finish([y])).nodes] == ["placeholder", "call_function",
                                                                           "call_function", "output"]
