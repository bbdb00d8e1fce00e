"""Programs that change torch's global state: default dtype, default device, seeds."""

from __future__ import annotations

import pytest
import torch

import framesmith
from tests.capture.agree import Fresh, check
from tests.programs import Programs

X = torch.linspace(-1, 1, 12).reshape(3, 4)
GENERATOR = Fresh(lambda: torch.Generator().manual_seed(3))
program = Programs(check)


test_same_as_eager = program.test()


# --- default dtype ----------------------------------------------------------------------------------------------------
@program(X)
def dtype_set_and_left(x):
    torch.set_default_dtype(torch.float64)
    return torch.ones(2), torch.tensor(1.5), torch.arange(3) * 0.5, torch.arange(
        3) / 2, x * 2, torch.get_default_dtype()


@program(X)
def dtype_set_back(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        y = torch.ones(2) * x[0, 0]
    finally:
        torch.set_default_dtype(before)
    return y, torch.get_default_dtype()


@program(X, breaks=True)
def dtypes_of_both_kinds(x):
    y = torch.ones(2)
    torch.set_default_dtype(torch.float64)
    z = torch.ones(2)
    torch.set_default_dtype(torch.float32)
    return y, z, torch.ones(2) + x[0, :2]


@program(X, raises=TypeError)
def dtype_that_none_is(x):
    torch.set_default_dtype(torch.int32)
    return x + 1


# --- default device ---------------------------------------------------------------------------------------------------
@program(X)
def device_as_a_context(x):
    with torch.device("meta") as device:
        y, z, where = torch.ones(2), torch.tensor([1, 2]), torch.get_default_device()
    return y, z, where, device, x + 1, torch.ones(3), torch.get_default_device()


@program(X)
def device_contexts_in_each_other(x):
    with torch.device("meta"), torch.device("cpu"):
        return torch.ones(2) + x[0, :2]


@program(X)
def device_entered_by_hand(x):
    device = torch.device("meta")
    device.__enter__()
    y = torch.zeros(2)
    device.__exit__(None, None, None)
    return y, x * 2


@program(X, breaks=True)
def device_around_a_break(x):
    with torch.device("meta"):
        y = torch.ones(2)
        framesmith.graph_break()
        z = torch.ones(3)
    return y, z, x + 1, torch.ones(2)


@program(X)
def device_set_and_left(x):
    torch.set_default_device("meta")
    return torch.ones(2), x + 1


@program(X)
def device_set_back(x):
    torch.set_default_device("meta")
    y = torch.ones(2)
    torch.set_default_device(None)
    return y, torch.ones(2) + x[0, :2]


@program(X, raises=ZeroDivisionError)
def device_left_by_an_error(x):
    with torch.device("meta"):
        return x / (1 // 0)


# --- seeds ------------------------------------------------------------------------------------------------------------
@program(X)
def seed_before_numbers(x):
    seeded = torch.manual_seed(3) is torch.default_generator
    return x + torch.rand(3, 4), torch.randn(2), seeded


@program(X)
def seed_behind_numbers(x):
    y = torch.rand(2)
    torch.manual_seed(-4)
    return y, x + 1


@program(X, breaks=True)
def seed_between_numbers(x):
    y = torch.rand(2)
    torch.manual_seed(5)
    return y, torch.rand(2) + x[0, :2]


@program(X, GENERATOR)
def seed_of_a_generator(x, generator):
    generator.manual_seed(4)
    return torch.rand(3, generator=generator) + x[0, :3]


@program(X, breaks=True)
def states_of_the_generator(x):
    state = torch.get_rng_state()
    y = torch.rand(3)
    torch.set_rng_state(state)
    return y, torch.rand(3), x


@program(X, breaks=True)
def forked(x):
    with torch.random.fork_rng():
        y = torch.rand(3)
    return y, torch.rand(3), x


@program(X, breaks=True, raises=ValueError)
def seed_out_of_range(x):
    torch.manual_seed(1 << 64)
    return x


@pytest.mark.parametrize("fn", [dtype_set_and_left, seed_before_numbers], ids=lambda fn: fn.__name__)
def test_native_code(fn):
    fast = framesmith.compile(fn)
    for _ in range(2):
        try:
            want = fn(X)
        finally:
            torch.set_default_dtype(torch.float32)
        try:
            got = fast(X)
        finally:
            torch.set_default_dtype(torch.float32)
        for a, b in zip(want, got, strict=True):
            assert torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b
