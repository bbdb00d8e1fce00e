"""Tiny models of the architectures of transformers against eager: two calls at one size, two at another, the first
again."""

from __future__ import annotations

import pytest
import torch

from framesmith import _C
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.ledger import Ledger

from . import zoo
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


SIZES = (2, 12), (3, 20), (4, 33), (2, 17)


@pytest.mark.parametrize("name", ["cohere", "deberta_v2", "gptj", "m2m_100", "phi3", "roformer", "t5", "xlnet"])
def test_one_compile_for_all_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row, captured = TRANSFORMERS[name], Ledger()
    model = row.build()
    compiled = _C.CompiledFunction(model, FrameCompiler(Config.from_env(suppress_errors=False, dynamic=True), captured))
    with torch.no_grad():
        for size in SIZES:
            ids = torch.randint(5, zoo.VOCABULARY, size)
            monkeypatch.setattr(zoo, "tokens", lambda large, ids=ids: ids)
            assert_same(compiled(**row.inputs(False)), model(**row.inputs(False)))
    assert len(captured.records) == 1
