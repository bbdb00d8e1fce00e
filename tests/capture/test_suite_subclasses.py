"""Subclasses of containers whose own methods answer: whether C asks them, or takes the builtin part, is as CPython has
it."""

import typing

import pytest

import framesmith
from tests.capture.suite import kept, twice
from tests.programs import Programs

program = Programs(twice)


class Letters(tuple):
    def __new__(cls, *items):
        return super().__new__(cls, items)

    def __len__(self):
        return 50

    def __iter__(self):
        return iter("tt")


class Vector(tuple):
    def __new__(cls, a, b):
        made = super().__new__(cls, (a, b))
        made.first = a
        return made

    def __add__(self, other):
        return Vector(self[0] + other[0], self[1] + other[1])

    def __rmul__(self, n):
        return Vector(self[0] * n, self[1] * n)


class Point(typing.NamedTuple):
    x: int
    y: int = 2

    def __add__(self, other):
        return Point(self.x + other[0], self.y + other[1])

    def __eq__(self, other):
        return self.x == other.x

    def __hash__(self):
        return 3


class Items(list):
    def __iter__(self):
        return iter("zz")


class Elements(set):
    def __iter__(self):
        return iter([9, 8])


class Walked(dict):
    def __iter__(self):
        return iter(["walked"])


class Keyed(dict):
    def keys(self):
        return ["key"]

    def __getitem__(self, key):
        return "item", key


class Both(Keyed):
    def __iter__(self):
        return iter(["walked"])


def tuples(t, v, p):
    a, b = t
    return (a, b, len(t), t[0], max(t), dict([t]), list(t), tuple(t), [*t], (lambda *k: k)(*t), bool(t), t == (1, 2),
            "t" in t,
            v + v, 2 * v, (v + v).first, v == (1, 2), hash(v) == hash((1, 2)), tuple(v),
            p + (1, 1), p == Point(1, 7), p != Point(1, 7), {p: 1}[Point(1)], p._replace(x=4), p.y, type(p + p))


MADE = Letters(1, 2), Vector(1, 2), Point(1)


def test_tuples():
    fast = kept(tuples)
    for _ in range(2):
        assert repr(fast(*MADE)) == repr(tuples(*MADE))


@program
def tuples_made_in_the_frame():
    t, v, p = Letters(1, 2), Vector(1, 2), Point(1)
    out = tuples(t, v, p)
    framesmith.graph_break()
    return repr(out), t[0], v, v.first, p, type(t)


@program
def sets_of_what_is_walked():
    m, s = Items([5, 6]), Elements([1, 2])
    e = set(m)
    e.update(m, s)
    return (e, frozenset(m), {1}.union(m), {5, 6}.difference(m), set(Walked(a=1)), set(s), {1} | s, {1}.isdisjoint(s),
            {1}.issubset(s),
            {1}.isdisjoint(m))


@program
def dicts_of_mappings():
    out = []
    for cls in (Walked, Keyed, Both):
        d, e = cls(a=1), {}
        e.update(d)
        out.append((e, dict(d), {**d}, (lambda **k: k)(**d), list(d), list(d.items())))
    return out


@pytest.mark.parametrize("cls", [Walked, Keyed, Both])
def test_changes_are_replayed(cls):
    def change(d):
        d["b"] = 2
        del d["a"]
        return len(d)

    fast = kept(change)
    for _ in range(2):
        mine, plain = cls(a=1), cls(a=1)
        assert fast(mine) == change(plain)
        assert dict.__repr__(mine) == dict.__repr__(plain)


test_subclasses = program.test()
