"""Programs that read memory by `as_strided`: where an input begins in its storage is part of what they compute."""

from __future__ import annotations

import pytest
import torch

import framesmith

CASES = []


def case(fn):
    CASES.append(fn)
    return fn


@case
def without_offset(x):
    return x.as_strided((2, 2), (1, 2)) + 1


@case
def of_a_view(x):
    return x[1].as_strided((3,), (1,)) * 2, x[1].as_strided((2,), (1,))


@case
def with_offset(x):
    return torch.as_strided(x, (2,), (2,), 9) + 1


@case
def written(x):
    y = x.clone()
    x.as_strided((2,), (5,)).add_(y[0, :2])
    return y, x * 2


@case
def beyond_the_input(x):
    return x.as_strided((4,), (1,), 0) + 1


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_same_as_eager_wherever_the_input_begins(fn, backend):
    fast = framesmith.compile(fn, backend=backend)
    for start in (2, 1, 0, 2):
        plain, mine = torch.arange(24.0).reshape(6, 4), torch.arange(24.0).reshape(6, 4)
        want, got = fn(plain[start:start + 3]), fast(mine[start:start + 3])
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (want, got)), strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride()
        assert torch.equal(plain, mine)
