"""The benchmark of training steps: what it measures, and that wrong gradients, failures and memory show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks import table as tables
from benchmarks.training import memory, numerics, run, table
from benchmarks.training.tasks import Loss, Task, mean_of_squares, task

CONTENDERS: run.Contenders = {**run.OURS, "torch.compile": ("framesmith", {"no_such_option": 1})}


@pytest.fixture(scope="module")
def rows() -> run.Rows:
    return run.in_this_process("mlp", CONTENDERS, rounds=1)


def test_contenders_are_timed_beside_eager(rows: run.Rows) -> None:
    assert rows["eager"]["speedup"] == 1.0
    assert rows["eager"]["seconds"] / rows["framesmith"]["seconds"] == rows["framesmith"]["speedup"]


def test_gradients_equal_eagers(rows: run.Rows) -> None:
    assert rows["framesmith"]["error"] <= 1e-5 and rows["framesmith"]["exact_error"] <= 1e-5
    assert 0 < rows["eager"]["own_error"] <= 1e-5 and rows["eager"]["error"] == 0


def test_a_failure_is_a_row(rows: run.Rows) -> None:
    assert "seconds" not in rows["torch.compile"] and "no_such_option" in rows["torch.compile"]["failed"]
    results = {"peers": list(CONTENDERS), "models": [{"model": "mlp", "optimizer": None, "peers": rows}]}
    header, (line, means) = table.rows_of(results)
    assert dict(zip(header, line, strict=True))["torch.compile ms"] == "fails"
    assert dict(zip(header, means, strict=True))["framesmith ms"].endswith("× of 1")
    assert tables.failures(results) == [f"mlp, torch.compile: {rows['torch.compile']['failed']}"]


def test_an_optimizer_moves_every_copy_alike() -> None:
    rows = run.in_this_process("mlp+adam", run.OURS, rounds=1)
    assert rows["framesmith"]["error"] <= 1e-5 and 0 < rows["eager"]["exact_error"] <= 1e-5


class Centred(nn.Module):
    """The gradient of the bias is zero, but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y - y.mean(0)


WEIGHT, BIAS = (f"gradient of model.linear.{name}" for name in ("weight", "bias"))


@pytest.fixture(scope="module")
def judge() -> numerics.Judge:
    torch.manual_seed(0)
    centred = Task(Loss(Centred(), mean_of_squares, False), (torch.randn(32, 8),))
    own = centred.copy()
    return numerics.Judge(centred, numerics.after(own.step("eager"), own))


def test_a_wrong_gradient_shows(judge: numerics.Judge) -> None:
    right = judge.judge(judge.expected)
    assert right["error"] == 0 and right["beyond"] <= 1 and 0 < right["exact_error"] < 1e-5
    weight = judge.expected[WEIGHT]
    assert weight is not None
    found = judge.judge({**judge.expected, WEIGHT: 1.1 * weight})
    assert found["worst"] == WEIGHT and found["error"] == pytest.approx(0.1, rel=1e-3) and found["beyond"] > 1e3
    for wrong in (None, weight[:4], weight * torch.nan):
        found = judge.judge({**judge.expected, WEIGHT: wrong})
        assert found["error"] == found["beyond"] == float("inf")


def test_a_gradient_that_should_be_zero_is_judged_by_eagers_noise(judge: numerics.Judge) -> None:
    assert judge.vanishing == {BIAS}
    bias = judge.expected[BIAS]
    assert bias is not None
    assert judge.judge({**judge.expected, BIAS: -bias})["beyond"] <= 2
    wrong = judge.judge({**judge.expected, BIAS: torch.full_like(bias, 1e-3)})
    assert wrong["error"] == 0 and wrong["beyond"] > 1e3


def test_gradients_of_a_model_without_parameters_are_its_inputs() -> None:
    assert list(task("pointwise").leaves()) == ["input 0", "input 1"]


def test_peak_memory_is_what_lives_at_once(tmp_path) -> None:
    mine = task("mlp")
    found = memory.peak("mlp", "eager", {}, tmp_path, {})
    gradients = sum(p.nbytes for p in mine.module.parameters())
    activations = 32 * 64 * 4
    assert gradients + activations <= found["peak"] <= gradients + 6 * activations
