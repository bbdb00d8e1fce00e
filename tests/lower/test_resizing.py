"""Images made larger between their elements by nests of our own, and those that are left to eager's kernel."""

import pytest
import torch
from torch.nn import functional as F

import framesmith
from framesmith.loops.nest import Call
from framesmith.lower.lower import lower
from framesmith.prims.decompose import decompose
from tests.fake.harness import record

CHANNELS_LAST = torch.channels_last


def enlarge(size=None, **options):
    return lambda x: F.interpolate(x, size, mode="bilinear", **options)


def integers(*shape):
    return torch.randint(-64, 64, shape).float().to(memory_format=CHANNELS_LAST)


def is_called(fn, x):
    return any(type(item) is Call for item in lower(decompose(record(fn, [x])[0])).items)


@pytest.mark.parametrize("rows, columns", [(2, 2), (4, 2), (2, 8)])
@pytest.mark.parametrize("shape", [(2, 24, 5, 7), (1, 8, 1, 3), (1, 9, 3, 1), (3, 8, 1, 1)])
def test_is_eagers_bit_for_bit_where_no_sum_is_rounded(shape, rows, columns):
    fn, x = enlarge((rows * shape[2], columns * shape[3])), integers(*shape)
    found, wanted = framesmith.compile(fn)(x), fn(x)
    assert torch.equal(found, wanted) and found.stride() == wanted.stride()


def test_infinite_elements_spread_as_in_eager():
    x = integers(1, 8, 4, 4)
    x[0, 0, 1, 2], x[0, 1, 0, 0], x[0, 2, 3, 3], x[0, 3, 2, 0] = torch.inf, torch.inf, -torch.inf, torch.nan
    assert torch.equal(framesmith.compile(enlarge((8, 8)))(x).nan_to_num(0.5), enlarge((8, 8))(x).nan_to_num(0.5))


@pytest.mark.parametrize("options, own", [
    ({"scale_factor": 2}, True), ({"scale_factor": (2, 4)}, True), ({"size": (8, 12)}, True),
    ({"scale_factor": 2, "align_corners": True}, False), ({"scale_factor": 3}, False), ({"size": (4, 12)}, False),
    ({"scale_factor": 2.05}, False), ({"size": (2, 3)}, False), ({"size": (9, 12)}, False),
])
def test_powers_of_two_are_our_own(options, own):
    x = integers(2, 8, 4, 6)
    assert is_called(enlarge(**options), x) is not own
    torch.testing.assert_close(framesmith.compile(enlarge(**options))(x), enlarge(**options)(x))


@pytest.mark.parametrize("x", [integers(2, 8, 4, 6).contiguous(), integers(2, 3, 4, 6), integers(2, 8, 4, 6).double()])
def test_other_layouts_few_channels_and_types_are_eagers(x):
    assert is_called(enlarge((8, 12)), x)
