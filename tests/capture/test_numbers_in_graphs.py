"""Floats and ints that vary from call to call enter the graph as inputs where an operator takes them as operands."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import framesmith
from framesmith.testing import CompileCounter
from tests.capture.agree import check
from tests.programs import Programs

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
    return torch.where(x > 0, x, s), torch.where(x > 0, s, x), x.clamp(-s, n), x.lerp(x * 2, s), x.masked_fill(
        x > 0, s), x.clamp(max=s)


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


@pytest.mark.parametrize("kinds", [(float, int), (np.float32, np.int64), (np.float64, np.int32)],
                         ids=["Python", "NumPy", "NumPy's others"])
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


@pytest.mark.filterwarnings("error")
def test_a_number_of_numpy_is_an_input_of_the_graph():
    def program(x, t):
        return x * t

    compiled = framesmith.compile(program)
    for n in range(20):
        assert torch.equal(compiled(X, np.float32(n / 2)), program(X, np.float32(n / 2)))


def test_native_code_takes_them():
    compiled = framesmith.compile(ternary)
    for s, n in NUMBERS:
        torch.testing.assert_close(compiled(X, s, n), ternary(X, s, n))


ITEMS = Programs(check)


test_items_are_numbers_of_the_graph = ITEMS.test()


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
    return (x.clone().fill_(first), torch.full((2,), first), x.clamp(min=x.mean().item()),
            torch.where(x > 0, x, x.min().item()),
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


def counted(fn, calls, most, **options):
    """Compile `fn`, and compare with eager for each of some arguments: values, strides, and how often it was
    compiled."""
    counter = CompileCounter()
    compiled = framesmith.compile(fn, backend=counter, **options)
    for args in calls:
        got, want = compiled(*args), fn(*args)
        for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want)), strict=True):
            if isinstance(b, torch.Tensor):
                assert a.dtype == b.dtype and a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
                torch.testing.assert_close(a, b)
            else:
                assert type(a) is type(b) and a == b
    assert counter.frame_count <= most
    return compiled


def test_floats_that_vary_at_once_vary_in_the_next_variant():
    def fn(x, transitions):
        rewards, factors = zip(*transitions)
        return x[0] * torch.tensor(rewards) + factors[0] * x[1].sum() - factors[3]

    counted(fn, [(X, [(7.5 * i + k, 5.5 * i + k) for k in range(4)]) for i in range(6)], 2)


TABLE = torch.linspace(0, 1, 20 * 6).reshape(20, 2, 3)
INDEXED = {
    "row": lambda x, n: x * TABLE[n, 0, 0],
    "remainder": lambda x, n: x[n % 3] * n,
    "rows": lambda x, n: TABLE[n] + x.sum() + TABLE[-n],
    "parts": lambda x, n: x.sum() + TABLE[n, None, 1:].sum(-1) * TABLE[n, ...].sum(),
    "behind": lambda x, n: x.sum() + TABLE[None][:, n] + TABLE[:2, ..., None][n % 2, ..., 0],
    "select": lambda x, n: x.sum() + TABLE.select(0, n - 1) + torch.select(TABLE, 0, n),
    "chain": lambda x, n: x.sum() + TABLE[n][1][0] + TABLE[n][n % 2],
    "as a tensor": lambda x, n: TABLE.index_select(0, torch.tensor([n, 0])) + TABLE[torch.full((2,), n)],
    "a quotient": lambda x, n: x * (1 / n) + TABLE[100 // n % 20].sum() + x * (n / 4),
}


@pytest.mark.parametrize("name", INDEXED)
def test_a_number_that_varies_is_an_index(name):
    run = INDEXED[name]
    compiled = counted(run, [(X, n) for n in range(1, 18)], 5, fullgraph=True)
    for bad in (20, -21, 10**30):
        try:
            want = run(X, bad)
        except (IndexError, OverflowError, TypeError, ValueError, RuntimeError) as error:
            with pytest.raises(type(error)):
                compiled(X, bad)
        else:
            torch.testing.assert_close(compiled(X, bad), want)


def test_native_code_takes_indices():
    compiled = framesmith.compile(INDEXED["rows"])
    for n in (1, 2, 3, 4, 5, 6, 0, 19):
        torch.testing.assert_close(compiled(X, n), INDEXED["rows"](X, n))
    with pytest.raises(IndexError):
        compiled(X, 20)


def test_a_view_at_a_varying_index_stays_a_view():
    def written(x, n):
        x = x.clone()
        y = x[n]
        x.add_(1)
        y.mul_(2)
        return x, y + 1

    def returned(x, n):
        return x[n], x[n] * 2, x[n].view(2, 2)

    def looked_at(x, n):
        return x[n] * x[n].storage_offset(), x[n]._base is x

    def strided(x, n):
        return x.t()[n] + 1, x.t()[:, n] * 2

    for fn in (written, returned, looked_at, strided):
        counted(fn, [(X, n % 3) for n in range(8)], 8)
    compiled = framesmith.compile(lambda x, n: x[n], backend="eager")
    for n in (0, 1, 2, 0, 1, 2, 2):
        x = X.clone()
        compiled(x, n).zero_()
        assert torch.equal(x[n], torch.zeros(4))


def test_gradients_at_a_varying_index():
    table = torch.nn.Parameter(TABLE[:, 0].clone())

    def run(x, n):
        return (x[:, :3] * table[n]).sum() + (x[n % 3] ** 2).sum()

    compiled = framesmith.compile(run)
    for n in range(8):
        found = []
        for call in (compiled, run):
            x = X.clone().requires_grad_()
            with torch.enable_grad():
                call(x, n).backward()
            found.append((x.grad, table.grad))
            table.grad = None
        torch.testing.assert_close(*found)


BRANCHES = {
    "less": (lambda x, n: x * 2 if n < 500 else x - 1, 2),
    "chain": (lambda x, n: x * 2 if 100 <= n < 500 else x - 1, 3),
    "not equal": (lambda x, n: x * 2 if n != 74 and n else x - 1, 3),
    "a flag": (lambda x, n: (x + 1, n < 500, not n, n), 2),
    "parity": (lambda x, n: x * 2 if n % 2 == 0 else x - 1, 6),
    "arithmetic": (lambda x, n: x * n if n * 3 - 7 >= 600 else x - n, 6),
    "attribute": (lambda x, n: x * 2 if type("T", (), {"n": n}).n > 300 else x, 2),
    "two": (lambda x, n: x * 2 if n > len(x) else x / 2, 2),
    "rounds": (lambda x, n: sum((x for i in range(3) if i < n), x), 3),
    "assigned": (lambda x, n: x if (n if n > 200 else 200) > 400 else x + 1, 4),
}


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_on_an_integer_is_guarded_by_its_outcome(name, fullgraph):
    fn, most = BRANCHES[name]
    compiled = counted(fn, [(X, n) for n in range(0, 900, 37)], most, fullgraph=fullgraph)
    for n in (2**40 + 1, -5, 2**63 - 1, -(2**63)) if name != "arithmetic" else (-5, 2**40 + 1):
        got, want = compiled(X, n), fn(X, n)
        assert got[1:] == want[1:] if name == "a flag" else torch.equal(got, want)


FLOAT_BRANCHES = {
    "greater": (lambda x, s: x * s if s > 3 else x, 3),
    "range": (lambda x, s: x * s if 1.5 <= s < 6 else x - s, 4),
    "arithmetic": (lambda x, s: x * s if s * 2 - 1 != 0.0 and 1 / 4 + s < 9 else x, 4),
    "truth": (lambda x, s: x * s if s else x, 3),
    "both": (lambda x, s: (x if s == 2.5 else x + s, s > 4, s), 4),
}


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("name", FLOAT_BRANCHES)
def test_a_branch_on_a_float_is_guarded_by_its_outcome(name, fullgraph):
    fn, most = FLOAT_BRANCHES[name]
    compiled = counted(fn, [(X, i / 2) for i in range(20)], most, fullgraph=fullgraph)
    for s in (float("nan"), float("inf"), -0.0, -3.5):
        got, want = compiled(X, s), fn(X, s)
        torch.testing.assert_close(got, want, equal_nan=True)


def test_outcomes_beyond_64_bits():
    run = framesmith.compile(lambda x, n: x + 1 if n * n < 100 else x - 1 if n > 2**64 else x * 3, backend="eager")
    for n in (1, 2, 3, 4, 5, 6, 20, 2**32, 2**33, 2**62, 2**65, -(2**65), 2**32 + 7):
        assert torch.equal(run(X, n), X + 1 if n * n < 100 else X - 1 if n > 2**64 else X * 3)


def test_identity_and_type_of_integers():
    run = framesmith.compile(lambda x, n, m: (x + 1, n is m, n is None, type(n), isinstance(n, bool), n == m),
                             backend="eager")
    for n, m in ((1, 1), (1, 2), (2, 2), (3, 3), (True, 1), (4, 5), (5, 5), (6, 6), (None, 1), (7, 7), (8, 8)):
        assert run(X, n, m)[1:] == (n is m, n is None, type(n), isinstance(n, bool), n == m)


def test_many_rounds_are_one_guard():
    def run(x, n):
        i = 0
        while i < n:
            x = x + i
            i += 1
        return x

    for n in (3, 40, 5, 40):
        assert torch.equal(framesmith.compile(run, backend="eager")(X, n), run(X, n))
    assert max(len(entry.tree.describe()) for entry in framesmith._C.entries(run)) < 20


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


def test_assignment_with_an_operator_makes_another_number():
    def program(x):
        v = x.mean().item()
        w = v
        v -= 1
        v *= 2
        return x * v + w * x, x / w

    compiled = framesmith.compile(program, fullgraph=True)
    for a, b in zip(compiled(X), program(X), strict=True):
        torch.testing.assert_close(a, b)


def test_a_number_may_be_computed_of_an_argument_that_is_returned():
    """It is computed before the graph, where residual code has not bound the argument yet."""
    def program(x, t, h):
        h = min(h, 5.0)
        y = x * (t + h)
        if y.sum().item() > 0:
            t = t + h
        return y, t, h

    compiled = framesmith.compile(program, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(5):
            (y, *given), (expected, *same) = (f(X, 0.5 + i, 0.1 * (i + 1)) for f in (compiled, program))
            assert torch.equal(y, expected) and given == same
