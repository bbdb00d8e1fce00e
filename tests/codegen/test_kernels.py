"""Printed kernels against eager: reductions, indices, masks, types, transposition, scatter."""

import pytest
import torch

from framesmith.codegen.cpp import VectorTarget, emit_kernel
from framesmith.loops.ir import Cast, Const, Index, Indirect, Local, Part, Pred, Reduce
from framesmith.symbolic.expr import Symbol, as_expr
from tests.codegen.kernels import F32, WIDTH, WIDTHS, axis, kernel, load, loop, op, run, run_all, store

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
STORAGE = (*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
SIZES = (5, 16, 67, 128)


def data(dtype: torch.dtype, *size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(size))
    if dtype is torch.bool:
        return torch.rand(size, generator=generator) < 0.5
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator).to(dtype)
    return torch.randint(0 if dtype is torch.uint8 else -9, 10, size, generator=generator).to(dtype)


def compare(cases, wants) -> None:
    for width in WIDTHS:
        for _, args in cases:
            args[-1].zero_()
        run_all(cases, width)
        for (_, args), want in zip(cases, wants, strict=True):
            torch.testing.assert_close(args[-1], want)


def test_copy():
    cases, wants = [], []
    for dtype in STORAGE:
        for n in SIZES:
            i = axis("i0", n)
            x, y = data(dtype, n), torch.zeros(n + 1, dtype=dtype)
            v = load("p0", i.symbol, dtype)
            cases.append((kernel([dtype, dtype], [loop(i, v, store("p1", i.symbol, v))]), (x, y)))
            wants.append(torch.cat([x, torch.zeros(1, dtype=dtype)]))
    compare(cases, wants)


REDUCTIONS = {
    "sum": lambda x, d: x.sum(d), "prod": lambda x, d: x.prod(d), "max": lambda x, d: x.amax(d), "min": lambda x,
    d: x.amin(d),
    "argmax": lambda x, d: x.argmax(d), "argmin": lambda x, d: x.argmin(d),
}  # fmt: skip


def reduction(kind: str, dtype: torch.dtype, v, position) -> Reduce:
    return Reduce(kind, (v, Index(position, torch.int64)),
                  torch.int64) if kind.startswith("arg") else Reduce(kind, (v,), v.dtype)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8), ids=str)
@pytest.mark.parametrize("work", (0, 1 << 20))
def test_row_reduction(dtype, work):
    cases, wants = [], []
    for kind, oracle in REDUCTIONS.items():
        for n in SIZES:
            i, j = axis("i0", 3), axis("i1", n)
            x = data(dtype, 3, n)
            y = torch.zeros(3, dtype=torch.int64 if kind.startswith("arg") else dtype)
            v = load("p0", i.symbol * n + j.symbol, dtype)
            r = reduction(kind, dtype, v, j.symbol)
            body = [loop(j, v, *r.args[1:], r, reduce=True), store("p1", i.symbol, r)]
            cases.append((kernel([dtype, y.dtype], body, (i,), work=work), (x, y)))
            wants.append(oracle(x.double() if kind == "prod" and dtype.is_floating_point else x, 1).to(y.dtype))
    compare(cases, wants)


def test_column_reduction():
    cases, wants = [], []
    for kind, oracle in REDUCTIONS.items():
        for n in SIZES:
            i, j = axis("i0", 9), axis("i1", n)
            x = data(F32, 9, n)
            y = torch.zeros(n, dtype=torch.int64 if kind.startswith("arg") else F32)
            v = load("p0", i.symbol * n + j.symbol)
            r = reduction(kind, F32, v, i.symbol)
            inner = loop(i, v, *r.args[1:], r, reduce=True, vector=False)
            cases.append((kernel([F32, y.dtype], [loop(j, inner, store("p1", j.symbol, r))]), (x, y)))
            wants.append(oracle(x, 0))
    compare(cases, wants)


