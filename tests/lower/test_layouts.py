"""Layouts of operators' results, and of memory that operators write into."""

import pytest
import torch
from torch.nn import functional as F

import framesmith
from framesmith.lower import layouts

aten = torch.ops.aten
FORMATS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("channels, side", [(1, 1), (3, 1), (1, 4), (3, 4)])
def test_images_of_one_place_or_channel_are_pooled_as_eager_lays_them_out(channels, side, format):
    x = torch.randn(2, channels, side, side).to(memory_format=format)

    def pooled(x):
        y = F.adaptive_avg_pool2d(x, 3)
        return y, y * 2

    for wanted, found in zip(pooled(x), framesmith.compile(pooled)(x), strict=True):
        assert torch.equal(found, wanted) and found.stride() == wanted.stride()


@pytest.mark.parametrize("predicted", [layouts.channels_last, layouts.row_major])
@pytest.mark.parametrize("format", FORMATS)
def test_memory_that_an_operator_lays_out_otherwise_gets_the_layout_of_the_plan(format, predicted, monkeypatch):
    monkeypatch.setitem(layouts.RESULT_LAYOUTS, aten.adaptive_avg_pool2d.default,
                        lambda spec, values: predicted(spec.shape))
    x = torch.randn(2, 3, 4, 4).to(memory_format=format)
    compiled = framesmith.compile(lambda x: F.adaptive_avg_pool2d(x, 3) * 2)
    for _ in range(2):
        assert torch.equal(compiled(x), F.adaptive_avg_pool2d(x, 3) * 2)
