"""`while` loops over Python's integers: one graph for all numbers of rounds where their number is known."""

import pytest
import torch

import framesmith
from tests.capture.loops_driver import W, check


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


def counts(x, n):
    i = 0
    h = x[0]
    while i < n:
        h = torch.tanh(h @ W + i)
        i += 1
    return h, i


def counts_down(x, n):
    h = x[0]
    while n > 0:
        h = torch.tanh(h @ W + n)
        n -= 1
    return h, n


def over_a_size(x, n):
    i = 0
    h = x[0] * 0
    while i < x.shape[0]:
        h = torch.tanh(h @ W + x[i])
        i += 1
    return h


def fills_a_list(x, n):
    outs = []
    i = 0
    while i < len(x):
        outs.append(x[i] @ W)
        i += 1
    return torch.stack(outs)


def until_zero(x, n):
    h = x[0]
    while n:
        h = torch.tanh(h @ W)
        n = n - 1
    return h


def steps(x, n):
    h = x[0]
    i = 1
    while i <= n:
        h = torch.tanh(h @ W)
        i += 2
    return h, i


def fills_a_buffer(x, n):
    out = torch.zeros(x.shape[0], 3, 4, dtype=torch.double)
    h = x[0]
    k = 0
    while k < x.shape[0]:
        h = torch.tanh(x[k] @ W + h)
        out[k] = h
        k += 1
    return out


def unless_equal(x, n):
    i = 0
    h = x[0]
    while not (i == n):  # noqa: SIM201
        h = h @ W
        i += 1
    return h, i


def unless_less(x, n):
    i = n
    h = x[0]
    while not (i < n - 2):
        h = h @ W + i / n
        i -= 1
    return h, i


def in_a_row(x, n):
    i = 0
    h = x[0]
    while i < n:
        i += 1
    while i > 1:
        h = h @ W
        i -= 1
        last = i * 2
    return h, i, last


def with_else(x, n):
    i = 0
    h = x[0]
    while i < n:
        h = h @ W
        i += 1
    else:
        h = h * 2
    return h, i


def two_ends(x, n):
    lo, hi = 0, n - 1
    h = x[0]
    while lo < hi:
        h = h * x[lo] + x[hi]
        lo += 1
        hi -= 1
    return h, lo, hi


def until_equal(x, n):
    i = 0
    h = x[0]
    while i != n:
        h = h @ W
        i += 1
    return h


def nested(x, n):
    i = 0
    h = x[0]
    lst = []
    while i < n:
        j = 0
        while j < n:
            h = torch.tanh(h * x[j] + x[i])
            j += 1
        i += 1
        lst.append(h)
    return torch.stack(lst), i, j


def first_differs(x, n):
    i = 0
    h = 0.0
    while i < n:
        h = h + x[i].sum() * W.sum()
        i += 1
    return h, i


def downwards(x, n):
    i = n - 1
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    while i >= 0:
        out[i] = x[i] @ W
        i -= 1
    return out, i


def numbers_too(x, n):
    i = 0
    h = x[0]
    k = n
    while i < n:
        h = h @ W
        i += 1
        k = k + 2
    return h.sum() * k, k


def towards_each_other(x, n):
    i = 0
    h = x[0]
    while i < n:
        h = h @ W
        i += 1
        n -= 1
    return h, i, n


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [
    counts, counts_down, over_a_size, fills_a_list, until_zero, steps, fills_a_buffer, unless_equal, unless_less,
    in_a_row, with_else, two_ends,
    until_equal, nested, first_differs, downwards, numbers_too, towards_each_other])
def test_a_loop_of_a_known_number_of_rounds_is_one_graph(program, grad, captures):
    check(program, grad, (4, 5, 7, 9, 3), captures, 3)


def continues(x, n):
    i = 0
    h = x[0]
    while i < n:
        i += 1
        if i == 2:
            continue
        h = h @ W
    return h, i


def breaks(x, n):
    i = 0
    h = x[0]
    while i < n:
        h = h @ W
        i += 1
        if i > 3:
            break
    else:
        h = h * 2
    return h, i


def doubles(x, n):
    i = 1
    h = x[0]
    while i < n:
        h = h @ W
        i *= 2
    return h, i


def two_conditions(x, n):
    i = 0
    h = x[0]
    while i < n and i < 5:
        h = h @ W
        i += 1
    return h, i


def takes_from_an_iterator(x, n):
    it = iter(x)
    i = 0
    h = x[0]
    while i < n:
        h = h + next(it)
        i += 1
    return h, list(it)


def parity(x, n):
    i = 0
    h = x[0]
    while i < n:
        if i % 2:
            h = h @ W
        else:
            h = h + 1
        i += 1
    return h


def list_of_numbers(x, n):
    i = 0
    h = x[0]
    seen = []
    while i < n:
        h = h @ W
        seen.append(i)
        i += 1
    return h, seen


def fills_a_dict(x, n):
    i = 0
    h = x[0]
    d = {}
    while i < n:
        h = h @ W
        d["a"] = h
        i += 1
    return h, d["a"]


def raises(x, n):
    h = x[0]
    while n:
        n -= 2
        h = h @ W
        if n < 0:
            raise ValueError("odd")
    return h


def catches(x, n):
    i = 0
    h = x[0]
    try:
        while i < n:
            h = h + x[i + 1]
            i += 1
    except IndexError:
        h = h * 3
    return h, i


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [
    continues, breaks, doubles, two_conditions, takes_from_an_iterator, parity, list_of_numbers, fills_a_dict, raises,
    catches])
def test_other_while_loops_are_as_in_eager(program, grad):
    check(program, grad, (4, 5, 7, 3, 2, 1))