@pytest.mark.parametrize("n", (3, 64, 1000, 4099))
@pytest.mark.parametrize("kind", ("sum", "max", "argmin", "welford"))
def test_reduction_of_everything_over_threads(kind, n):
    j = axis("i0", n)
    x = data(F32, n)
    v = load("p0", j.symbol)
    r = reduction(kind, F32, v, j.symbol)
    y = torch.zeros(1, dtype=r.dtype)
    run(kernel([F32, y.dtype], [loop(j, v, *r.args[1:], r, reduce=True), store("p1", 0, r)], work=1 << 20), x, y)
    want = x.mean() if kind == "welford" else REDUCTIONS[kind](x, 0)
    torch.testing.assert_close(y[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", (5, 64, 67, 768))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_welford_far_from_zero(n, dtype):
    i, j = axis("i0", 4), axis("i1", n)
    x = data(dtype, 4, n) + 1000
    v = load("p0", i.symbol * n + j.symbol, dtype)
    r = Reduce("welford", (v,), dtype)
    parts = [Part((r,), k, dtype) for k in (1, 2)]
    mean, m2, count = torch.zeros(3, 4, dtype=dtype)
    stores = [store(f"p{k + 1}", i.symbol, value) for k, value in enumerate((r, *parts))]
    run(kernel([dtype] * 4, [loop(j, v, r, reduce=True), *parts, *stores], (i,), outputs=3), x, mean, m2, count)
    torch.testing.assert_close(mean, x.double().mean(1).to(dtype), rtol=1e-6, atol=0)
    torch.testing.assert_close(m2, (x.double().var(1, unbiased=False) * n).to(dtype), rtol=1e-4, atol=1e-5)
    assert (count == n).all()


def test_welford_over_two_loops():
    b, c, h = axis("i0", 6), axis("i1", 3), axis("i2", 37)
    x = data(F32, 6, 3, 37)
    v = load("p0", b.symbol * 111 + c.symbol * 37 + h.symbol)
    r = Reduce("welford", (v,), F32)
    m2 = Part((r,), 1, F32)
    y = torch.zeros(3)
    inner = loop(b, loop(h, v, r, reduce=True), reduce=True, vector=False)
    run(kernel([F32, F32], [inner, m2, store("p1", c.symbol, m2)], (c,)), x, y)
    torch.testing.assert_close(y, x.var((0, 2), unbiased=False) * 222)


def test_extremes_with_nan_and_ties():
    j = axis("i0", 70)
    x = torch.zeros(70)
    x[[31, 50]] = 1
    for value, where_nan in ((31, None), (40, 40)):
        if where_nan:
            x[[where_nan, 60]] = float("nan")
        v, position = load("p0", j.symbol), Index(j.symbol, torch.int64)
        r, m = Reduce("argmax", (v, position), torch.int64), Reduce("max", (v,), F32)
        best = Part((r,), 1, F32)
        at, top, same = torch.zeros(1, dtype=torch.int64), torch.zeros(1), torch.zeros(1)
        body = [loop(j, v, position, r, m, reduce=True), best, store("p1", 0, r), store("p2", 0, best),
                store("p3", 0, m)]
        run(kernel([F32, torch.int64, F32, F32], body, outputs=3), x, at, top, same)
        assert at.item() == value == x.argmax().item()
        torch.testing.assert_close(torch.cat([top, same]), x.max().repeat(2), equal_nan=True)


def softmax(n, dtype=F32):
    i, j = axis("i0", 5), axis("i1", n)
    at = i.symbol * n + j.symbol
    x = load("p0", at, dtype)
    top = Reduce("max", (x,), F32)
    again = load("p0", at, dtype)
    shifted = op("sub", again, top)
    e = op("exp", shifted)
    total = Reduce("sum", (e,), F32)
    kept = load("t0", j.symbol)
    y = op("div", kept, total)
    body = [
        loop(j, x, top, reduce=True),
        loop(j, again, shifted, e, store("t0", j.symbol, e), total, reduce=True),
        loop(j, kept, y, store("p1", at, y)),
    ]
    return kernel([dtype, dtype], body, (i,), locals_=(Local("t0", F32, n),), work=1 << 20)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("n", SIZES)
def test_softmax(n, dtype):
    x = data(dtype, 5, n) * 4
    y = torch.empty_like(x)
    run(softmax(n, dtype), x, y)
    torch.testing.assert_close(y, torch.softmax(x, -1))


@pytest.mark.parametrize("n", (1, 16, 45, 200))
def test_sizes_known_at_run_time(n):
    s = Symbol("s0", 2, 1000)
    i, j = axis("i0", 3), axis("i1", s)
    x, y = data(F32, 3, n), torch.zeros(3, n)
    v = load("p0", i.symbol * s + j.symbol)
    r = Reduce("sum", (v,), F32)
    again = load("p0", i.symbol * s + j.symbol)
    z = op("sub", again, r)
    body = [loop(j, v, r, reduce=True), loop(j, again, z, store("p1", i.symbol * s + j.symbol, z))]
    run(kernel([F32, F32], body, (i,), symbols=(s,)), x, y, n)
    torch.testing.assert_close(y, x - x.sum(1, keepdim=True))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64, torch.bool), ids=str)
