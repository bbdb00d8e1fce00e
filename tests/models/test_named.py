"""The twelve named models against eager: one graph each."""

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
    compiled.assert_whole(graphs=1)


def test_there_are_twelve() -> None:
    assert len(NAMED) == 12
