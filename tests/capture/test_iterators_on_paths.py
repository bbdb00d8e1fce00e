"""Iterators that the body of a recorded loop, or one path of a branch on data, takes values of: the body is recorded
once and runs many times, so such loops and branches are no single node."""

import itertools

import pytest
import torch

import framesmith


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    framesmith.reset()


def the_body_takes_values_of_the_loop(x, n):
    it, total = iter(range(n)), 0
    for a in it:
        total += a
        x = x + next(it, 0)
    return x, total


def a_function_of_the_body_takes_them(x, n):
    it = iter(range(n))

    def following():
        return next(it, 1)

    for _ in it:
        x = x + following()
    return x


def two_values_a_round(x, n):
    it, total = iter(range(n)), 0
    for a, b in zip(it, it):
        total = total + a * b
        x = x + a
    return x, total


def a_loop_in_the_loop(x, n):
    it, y = iter(x[:n]), x[0] * 0
    for a in it:
        for b in it:
            y = y + b
        y = y * a
    return y


def begun_before_the_loop(x, n):
    it, total = iter(range(n)), 0
    pairs = zip(it, x)
    next(it, 0)
    for a, row in pairs:
        total = total + a * row
    return total


def all_that_is_left(x, n):
    it, rest = iter(range(n)), []
    for _ in it:
        x = x + 1
        rest = list(it)
    return x, rest


def known_values(x, n):
    it = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    for _ in range(n):
        x = x + next(it)
    return x, next(it)


def numbered_values(x, n):
    pairs = enumerate([5.0, 6.0, 7.0, 8.0, 9.0, 1.0, 2.0, 3.0])
    for _ in range(n):
        k, v = next(pairs)
        x = x + v * k
    return x


def endless(x, n):
    count, cycle = itertools.count(), itertools.cycle([1.0, 2.0])
    for _ in range(n):
        x = x + next(count) * next(cycle)
    return x, next(count)


def generated(x, n):
    def powers():
        k = 1.0
        while True:
            yield k
            k *= 2

    found = powers()
    for _ in range(n):
        x = x + next(found)
    return x, next(found)


def of_a_loop_that_data_ends(x, n):
    it = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    while x.sum() < 20:
        x = x.abs() + next(it)
    return x, next(it)


def on_both_paths(x, n):
    it = iter(range(n))
    if x.sum() > 0:
        for a in it:
            x = x + a
    else:
        for a in it:
            x = x - a
    return x


def on_one_path(x, n):
    it = iter(range(n))
    if x.sum() > 0:
        for a in it:
            x = x + a
    for a in it:
        x = x * (a + 2)
    return x


def on_paths_to_the_end(x, n):
    it = iter(range(n))
    if x.sum() > 0:
        for a in it:
            x = x + a
        return x
    for a in it:
        x = x - a
    return x * 2


def some_on_paths_to_the_end(x, n):
    it = reversed(range(n + 2))
    x = x + next(it)
    if x.sum() > 30:
        x = x + next(it)
        for a in it:
            x = x + a
        return x, list(it)
    return x - next(it), list(it)


def to_a_sentinel_on_both_paths(x, n):
    inner = iter(range(n + 5))
    it = iter(lambda: next(inner), 3)
    if x.sum() > 0:
        for a in it:
            x = x + a
        return x, next(inner)
    for a in it:
        x = x * (a + 2)
    return x, next(inner)


def a_string_on_both_paths(x, n):
    it = iter("abc"[:n])
    if x.sum() > 0:
        return x + ord(next(it)), [ord(c) for c in it]
    return x - ord(next(it)), [ord(c) for c in it]


PROGRAMS = [f for f in list(globals().values()) if getattr(f, "__module__", "") == __name__
            and getattr(f, "__code__", None) and f.__code__.co_varnames[:2] == ("x", "n")]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_each_value_is_taken_once(program):
    compiled = framesmith.compile(program, options={"compiler_flags": "-O0"})
    for n in (3, 4, 5, 2, 6, 3):
        for sign in (1, -1):
            x = torch.rand(6, 4) * sign
            torch.testing.assert_close(compiled(x, n), program(x, n))