@pytest.mark.parametrize("r, c", ((16, 32), (5, 40), (33, 20)))
@pytest.mark.parametrize("work", (0, 1 << 20))
def test_transposing_kernel(dtype, r, c, work):
    a, b = axis("i0", c), axis("i1", r)
    x, y = data(dtype, r, c), torch.zeros(c, r, dtype=dtype)
    v = load("p0", b.symbol * c + a.symbol, dtype)
    body = [loop(b, v, store("p1", a.symbol * r + b.symbol, v))]
    run(kernel([dtype, dtype], body, (a,), tile=(a.symbol, b.symbol), work=work), x, y)
    assert torch.equal(y, x.t())
    z = torch.zeros(r, c, dtype=dtype)  # the store runs along a
    v = load("p0", a.symbol * r + b.symbol, dtype)
    run(kernel([dtype, dtype], [loop(b, v, store("p1", b.symbol * c + a.symbol, v))], (a,), tile=(a.symbol, b.symbol)),
        y, z)
    assert torch.equal(z, x)


@pytest.mark.parametrize("n", (64, 50))
def test_strided_broadcast_and_split_index(n):
    i = axis("i0", n)
    x, w = data(F32, 2 * n), data(F32, n)
    y = torch.zeros(n)
    a, b, c = load("p0", i.symbol * 2), load("p1", i.symbol // 8 * 4 + i.symbol % 8 // 2), load("p1", 3)
    d = load("p1", i.symbol // 32)
    v1 = op("mul", a, b)
    v2 = op("add", v1, c)
    v3 = op("add", v2, d)
    run(kernel([F32, F32, F32], [loop(i, a, b, c, d, v1, v2, v3, store("p2", i.symbol, v3))]), x, w, y)
    k = torch.arange(n)
    torch.testing.assert_close(y, x[::2] * w[k // 8 * 4 + k % 8 // 2] + w[3] + w[k // 32])


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64), ids=str)
def test_lanes_that_lie_anywhere(dtype):
    cases, wants = [], []
    for n, index in ((50, lambda k: k // 3 + k % 3 * 20), (70, lambda k: k // 2 * 5 + k % 2),
                     (33, lambda k: (k * 7 + 3) % 41)):
        r, i = axis("i0", 3), axis("i1", n)
        x, y = data(dtype, 900), torch.zeros(3, n, dtype=dtype)
        v = load("p0", r.symbol * 200 + index(i.symbol) + 1, dtype)
        cases.append((kernel([dtype, dtype], [loop(i, v, store("p1", r.symbol * n + i.symbol, v))], (r,)), (x, y)))
        wants.append(x[torch.arange(3)[:, None] * 200 + index(torch.arange(n)) + 1])
    compare(cases, wants)


def test_adding_by_columns_needs_no_atomics():
    rows, columns = axis("i1", 30), axis("i0", 100)
    index = torch.arange(30) * 7 % 5
    x, y = data(F32, 30, 100), torch.zeros(5, 100)
    k = load("p0", rows.symbol, torch.int64)
    at = Indirect((k,), Symbol("j0", 0, 4), as_expr(5), False, False)
    v = load("p1", rows.symbol * 100 + columns.symbol)
    body = [loop(columns, loop(rows, k, at, v, store("p2", at.symbol * 100 + columns.symbol, v, mode="add"),
                               vector=False))]
    built = kernel([torch.int64, F32, F32], body, work=1 << 20)
    text = emit_kernel(built, "k", VectorTarget(width=WIDTH)).text
    assert "parallel for" in text and "atomic" not in text
    run(built, index, x, y)
    torch.testing.assert_close(y, torch.zeros(5, 100).index_add(0, index, x))


@pytest.mark.parametrize("width", (100, 1), ids=("rows", "elements"))
def test_threads_add_to_what_they_own(width):
    """A range of the index each, in the order of the positions; also where each lane has an index of its own."""
    index = torch.arange(3000) * 7 % 13
    x, y = data(F32, 3000, width), torch.zeros(13, width)
    rows, columns = axis("i0", 3000), axis("i1", width)
    k = load("p0", rows.symbol, torch.int64)
    at = Indirect((k,), Symbol("j0", 0, 12), as_expr(13), False, False)
    place = columns.symbol if width > 1 else 0
    v = load("p1", rows.symbol * width + place)
    add = store("p2", at.symbol * width + place, v, mode="add")
    inner = (loop(columns, v, add),) if width > 1 else (v, add)
    types = [torch.int64, F32, F32]
    built = kernel(types, [k, at, *inner], (rows,),
                   work=1 << 20) if width > 1 else kernel(types, [loop(rows, k, at, *inner)], work=1 << 20)
    text = emit_kernel(built, "k", VectorTarget(width=WIDTH)).text
    assert "omp parallel" in text and "owner" in text and "atomic" not in text
    run(built, index, x, y)
    one_by_one = torch.zeros(13, width)
    for i, row in zip(index, x):
        one_by_one[i] += row
    assert torch.equal(y, one_by_one)


def test_rows_that_do_not_meet_are_shared():
    index = torch.arange(600).view(30, 20) * 7 % 13
    x, y = data(F32, 30, 20), torch.zeros(30, 13)
    rows, columns = axis("i0", 30), axis("i1", 20)
    k = load("p0", rows.symbol * 20 + columns.symbol, torch.int64)
    at = Indirect((k,), Symbol("j0", 0, 12), as_expr(13), False, False)
    v = load("p1", rows.symbol * 20 + columns.symbol)
    body = [loop(columns, k, at, v, store("p2", rows.symbol * 13 + at.symbol, v, mode="add"))]
    built = kernel([torch.int64, F32, F32], body, (rows,), work=1 << 20)
    text = emit_kernel(built, "k", VectorTarget(width=WIDTH)).text
    assert "parallel for" in text and "atomic" not in text and "owner" not in text
    run(built, index, x, y)
    torch.testing.assert_close(y, torch.zeros(30, 13).scatter_add(1, index, x))


@pytest.mark.parametrize("kind", ("sum", "max", "argmax"))
def test_few_columns_are_shared_out_by_rows(kind):
    rows, columns = axis("i1", 5000), axis("i0", 20)
    x = data(F32, 5000, 20)
    v = load("p0", rows.symbol * 20 + columns.symbol)
    r = reduction(kind, F32, v, rows.symbol)
    y = torch.zeros(20, dtype=r.dtype)
    inner = loop(rows, v, *r.args[1:], r, reduce=True, vector=False)
    run(kernel([F32, y.dtype], [loop(columns, inner, store("p1", columns.symbol, r))], work=1 << 20), x, y)
    torch.testing.assert_close(y, REDUCTIONS[kind](x, 0), rtol=1e-5, atol=1e-4)


def test_long_sums_keep_their_precision():
    j = axis("i0", 3_000_001)
    x, y = torch.full((3_000_001,), 0.1), torch.zeros(1)
    v = load("p0", j.symbol)
    r = Reduce("sum", (v,), F32)
    run(kernel([F32, F32], [loop(j, v, r, reduce=True), store("p1", 0, r)]), x, y)
    torch.testing.assert_close(y[0], x.double().sum().float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("vector_index", (False, True))
def test_indirect_load_checks_and_wraps(vector_index):
    n, rows, width = 6, 10, 20
    i, j = axis("i0", n), axis("i1", width)
    table, index = data(F32, rows, width), torch.tensor([3, -1, 0, 9, 5, -10])
    k = load("p0", j.symbol % 6 if vector_index else i.symbol, torch.int64)
    position = Indirect((k,), Symbol("j0", 0, rows - 1), as_expr(rows), True, True)
    v = load("p1", position.symbol * width + j.symbol)
    y, error = torch.zeros(n, width), torch.zeros(1, dtype=torch.int64)
    built = kernel([torch.int64, F32, F32], [loop(j, k, position, v, store("p2", i.symbol * width + j.symbol, v))],
                   (i,))
    run(built, index, table, y, error=error)
    column = torch.arange(width)
    want = table[index[column % 6], column].expand(n, width) if vector_index else table[index]
    assert torch.equal(y, want) and error.item() == 0
    index[2] = 10
    run(built, index, table, y, error=error)
    assert error.item() == 1


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64), ids=str)
@pytest.mark.parametrize("n", (3, 29, 64))
def test_padding_does_not_touch_memory_outside(dtype, n):
    i = axis("i0", n + 4)
    x, y = data(dtype, n), torch.ones(n + 4, dtype=dtype)
    low, high = Pred(as_expr(1), i.symbol), Pred(i.symbol, as_expr(n + 2))
    inside = op("logical_and", low, high, dtype=torch.bool)
    v = load("p0", i.symbol - 2, dtype, inside)
    run(kernel([dtype, dtype], [loop(i, low, high, inside, v, store("p1", i.symbol, v))]), x, y)
    assert torch.equal(y, torch.nn.functional.pad(x, (2, 2)))


def test_masked_store():
    i = axis("i0", 40)
    x, y = data(F32, 40), torch.zeros(40)
    v, zero = load("p0", i.symbol), Const(0.0, F32)
    positive = op("gt", v, zero, dtype=torch.bool)
    run(kernel([F32, F32], [loop(i, v, zero, positive, store("p1", i.symbol, v, positive))]), x, y)
    assert torch.equal(y, x.clamp(min=0))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16, torch.int64), ids=str)
