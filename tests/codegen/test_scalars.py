"""Every scalar operation of the IR, on every type that it takes, against eager; vectors, tails and the scalar form."""

import math
from collections.abc import Callable

import pytest
import torch

from framesmith.loops.ir import Cast, Const
from framesmith.prims.philox import random_bits
from framesmith.prims.scalars import SCALAR_OPS
from tests.codegen.kernels import WIDTHS, axis, kernel, load, loop, op, run_all, store

FLOATS = (torch.float32, torch.float64)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
BOOL = (torch.bool,)


def trunc_divide(x, y):
    return torch.div(x, y, rounding_mode="trunc")


Case = tuple[tuple[torch.dtype, ...], Callable[..., torch.Tensor], tuple[float, float]]


def rows(types: tuple[torch.dtype, ...], low: float, high: float, names: str) -> dict[str, Case]:
    """Operations that eager has under the same name, on `types`, with operands in [low, high]."""
    return {name: (types, getattr(torch, name), (low, high)) for name in names.split()}


SAME: dict[str, Case] = {
    **rows(FLOATS, -3, 3, "exp exp2 expm1 sigmoid tanh sin cos tan sinh cosh asinh atan erf erfc"),
    **rows(FLOATS, 0.1, 9, "log log2 log10 log1p sqrt rsqrt reciprocal lgamma digamma"),
    **rows(FLOATS, -0.9, 0.9, "asin acos atanh erfinv"),
    **rows(FLOATS, -5, 5, "ceil floor round trunc frac isnan isinf isfinite"),
    **rows(FLOATS + INTS, -9, 9, "neg abs sign relu square add sub mul"),
    **rows(INTS + BOOL, -9, 9, "bitwise_not bitwise_and bitwise_or bitwise_xor"),
    **rows(BOOL, 0, 1, "logical_not logical_and logical_or logical_xor"),
    **rows(FLOATS + INTS + BOOL, -9, 9, "eq ne lt le gt ge maximum minimum"),
    **rows(FLOATS, -9, 9, "fmax fmin copysign div atan2 hypot nextafter"),
    "acosh": (FLOATS, torch.acosh, (1.0, 9.0)),
    "signbit": (FLOATS + INTS, torch.signbit, (-9, 9)),
    "fma": (FLOATS + INTS, lambda x, y, z: x * y + z, (-9, 9)),
    "pow": (FLOATS, torch.pow, (0.1, 5.0)),
    "floordiv": (FLOATS + INTS, torch.floor_divide, (-9, 9)),
    "truncdiv": (FLOATS + INTS, trunc_divide, (-9, 9)),
    "mod": (FLOATS + INTS, torch.remainder, (-9, 9)),
    "fmod": (FLOATS + INTS, torch.fmod, (-9, 9)),
    "lshift": (INTS, torch.bitwise_left_shift, (-9, 9)),
    "rshift": (INTS, torch.bitwise_right_shift, (-9, 9)),
    "random_bits": ((torch.int64,), random_bits, (1, 1 << 40)),
    "where": (FLOATS + INTS + BOOL, lambda c, x, y: torch.where(c != 0, x, y), (-9, 9)),
}
DIVISIONS = {"floordiv", "truncdiv", "mod", "fmod"}
SHIFTS = {"lshift", "rshift"}


