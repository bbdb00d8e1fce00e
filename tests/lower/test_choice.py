"""Every kind of contraction that a rewrite asks about can be measured, and its candidates compute the same."""

from __future__ import annotations

import pytest
import torch

from framesmith.lower.contractions.choice import CANDIDATES, WORK, measure
from framesmith.lower.contractions.rewrite import Request


@pytest.mark.parametrize("groups", (2, 4))
def test_grouped_convolutions_are_measured(groups: int) -> None:
    request = Request("grouped", torch.float32, (groups, 2, 64, 10, 10, 128, 3, 3, 1, 1, 1, 1, 1, 1))
    candidates = CANDIDATES["grouped"](request)
    torch.testing.assert_close(candidates["own"]().permute(0, 3, 1, 2), candidates["aten"]())
    assert measure(request).keys() == candidates.keys()
    assert WORK["grouped"](request) == 2 * 2 * 64 * 100 * 128 * 9 // groups