@pytest.mark.parametrize("work", (0, 1 << 20))
def test_adding_scatter(dtype, work):
    i, j = axis("i0", 8), axis("i1", 20)
    index = torch.tensor([1, 1, 0, 2, 1, 0, 2, 2])
    x, y = data(dtype, 8, 20).round(), torch.zeros(3, 20, dtype=dtype)
    k = load("p0", i.symbol, torch.int64)
    at = Indirect((k,), Symbol("j0", 0, 2), as_expr(3), False, False)
    v = load("p1", i.symbol * 20 + j.symbol, dtype)
    body = [loop(j, k, at, v, store("p2", at.symbol * 20 + j.symbol, v, mode="add"))]
    run(kernel([torch.int64, dtype, dtype], body, (i,), work=work), index, x, y)
    torch.testing.assert_close(y, torch.zeros(3, 20, dtype=dtype).index_add(0, index, x))


@pytest.mark.parametrize("source", STORAGE, ids=str)
def test_cast(source):
    cases, wants = [], []
    for target in STORAGE:
        i = axis("i0", 35)
        x, y = data(source, 35), torch.zeros(35, dtype=target)
        if not target.is_signed and source not in (torch.bool, torch.uint8):
            x = x.abs()
        v = load("p0", i.symbol, source)
        rounding = target if target in (torch.bfloat16, torch.float16) else None
        c = Cast((v,), F32 if rounding else target, rounding)
        cases.append((kernel([source, target], [loop(i, v, c, store("p1", i.symbol, c))]), (x, y)))
        wants.append(x.to(target))
    compare(cases, wants)