def operand(name: str, dtype: torch.dtype, bounds: tuple[float, float], position: int, n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(position)
    low, high = (0, 5) if name in SHIFTS and position else bounds
    if dtype is torch.bool:
        return torch.rand(n, generator=generator) < 0.5
    if dtype.is_floating_point:
        x = torch.rand(n, generator=generator, dtype=torch.float64) * (high - low) + low
        x[:2] = torch.tensor([x[0].round(), x[1].round() + 0.5]).clamp(low, high)
        return x.to(dtype)
    x = torch.randint(0 if dtype is torch.uint8 else int(low), int(high) + 1, (n,), generator=generator)
    return (torch.where(x == 0, 3, x) if name in DIVISIONS and position else x).to(dtype)


def test_table_is_whole():
    assert SAME.keys() == SCALAR_OPS.keys()


@pytest.mark.parametrize("vector", (True, False), ids=("vector", "scalar"))
@pytest.mark.parametrize("dtype", (*FLOATS, *INTS, *BOOL), ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_operation(dtype, vector, width):
    n = 37
    i = axis("i0", n)
    cases, wants, names = [], [], []
    for name, (types, oracle, bounds) in SAME.items():
        if dtype not in types:
            continue
        row = SCALAR_OPS[name]
        kinds = [torch.bool if row.result == "where" and k == 0 else dtype for k in range(row.arity)]
        inputs = [operand(name, kind, bounds, k, n) for k, kind in enumerate(kinds)]
        want = oracle(*inputs)
        values = [load(f"p{k}", i.symbol, kind) for k, kind in enumerate(kinds)]
        out_type = torch.bool if row.result == "bool" else dtype
        result = op(name, *values, dtype=out_type)
        out = torch.zeros(n, dtype=out_type)
        body = [loop(i, *values, result, store(f"p{row.arity}", i.symbol, result), vector=vector)]
        cases.append((kernel([*kinds, out_type], body), (*inputs, out)))
        wants.append(want)
        names.append(name)
    run_all(cases, width)
    wrong = {}
    for name, (_, args), want in zip(names, cases, wants, strict=True):
        close = torch.isclose(args[-1], want.to(args[-1].dtype), rtol=4e-7 if dtype is torch.float32 else 1e-14,
                              atol=1e-6, equal_nan=True)
        if not close.all():
            at = (~close).nonzero()[0].item()
            wrong[name] = tuple(a[at].item() for a in args) + (want[at].item(),)
    assert not wrong


def test_integer_division_by_zero_does_not_trap():
    i = axis("i0", 20)
    cases = []
    for dtype in (torch.int32, torch.int64):
        lowest = torch.iinfo(dtype).min
        x = torch.full((20,), lowest, dtype=dtype)
        for divisor in (0, -1):
            a, b = load("p0", i.symbol, dtype), load("p1", i.symbol, dtype)
            results = [op(name, a, b) for name in sorted(DIVISIONS)]
            stores = [store(f"p{k + 2}", i.symbol, r) for k, r in enumerate(results)]
            outs = [torch.zeros(20, dtype=dtype) for _ in results]
            k = kernel([dtype] * 6, [loop(i, a, b, *results, *stores)], outputs=4)
            cases.append((k, (x, torch.full((20,), divisor, dtype=dtype), *outs)))
    run_all(cases)


@pytest.mark.parametrize("vector", (True, False), ids=("vector", "scalar"))
@pytest.mark.parametrize("width", WIDTHS)
def test_integers_of_what_is_out_of_their_range_are_eagers(width, vector):
    i = axis("i0", 21)
    cases = []
    for dtype in FLOATS:
        x = torch.tensor([torch.nan, torch.inf, -torch.inf, 3e9, -3e9, 1e30, 2.5], dtype=dtype).repeat(3)
        for integer in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
            v = load("p0", i.symbol, dtype)
            r = Cast((v,), integer)
            body = [loop(i, v, r, store("p1", i.symbol, r), vector=vector)]
            cases.append((kernel([dtype, integer], body), (x, torch.zeros(21, dtype=integer))))
    run_all(cases, width)
    for _, (x, y) in cases:
        assert torch.equal(y, x.to(y.dtype)), (x, y)


def test_mixed_uniform_and_vector_operands():
    i = axis("i0", 33)
    x, y = torch.randn(33), torch.zeros(33)
    v, u = load("p0", i.symbol), load("p0", 3)
    w = op("maximum", u, v)
    c = op("lt", u, v, dtype=torch.bool)
    z = op("where", c, u, w)
    uc = op("gt", u, u, dtype=torch.bool)
    r = op("where", uc, z, w)
    run_all([(kernel([torch.float32] * 2, [loop(i, v, u, w, c, z, uc, r, store("p1", i.symbol, r))]), (x, y))])
    assert torch.equal(y, torch.maximum(x[3], x))


def test_gelu_forms_are_exact_where_they_vanish():
    i = axis("i0", 400)
    x = torch.linspace(-9, 9, 400)
    one = Const(1.0, torch.float32)
    cases = []
    for name in ("erf", "tanh"):
        v = load("p0", i.symbol)
        e = op(name, v)
        r = op("add", one, e)
        cases.append((kernel([torch.float32] * 2, [loop(i, v, one, e, r, store("p1", i.symbol, r))]),
                      (x, torch.zeros(400))))
    run_all(cases)
    torch.testing.assert_close(cases[0][1][1], torch.erfc(-x.double()).float(), rtol=1e-2, atol=1.2e-7)
    torch.testing.assert_close(cases[1][1][1], (2 * torch.sigmoid(2 * x.double())).float(), rtol=1e-6, atol=0)
    assert math.isfinite(cases[0][1][1].sum())
