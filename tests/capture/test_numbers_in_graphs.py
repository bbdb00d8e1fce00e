"""Floats and ints that vary from call to call enter the graph as inputs where an operator takes them as operands."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import framesmith
from framesmith.testing import CompileCounter
from tests.capture.agree import Program, Programs

X = torch.linspace(-2, 3, 12).reshape(3, 4)
CASES = []


def case(fn):
    CASES.append(fn)
    return fn


@case
def arithmetic(x, s, n):
    return x * s + n, s - x, x / s, s / x, n - x.long(), x.long() * s, x.long() + n, x.long() // (n + 1), x % s,\
        s % (x.abs() + 1), x.sum() * s


@case
def arithmetic_of_the_numbers(x, s, n):
    return x * (s * 2 + n) - (-s), x + n * n


@case
def comparisons(x, s, n):
    return x > s, s > x, n <= x, x.eq(n), x.long() != n, x.long() < s


@case
def in_place(x, s, n):
    y = x.clone()
    y.mul_(s).add_(x, alpha=s).sub_(n)
    y[0] = s
    y[1].fill_(n)
    z = x.clone().addcmul_(x, y, value=s).addcdiv_(x, x.abs() + 1, value=s).lerp_(y, s)
    return y, z, x.clone().clamp_(min=-s), x.clone().masked_fill_(x > 0, s)


@case
def ternary(x, s, n):
    return torch.where(x > 0, x, s), torch.where(x > 0, s, x), x.clamp(-s, n), x.lerp(x * 2, s), x.masked_fill(x > 0, s), x.clamp(max=s)


@case
def made(x, s, n):
    return (torch.tensor(s), torch.tensor(n), torch.full((2, 2), s), torch.full((2,), n), torch.scalar_tensor(s),
            torch.tensor(s, dtype=torch.double), torch.tensor(n, dtype=torch.float32))


@case
def low_precision(x, s, n):
    h = x.bfloat16()
    return h * s, h + n, x.double() * s, x.half() > s


@case
def beside_what_needs_the_value(x, s, n):
    return x * s, x[n % 3], x.sum(n % 2)


@case
def in_a_transform(x, s, n):
    return torch.vmap(lambda r: r * s + n)(x), torch.func.grad(lambda a: (a * s).sum())(x)


@case
def under_autocast(x, s, n):
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.t() * s, torch.addcmul(x, x, x, value=s), x * n


NUMBERS = [(0.25 + i / 7, i + 2) for i in range(10)]


@pytest.mark.parametrize("kinds", [(float, int), (np.float32, np.int64), (np.float64, np.int32)], ids=["Python", "NumPy", "NumPy's others"])
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_same_as_eager(fn, kinds):
    compiled = framesmith.compile(fn, backend="eager")
    for s, n in NUMBERS:
        s, n = kinds[0](s), kinds[1](n)
        if fn is in_place and kinds[0] is np.float32:
            with pytest.raises(TypeError, match="can't assign a numpy.float32"):
                compiled(X, s, n)
            continue
        for a, b in zip(compiled(X, s, n), fn(X, s, n), strict=True):
            assert a.dtype == b.dtype and a.stride() == b.stride()
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_numbers_of_numpy_stay_what_they_are(kind):
    def program(x, t):
        return x * (t / 1000), t * x, t * 3 - 1, -t, type(t)

    counter = CompileCounter()
    compiled = framesmith.compile(program, backend=counter)
    for n in range(2, 26):
        got, want = compiled(X, kind(n)), program(X, kind(n))
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1]) and got[2:] == want[2:]
        assert list(map(type, got)) == list(map(type, want))
    assert counter.frame_count <= 4


def test_native_code_takes_them():
    compiled = framesmith.compile(ternary)
    for s, n in NUMBERS:
        torch.testing.assert_close(compiled(X, s, n), ternary(X, s, n))


ITEMS = Programs()


@ITEMS.each()
def test_items_are_numbers_of_the_graph(program: Program) -> None:
    program.check()


@ITEMS(X)
def scaled_by_an_item(x):
    return x / x.max().item(), x * float(x.sum()) + 1, x.max().item() > x


@ITEMS(X, torch.tensor(3))
def an_int(x, n):
    k = n.item()
    return x * k, x + k, x.long() + k, k - x


@ITEMS(X, torch.tensor(0.7, dtype=torch.float64))
def an_item_as_it_was(x, s):
    v = s.item()
    s.add_(1)
    return x * v + 2 * v, v, s


@ITEMS(X)
def items_that_fill(x):
    first = x[0, 0].item()
    return (x.clone().fill_(first), torch.full((2,), first), x.clamp(min=x.mean().item()), torch.where(x > 0, x, x.min().item()),
            torch.tensor(first), torch.add(x, x, alpha=first), x.lerp(x * 2, x.std().item()))


@ITEMS(X)
def arithmetic_of_items(x):
    s = x.sum().item()
    t = s * 2 + x.max().item()
    return x * t, t > 1, t, x.half() * s, x.double() - t


@ITEMS(X, torch.tensor(2))
def items_as_indices(x, n):
    return x[n.item()], x.sum(n.item() - 2), x.view(n.item() * 6)


@ITEMS(X, breaks=True)
def branches_on_items(x):
    m = x.abs().max().item()
    return x / m if m > 1 else x * m


@ITEMS(X.double() * 1e300, breaks=True, raises=RuntimeError)
def an_item_that_float32_does_not_hold(x):
    return torch.full((2,), x.max().item(), dtype=torch.float32)


def test_a_float_of_an_item_needs_no_variant():
    def run(x):
        s = x.sum().item()
        framesmith.graph_break()
        return x * s + s

    counter = CompileCounter()
    compiled = framesmith.compile(run, backend=counter)
    for i in range(12):
        assert torch.equal(compiled(X + i), run(X + i))
        if i == 0:
            first = counter.frame_count
    assert counter.frame_count == first


def test_a_number_that_varies_is_an_index_by_its_value():
    counter = CompileCounter()
    compiled = framesmith.compile(lambda x, n: x[n % 3] * n, backend=counter)
    for n in range(6):
        assert torch.equal(compiled(X, n), X[n % 3] * n)
    assert counter.frame_count == 6


def test_numbers_of_a_whole_graph():
    counter = CompileCounter()
    compiled = framesmith.compile(lambda x, s: x * s, backend=counter, fullgraph=True)
    for i in range(20):
        assert torch.equal(compiled(X, float(i)), X * float(i))
    assert counter.frame_count < 8


def test_a_branch_keeps_them_assumed_in_a_whole_graph():
    compiled = framesmith.compile(lambda x, s: x * s if s > 3 else x, backend="eager", fullgraph=True)
    for i in range(7):
        assert torch.equal(compiled(X, float(i)), X * i if i > 3 else X)


DIVISIONS = {
    "//": lambda a, n: a // n,
    "%": lambda a, n: a % n,
    "fmod": torch.fmod,
    "trunc": lambda a, n: torch.div(a, n, rounding_mode="trunc"),
    "in place": lambda a, n: a.clone().remainder_(n),
    "expression": lambda a, n: a // (n * 2 - 4),
}


@pytest.mark.parametrize("divide", DIVISIONS.values(), ids=DIVISIONS)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_division_of_integers_by_zero_is_eagers_error(divide, backend):
    compiled = framesmith.compile(lambda a, n: divide(a, n) + 1, backend=backend)
    x = torch.arange(-5, 6)
    for n in (3, 4, 5, -6, 7, 8):
        assert torch.equal(compiled(x, n), divide(x, n) + 1)
        assert torch.equal(compiled(x.float(), n), divide(x.float(), n) + 1)
    for n in (0, 2):
        try:
            want = divide(x, n) + 1
        except RuntimeError:
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                compiled(x, n)
        else:
            assert torch.equal(compiled(x, n), want)


def test_special_values():
    compiled = framesmith.compile(lambda x, s: (x * s, x > s, torch.full((2,), s)), backend="eager")
    for s in (1.0, 2.0, 3.0, 4.0, float("nan"), float("inf"), -0.0, 0.0):
        for a, b in zip(compiled(X, s), (X * s, s < X, torch.full((2,), s)), strict=True):
            torch.testing.assert_close(a, b, equal_nan=True, rtol=0, atol=0)


def test_an_int_beyond_int64_is_eagers_error():
    compiled = framesmith.compile(lambda x, n: x.long() + n, backend="eager")
    for n in (1, 2, 3, 4, 5):
        assert torch.equal(compiled(X, n), X.long() + n)
    with pytest.raises(OverflowError):
        compiled(X, 2**70)


def test_a_float_beyond_float32_is_eagers_error():
    compiled = framesmith.compile(lambda x, s: x + torch.full((4,), s), backend="eager")
    for s in (1.0, 2.0, 3.0, 4.0, 5.0):
        assert torch.equal(compiled(X, s), X + s)
    with pytest.raises(RuntimeError, match="overflow"):
        compiled(X, 1e300)
