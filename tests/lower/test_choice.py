"""Every kind of contraction that a rewrite asks about can be measured, and its candidates compute the same."""

from __future__ import annotations

import pytest
import torch

from framesmith.config import Config
from framesmith.lower.contractions.choice import CANDIDATES, WORK, Chooser, measure
from framesmith.lower.contractions.pack_linear import Request


@pytest.mark.parametrize("groups", (2, 4))
def test_grouped_convolutions_are_measured(groups: int) -> None:
    request = Request("grouped", torch.float32, (groups, 2, 64, 10, 10, 128, 3, 3, 1, 1, 1, 1, 1, 1))
    candidates = CANDIDATES["grouped"](request)
    torch.testing.assert_close(candidates["own"]().permute(0, 3, 1, 2), candidates["aten"]())
    assert measure(request).keys() == candidates.keys()
    assert WORK["grouped"](request) == 2 * 2 * 64 * 100 * 128 * 9 // groups


@pytest.mark.parametrize("kind", ("conv", "depthwise", "grouped", "attention", "lstm"))
def test_without_packing_eager_is_called(kind: str) -> None:
    assert Chooser(Config(packing=False),
                   {})(Request(kind, torch.float32, (1, 8, 8, 8, 8, 3, 3, 1, 1, 1, 1, 1, 1))) == "aten"


def test_without_packing_linear_is_chosen_among_plain_kernels() -> None:
    chooser = Chooser(Config(packing=False), {})
    assert chooser(Request("linear", torch.float32, (64, 64, 64))) in ("aten", "mkldnn_plain")
    assert len(chooser.measured) == 1


def test_products_of_many_rows_share_a_measurement() -> None:
    chooser = Chooser(Config(), {})
    chosen = {chooser(Request("linear", torch.float32, (rows, 96, 64))) for rows in (20_000, 160_000)}
    assert len(chosen) == len(chooser.measured) == 1
