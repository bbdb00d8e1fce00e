"""Architectures of timm at a small picture size against eager: two calls with one batch, two with another, the first
again."""

from __future__ import annotations

import pytest
import torch

from .comparing import Watched, assert_same
from .zoo import TIMM


@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str) -> None:
    row = TIMM[name]
    model = row.build()
    compiled = Watched(model)
    with torch.no_grad():
        for large in (False, False, True, True, False):
            eager = model(**row.inputs(large))  # first: some models fill caches of their own in the first call
            assert_same(compiled.run(**row.inputs(large)), eager)
    compiled.assert_whole(graphs=2)
