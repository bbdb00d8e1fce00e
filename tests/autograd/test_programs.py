"""Training steps of whole programs: one graph, gradients equal eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import framesmith
from benchmarks.training import numerics
from benchmarks.training.tasks import Loss, Task, mean_of_squares, task
from framesmith.tools.explain import Explanation


def judged(mine: Task) -> Explanation:
    """Train copies in eager and compiled; gradients are equal, and so is what the steps write."""
    eager, ours = mine.copy(), mine.copy()
    found = numerics.Judge(mine, numerics.after(eager.step("eager"),
                                                eager)).judge(numerics.after(ours.step("framesmith"), ours))
    assert found["beyond"] <= 2, found
    compiled, args = mine.whole()
    return framesmith.explain(compiled)(*args)


def assert_one_graph(told: Explanation) -> None:
    assert told.graph_count == 1 and not told.break_count and not told.refusals, str(told)


class Bags(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(30, 8, mode=mode)

    def forward(self, index: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.bag(index, offsets).tanh()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags(mode: str) -> None:
    index, offsets = torch.tensor([1, 2, 2, 4, 5, 29]), torch.tensor([0, 2, 5])
    assert_one_graph(judged(Task(Loss(Bags(mode), mean_of_squares, False), (index, offsets))))


class Scaled(nn.Linear):
    """Makes tensors from Python's numbers while gradients are followed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * torch.tensor(0.5) + torch.tensor([1.0, 2.0, 3.0])


def test_tensors_made_from_numbers() -> None:
    assert_one_graph(judged(Task(Loss(Scaled(4, 3), mean_of_squares, False), (torch.randn(5, 4),))))


def test_detaching_in_place_what_requires_grad_breaks() -> None:
    linear = nn.Linear(4, 3)

    def cut(x: torch.Tensor) -> torch.Tensor:
        return linear(x).detach_()

    told = framesmith.explain(cut)(torch.randn(5, 4))
    assert "detach_" in str(told) and not told.output.requires_grad


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("view", [lambda x: x[0], lambda x: (x + 1)[1:], lambda x: x.detach()[0]])
def test_detaching_a_view_in_place_raises(view: Any, requires_grad: bool) -> None:
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        framesmith.compile(lambda x: view(x).detach_())(torch.randn(5, 4, requires_grad=requires_grad))


def test_a_backward_inside_compiled_code_is_compiled_with_the_hook_off() -> None:
    told = judged(task("mlp+adam"))
    assert [reason.partition(":")[0] for reason in told.break_reasons] == ["Tensor.backward"] and not told.refusals