def test_bfloat16_moves_bit_by_bit():
    n = 16 * 256
    x = torch.arange(-(2**15), 2**15, 16, dtype=torch.int16).view(torch.bfloat16)
    x = torch.where(x.isnan(), torch.tensor(float("nan"), dtype=torch.bfloat16), x)
    i, y, z = axis("i0", n), torch.zeros_like(x), torch.zeros(64, 64, dtype=torch.bfloat16)
    v = load("p0", i.symbol, torch.bfloat16)
    a, b = axis("i0", 64), axis("i1", 64)
    w = load("p0", b.symbol * 64 + a.symbol, torch.bfloat16)
    tiled = kernel([x.dtype] * 2, [loop(b, w, store("p1", a.symbol * 64 + b.symbol, w))], (a,),
                   tile=(a.symbol, b.symbol))
    run_all([(kernel([x.dtype] * 2, [loop(i, v, store("p1", i.symbol, v))]), (x, y)), (tiled, (x, z))])
    torch.testing.assert_close(y, x, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(z, x.view(64, 64).t(), rtol=0, atol=0, equal_nan=True)


def test_bfloat16_rounds_subnormal_results_as_eager():
    n = 16 * 256
    x = torch.arange(-(2**15), 2**15, 16, dtype=torch.int16).view(torch.bfloat16)
    i, y = axis("i0", n), torch.zeros_like(x)
    v = load("p0", i.symbol, torch.bfloat16)
    half = op("mul", v, Const(0.5, F32))
    run_all([(kernel([x.dtype] * 2, [loop(i, v, half, store("p1", i.symbol, half))]), (x, y))])
    torch.testing.assert_close(y, x * 0.5, rtol=0, atol=0, equal_nan=True)
