"""Programs that once gave something else when compiled: reduced, and run for ever."""

from pathlib import Path

import pytest

from tests.fuzz.runner import check

FOUND = sorted((Path(__file__).parent / "found").glob("*.txt"))


@pytest.mark.parametrize("path", FOUND, ids=[p.stem for p in FOUND])
def test_found(path):
    verdict = check(path.read_text())
    assert verdict.kind == "same", verdict.detail
