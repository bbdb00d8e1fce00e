"""Two paths to one object, or to two: what captured code assumed of it is guarded."""

from __future__ import annotations

import torch

from tests.capture.scenarios import check
from tests.programs import Programs

suite = Programs(check)
X = torch.ones(3)


class Box:
    def __init__(self, n: int = 0) -> None:
        self.n = n


@suite(graphs=2)
def tensors_apart_become_one(c):
    run = c(lambda a, b: (a + b, a is b))
    return run(X, X * 2), run(X, X), run(X * 3, X)


@suite
def a_changed_list_is_met_again(c):
    def grow(a, b, x):
        a.append(1)
        return x + len(b)

    run = c(grow)
    one, two = [0], [0]
    return run(one, two, X), run(one, one, X), run(two, one, X), one, two


@suite
def a_changed_object_is_met_again(c):
    def count(a, b, x):
        a.n += 1
        return x + b.n

    run = c(count)
    one, two = Box(), Box(5)
    return run(one, two, X), run(one, one, X), one.n, two.n


@suite
def a_changed_dict_is_met_again(c):
    def store(a, b, x):
        a["k"] = 1
        return x + len(b)

    run = c(store)
    one, two = {}, {}
    return run(one, two, X), run(two, two, X), one, two


@suite
def members_of_a_set_by_identity(c):
    run = c(lambda a, b: (a + b, len({a, b})))
    return run(X, X * 2), run(X, X)


@suite
def objects_as_keys(c):
    names = {}

    def find(a, x):
        return x + names[a]

    one, two = Box(), Box()
    names[one], names[two] = 1, 2
    run = c(find)
    return run(one, X), run(two, X), run(one, X)


@suite
def equality_without_eq_is_identity(c):
    run = c(lambda a, b, x: (x + 1, a == b, a in [b], a != b))
    one, two = Box(), Box()
    return run(one, two, X), run(one, one, X)


@suite
def tuples_by_identity(c):
    run = c(lambda a, b, x: (x + 1, a is b))
    one, two = (X, X), (X, X)
    return run(one, one, X), run(one, two, X)


@suite(graphs=2)
def elements_apart_become_one(c):
    run = c(lambda a, b, x: x + len({a, b}))
    one, two, three = Box(), Box(), Box()
    return run(one, two, X), run(two, one, X), run(three, one, X), run(one, one, X), run(two, two, X)


@suite
def elements_of_a_set_from_outside(c):
    run = c(lambda s, a, x: (x + (a in s), x + len(s | {a}), x + len({a} - s)))
    one, two = Box(), Box()
    return run({one}, one, X), run({two}, two, X), run({one}, two, X), run({one, two}, two, X), run(set(), two, X)


@suite
def keys_that_are_elements(c):
    run = c(lambda d, a, b, x: (
        x + len({a} & d.keys()), x + len({*d, a}), x + sum(d[k] for k in {b}),
        x + len({frozenset({a}): 1, frozenset({b}): 2}),
    ))
    one, two = Box(), Box()
    return [run(d, a, b, X) for d in ({one: 1, two: 2}, {two: 1, one: 3}) for a in (one, two) for b in (one, two)]


@suite
def a_set_of_elements_is_returned(c):
    run = c(lambda a, b, x: (x + 1, {a}, {a: 1}, {a, b} == {b, a}, {a} == {b}))
    one, two = Box(), Box()
    three, four = run(one, two, X), run(two, one, X)
    return [(r[0], r[1] == {b}, r[2] == {b: 1}, r[3:]) for r, b in ((three, one), (four, two))]


@suite
def a_set_from_outside_takes_an_element(c):
    def add(s, a, x):
        s.add(a)
        return x + (a in s)

    run = c(add)
    one, two, seen = Box(), Box(), set()
    return run(seen, one, X), run(seen, two, X), run(seen, one, X), seen == {one, two}


test_identity = suite.test()
