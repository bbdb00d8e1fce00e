"""The eleven named models against eager: one graph each, but the one that branches on data."""

from __future__ import annotations

import pytest
import torch

from benchmarks.models import named

from .comparing import Watched, assert_same

NAMED = named()


@pytest.mark.parametrize("name", NAMED)
def test_named(name: str) -> None:
    model, inputs = NAMED[name]()
    compiled = Watched(model)
    with torch.no_grad():
        for _ in range(2):
            assert_same(compiled.run(*inputs), model(*inputs))
    if name == "branchy":
        assert compiled.ledger.refusals == []
        assert sum(len(r.breaks) for r in compiled.ledger.records) == 1
        assert sum(1 for r in compiled.ledger.records if r.operators) == 2
    else:
        compiled.assert_whole(graphs=1)


def test_there_are_eleven() -> None:
    assert len(NAMED) == 11
