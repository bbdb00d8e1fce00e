"""What CPython's own tests found about operators: equality and order of subclasses of builtin types, of slices and
methods."""

from typing import Any

import pytest

from tests.capture.suite import kept, said


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


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Number(Index):
    def __int__(self):
        return self.value

    def __float__(self):
        return self.value


class Seventh(int):
    def __int__(self):
        return 7


class Sixth(str):
    def __int__(self):
        return 6


class Worded(str):
    def __str__(self):
        return "worded"

    def __repr__(self):
        return "W"

    def __rmod__(self, other):
        return "format", other


class Fifth(int):
    def __str__(self):
        return "fifth"


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


def numbers(x):
    return said(lambda: int(x), lambda: float(x), lambda: int(x, 16), lambda: [0, 1, 2, 3][x], lambda: "abcd"[x],
                lambda: range(9)[x])


def fields(x):
    whole, real, text, nothing, two, form = "%d", "%f", "%s", "no", "%s %x", "a{:.1f}"
    return said(lambda: whole % x, lambda: real % x, lambda: text % x, lambda: nothing % x, lambda: two % (x, x),
                lambda: f"{x:d}",
                lambda: f"{x!s:>5}", lambda: form.format(x), lambda: b"%d" % x)


def texts_of(x):
    return said(lambda: f"{x}", lambda: f"{x:>4}", lambda: f"{x!r}", lambda: Text("%s") % x, lambda: Text("%5s") % (x,),
                lambda: format(x))


def same(a: Any, b: Any) -> bool:
    return a == b and list(map(type, a)) == list(map(type, b))


EQUAL = [(Text("a"), "a"), (Text("a"), Text("a")), (Text("a"), "b"), (Whole(3), 3), (Whole(3), 3.0),
         (Whole(3), Whole(3)), (Real(2.0), 2),
         (Both(1), 1), (Raw(b"a"), b"a"), (Many([1]), [1]), (Pair((1,)), (1,)), (slice(1), slice(1)),
         (slice(1), slice(2)), (len, len),
         (Whole(1), "1"), (Text("1"), None), (3, Backwards(3)), ((3,), [3]), ({1: 2}, {1: 2.0})]
ORDERED = [(Text("a"), "b"), (Whole(3), 4), (Real(2.0), 3.5), (Many([1]), [2]), (Pair((1,)), (2,)),
           (slice(1), slice(2)), (3, Backwards(2))]


@pytest.mark.parametrize("a, b", EQUAL)
def test_equality(a, b):
    fast = kept(equal)
    for _ in range(2):
        assert same(fast(a, b), equal(a, b))


@pytest.mark.parametrize("a, b", ORDERED)
def test_order(a, b):
    assert same(kept(ordered)(a, b), ordered(a, b))


@pytest.mark.parametrize("a, b", [(Text("a"), "a"), (Whole(3), 3), (Real(2.0), 2.0), (Both(1), 1), (Raw(b"a"), b"a"),
                                  (Pair((1,)), (1,))])
def test_text_and_hash(a, b):
    assert same(kept(texts)(a, b), texts(a, b))


@pytest.mark.parametrize("make", [lambda: [1, 2], lambda: (1, 2), lambda: Many([1]), lambda: "ab", lambda: Whole(3)])
def test_in_place(make):
    assert same(kept(in_place)(make(), 2), in_place(make(), 2))


def test_methods():
    a, b = Plain(), Plain()
    assert kept(methods)(a, b) == methods(a, b)


@pytest.mark.parametrize("x", [Index(3), Index("x"), Index(2.5), Number(3), Number("x"), Number(2.5), Seventh(3),
                               Sixth("12"), Text("12"),
                               Real(2.5), Many([1]), Pair((1,)), Pair((1, 2)), Plain(), {}, Worded("1"), Fifth(5)])
@pytest.mark.parametrize("fn", [numbers, fields, texts_of])
def test_numbers(fn, x):
    assert same(kept(fn)(x), fn(x))
