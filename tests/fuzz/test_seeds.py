"""Some hundred random programs; `python -m tests.fuzz` runs as many as one likes."""

import pytest

from tests.fuzz.__main__ import ROUNDINGS
from tests.fuzz.pool import run_all
from tests.fuzz.program import Options, generate
from tests.fuzz.runner import check

pytestmark = pytest.mark.forks


@pytest.mark.parametrize("breaks, start, count", [("none", 0, 100), ("any", 1_000_000, 200)])
def test_seeds(breaks, start, count):
    found = list(run_all(lambda seed: check(generate(seed, Options(breaks))), list(range(start, start + count)),
                         jobs=2))
    assert {seed: f"{v.kind}: {v.detail}" for seed, v in found if not v.good} == {}
    assert sum(v.kind == "same" for _, v in found) > 0.8 * count
    assert sum(v.captured > 0 for _, v in found) > 0.3 * count


def test_seeds_in_machine_code():
    off = ROUNDINGS["native"]
    found = list(run_all(lambda seed: check(generate(seed, Options("any")), "native", off),
                         list(range(500_000, 500_020)), jobs=2))
    assert {seed: f"{v.kind}: {v.detail}" for seed, v in found if not v.good} == {}


def test_seeds_of_control_flow_on_data():
    found = list(run_all(lambda seed: check(generate(seed, Options("none", data=True)), tolerance=ROUNDINGS["native"]),
                         list(range(2_000_000, 2_000_060)), jobs=2))
    assert {seed: f"{v.kind}: {v.detail}" for seed, v in found if not v.good} == {}
    assert sum(v.captured > 0 for _, v in found) > 40
