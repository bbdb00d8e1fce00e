"""The benchmark of training steps: what it measures, and that wrong gradients, failures and memory show."""

from __future__ import annotations

import pytest
import torch

from benchmarks import table as tables
from benchmarks.training import memory, numerics, run, table
from benchmarks.training.tasks import task

CONTENDERS: run.Contenders = {**run.OURS, "torch.compile": ("framesmith", {"no_such_option": 1})}


@pytest.fixture(scope="module")
def rows() -> run.Rows:
    return run.in_this_process("mlp", CONTENDERS, rounds=1)


def test_contenders_are_timed_beside_eager(rows: run.Rows) -> None:
    assert rows["eager"]["speedup"] == 1.0
    assert rows["eager"]["seconds"] / rows["framesmith"]["seconds"] == rows["framesmith"]["speedup"]


def test_gradients_equal_eagers(rows: run.Rows) -> None:
    assert rows["framesmith"]["error"] <= 1e-5 and rows["framesmith"]["exact_error"] <= 1e-5
    assert 0 < rows["eager"]["exact_error"] <= 1e-5 and rows["eager"]["error"] == 0


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


def states() -> tuple[numerics.Judge, numerics.State]:
    """A weight, and a bias that should be zero, which eager gets wrong by 1e-9."""
    exact: numerics.State = {"w": torch.ones(4).double(), "b": torch.full((4,), 1e-20).double()}
    expected: numerics.State = {"w": torch.ones(4), "b": torch.full((4,), 1e-9)}
    return numerics.Judge(expected, exact), dict(expected)


def test_a_wrong_gradient_shows() -> None:
    judge, state = states()
    assert judge.judge(state)["error"] == 0 and judge.judge(state)["vanishing"] == 1
    found = judge.judge({**state, "w": torch.tensor([1.0, 1, 1, 1.1])})
    assert found["worst"] == "w" and found["error"] == pytest.approx(0.05)
    for wrong in (None, torch.ones(2, 2), torch.full((4,), torch.nan)):
        assert judge.judge({**state, "w": wrong})["error"] == float("inf")


def test_noise_in_what_should_be_zero_is_measured_in_eagers() -> None:
    judge, state = states()
    assert judge.judge({**state, "b": torch.full((4,), -2e-9)})["noise"] == pytest.approx(2, rel=1e-3)
    assert judge.judge({**state, "b": torch.full((4,), 1.0)})["noise"] > 1e6


def test_gradients_of_a_model_without_parameters_are_its_inputs() -> None:
    assert list(task("pointwise").leaves()) == ["input 0", "input 1"]


def test_peak_memory_is_what_lives_at_once(tmp_path) -> None:
    mine = task("mlp")
    found = memory.peak("mlp", "eager", {}, tmp_path, {})
    gradients = sum(p.nbytes for p in mine.module.parameters())
    activations = 32 * 64 * 4
    assert gradients + activations <= found["peak"] <= gradients + 6 * activations
