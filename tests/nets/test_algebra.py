"""Five hundred random expressions; `python -m tests.nets.algebra` runs as many as one likes."""

import pytest

from tests.fuzz.pool import run_all
from tests.nets.algebra import judge


@pytest.mark.forks
def test_random_expressions():
    found = list(run_all(judge, range(500), jobs=2, batch=250))
    assert {seed: v.detail for seed, v in found if not v.good} == {}
    assert sum(v.kind == "same" for _, v in found) > 480
