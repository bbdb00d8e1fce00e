"""What CPython's own tests found about operators: equality and order of subclasses of builtin types, of slices and methods."""

from typing import Any

import pytest

from tests.capture.suite import kept


class Text(str):
    pass


class Whole(int):
    pass


class Real(float):
    pass


class Both(complex):
    pass


class Raw(bytes):
    pass


class Many(list):
    pass


class Pair(tuple):
    pass


class Backwards(int):
    def __eq__(self, other):
        return "mine"

    def __gt__(self, other):
        return "mine too"

    __hash__ = int.__hash__


class Plain:
    def method(self):
        return self


def equal(a, b):
    return a == b, b == a, a != b, b != a, a in [b]


def ordered(a, b):
    return a < b, b < a, a >= b


def texts(a, b):
    return str(a), repr(a), f"{a}", hash(a) == hash(b), {b: 1}.get(a)


def in_place(a, n):
    before = a
    a *= n
    same = before is a
    a += a
    return a, same, before is a


def methods(a, b):
    return a.method == a.method, a.method == b.method, a.method != b.method, len == len, [].append == [].append


def same(a: Any, b: Any) -> bool:
    return a == b and list(map(type, a)) == list(map(type, b))


EQUAL = [(Text("a"), "a"), (Text("a"), Text("a")), (Text("a"), "b"), (Whole(3), 3), (Whole(3), 3.0), (Whole(3), Whole(3)), (Real(2.0), 2),
         (Both(1), 1), (Raw(b"a"), b"a"), (Many([1]), [1]), (Pair((1,)), (1,)), (slice(1), slice(1)), (slice(1), slice(2)), (len, len),
         (Whole(1), "1"), (Text("1"), None), (3, Backwards(3)), ((3,), [3]), ({1: 2}, {1: 2.0})]
ORDERED = [(Text("a"), "b"), (Whole(3), 4), (Real(2.0), 3.5), (Many([1]), [2]), (Pair((1,)), (2,)), (slice(1), slice(2)), (3, Backwards(2))]


@pytest.mark.parametrize("a, b", EQUAL)
def test_equality(a, b):
    fast = kept(equal)
    for _ in range(2):
        assert same(fast(a, b), equal(a, b))


@pytest.mark.parametrize("a, b", ORDERED)
def test_order(a, b):
    assert same(kept(ordered)(a, b), ordered(a, b))


@pytest.mark.parametrize("a, b", [(Text("a"), "a"), (Whole(3), 3), (Real(2.0), 2.0), (Both(1), 1), (Raw(b"a"), b"a"), (Pair((1,)), (1,))])
def test_text_and_hash(a, b):
    assert same(kept(texts)(a, b), texts(a, b))


@pytest.mark.parametrize("make", [lambda: [1, 2], lambda: (1, 2), lambda: Many([1]), lambda: "ab", lambda: Whole(3)])
def test_in_place(make):
    assert same(kept(in_place)(make(), 2), in_place(make(), 2))


def test_methods():
    a, b = Plain(), Plain()
    assert kept(methods)(a, b) == methods(a, b)
