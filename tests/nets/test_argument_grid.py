"""A sample of the argument grid: no crash, eager's values, eager's errors."""

import pytest

from tests.nets.argument_grid import Tally, chosen, run


@pytest.mark.parametrize("grad", (False, True), ids=("forward", "backward"))
def test_sample(grad: bool) -> None:
    tally = Tally()
    run(chosen(150, seed=0), grad, tally)
    assert not tally.faults, tally.faults
    assert tally.counts["right"] + tally.counts["refused"] == 150
