"""A sample of the state net: between two calls anything is changed, and the next call is eager's."""

import pytest

from tests.fuzz.pool import run_all
from tests.nets.state_fuzz import Case, Drawn, Step, judge, run

FOUND = [
    Case("function", (Step("around", "Tensor.__mul__"),)),
    Case("library", (Step("around", "Tensor.add"),)),
    Case("containers", (Step("/TABLE/['b']", "bool"),), "native"),
    Case("recurrent", (Step("around", "autocast"),), grad=True),
    Case("convolution", (Step("around", "meta"), Step("f/0/bias", "in place"), Step("around", "meta")), "native"),
]
"""Cases that differed once."""


@pytest.mark.parametrize("case", FOUND, ids=str)
def test_found(case):
    assert run(case) is None


@pytest.mark.forks
def test_sample():
    drawn = [Drawn(7_000_000 + i, backend="eager") for i in range(240)]
    bad = [f"seed {item.seed}: {verdict.detail}" for item,
           verdict in run_all(judge, drawn, 2) if verdict.kind != "same"]
    assert not bad, "\n".join(bad)
