"""Tiny models of the architectures of transformers against eager: two calls at one size, two at another, the first again."""

from __future__ import annotations

import pytest
import torch

from .comparing import Watched, assert_same
from .zoo import TRANSFORMERS


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name: str) -> None:
    row = TRANSFORMERS[name]
    model = row.build()
    compiled = Watched(model)
    with torch.no_grad():
        for large in (False, False, True, True, False):
            assert_same(compiled.run(**row.inputs(large)), model(**row.inputs(large)))
    if row.whole:
        compiled.assert_whole(graphs=2)
