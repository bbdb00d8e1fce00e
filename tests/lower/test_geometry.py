"""Shapes and strides against torch's own views."""

import itertools

import pytest
import torch

from framesmith.lower.geometry import (
    groups,
    memory_order,
    reshape_index,
    reshape_strides,
    split_flat,
    strides_in_order,
)
from framesmith.symbolic.layout import is_dense

SHAPES = [(2, 3, 4), (24,), (6, 4), (2, 12), (1, 24, 1), (4, 3, 2), (8, 3), (2, 1, 3, 4)]


@pytest.mark.parametrize("old", SHAPES)
@pytest.mark.parametrize("new", SHAPES)
def test_reshape_index(old, new):
    base = torch.arange(24).reshape(old)
    want = base.reshape(new)
    for index in itertools.product(*map(range, new)):
        got = [int(i) for i in reshape_index(index, new, old)]
        assert base[tuple(got)] == want[index]


@pytest.mark.parametrize("old", SHAPES)
@pytest.mark.parametrize("new", SHAPES)
def test_reshape_strides_where_torch_can_view(old, new):
    for order in itertools.permutations(range(len(old))):
        t = torch.empty(24).as_strided(old, strides_in_order(old, order))
        got = reshape_strides(old, t.stride(), new)
        try:
            want = t.view(new)
        except RuntimeError:
            assert got is None
            continue
        assert got is not None
        assert torch.equal(torch.arange(24).as_strided(new, got), torch.arange(24).as_strided(new, want.stride()))


def test_groups_are_short():
    assert groups((128, 768), (1, 128, 12, 64)) == [(range(1), range(2)), (range(1, 2), range(2, 4))]
    assert groups((6, 4), (4, 6)) == [(range(2), range(2))]


def test_split_flat():
    assert [int(i) for i in split_flat(23, (2, 3, 4))] == [1, 2, 3]


def test_memory_order_and_density():
    channels_last = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert memory_order((2, 3, 4, 5), channels_last.stride()) == (0, 2, 3, 1)
    assert is_dense((2, 3, 4, 5), channels_last.stride())
    assert not is_dense((2, 3), (4, 1))
