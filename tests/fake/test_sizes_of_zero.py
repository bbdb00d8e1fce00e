"""Operators that refuse tensors without elements, or give other sizes for them: of sizes that vary."""

import pytest
import torch
import torch.nn.functional as F

import framesmith


def caught(x):
    try:
        return x.amax(0)
    except (RuntimeError, IndexError):
        return x.sum(0) - 1


REFUSING = {
    "max": lambda x: x.max(), "amax of rows": lambda x: x.amax(0), "argmin": lambda x: x.argmin(),
    "aminmax": lambda x: torch.aminmax(x)[1], "median": lambda x: x.median(), "mode": lambda x: x.mode(0)[0],
    "norm": lambda x: x.norm(float("-inf")), "vector norm": lambda x: torch.linalg.vector_norm(x, -1, 1),
    "reflected": lambda x: F.pad(x[None], (1, 1), mode="reflect"),
    "replicated": lambda x: F.pad(x[None], (1, 1), mode="replicate"),
    "pool": lambda x: F.max_pool2d(x[None, None], 2), "adaptive pool": lambda x: F.adaptive_avg_pool2d(x[None], 2),
    "group norm": lambda x: F.group_norm(x[None], 1), "unshuffle": lambda x: F.pixel_unshuffle(x[None], 2),
    "caught": caught,
}
SIZES = [(2, 4), (4, 6), (1, 4), (0, 4), (4, 0), (0, 4), (0, 0), (8, 2)]


def outcome(call, x):
    try:
        return call(x)
    except Exception as error:
        return type(error)


def compare(program, marked, dynamic):
    compiled = framesmith.compile(program, dynamic=dynamic)
    for rows, columns in SIZES:
        x = torch.randn(rows, columns)
        for dim in marked:
            framesmith.mark_dynamic(x, dim, min=0)
        got, want = outcome(compiled, x), outcome(program, x)
        if isinstance(want, torch.Tensor):
            assert got.shape == want.shape and got.dtype is want.dtype
            torch.testing.assert_close(got, want, equal_nan=True)
        else:
            assert got is want


@pytest.mark.parametrize("dynamic", [None, True], ids=["seen to vary", "from the first call"])
@pytest.mark.parametrize("name", REFUSING)
def test_of_sizes_that_vary(name, dynamic):
    compare(REFUSING[name], (), dynamic)


@pytest.mark.parametrize("name", REFUSING)
def test_of_marked_sizes(name):
    compare(REFUSING[name], (0, 1), None)
