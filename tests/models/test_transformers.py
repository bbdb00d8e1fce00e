"""Tiny models of the architectures of transformers against eager: two calls at one size, two at another, the first
again."""

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
            eager = model(**row.inputs(large))  # first: some models fill caches of their own in the first call
            assert_same(compiled.run(**row.inputs(large)), eager)
    if row.whole:
        compiled.assert_whole(graphs=2)
