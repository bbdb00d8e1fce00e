"""Lists, tuples, ranges, slices: all methods; ones from outside change in place."""

from __future__ import annotations

import collections
import operator
from functools import partial
from typing import NamedTuple

import torch

import framesmith
from tests.capture.values.harness import X, agree
from tests.programs import Programs

taken = Programs(agree)
broken = partial(taken, whole=False)


@taken(make=lambda: ([3, 1, 2],), others=[lambda: ([3, 1],), lambda: ([],), lambda: ([3, 1, 2.0],)])
def argument(x, a):
    a.append(4)
    a.extend((5, 6))
    a.insert(0, 0)
    a += [7]
    b = a
    a = a + [8]
    return x + len(a), a, b, a.index(4), a.count(5), a[-1], a[1:3], a[::-2], 3 in a, b is a, sorted(
        a), a * 2, a == b, a > b


@taken(make=lambda: ([3, 1, 2, 5, 4],))
def changed(x, a):
    del a[0]
    a[1:2] = [10, 11, 12]
    a[::2] = ["p", "q", "r"][: len(a[::2])]
    a[-1] = x
    del a[1:3]
    last = a.pop()
    first = a.pop(0)
    a.reverse()
    a *= 2
    return last + 1, first, a, len(a)


@taken(make=lambda: ([3, 1, 2, 5, 4], [(1, "b"), (0, "c"), (1, "a")]))
def sorting(x, a, b):
    a.sort(reverse=True)
    b.sort(key=lambda p: p[0])
    c = sorted(b, key=operator.itemgetter(1), reverse=True)
    d = sorted(b, key=str)
    return x + 1, a, b, c, d, sorted(["b", "A"], key=str.lower), sorted({2: 1, 1: 2}), sorted(a, key=lambda v: -v), max(
        b), \
        min(b, key=lambda p: p[1])


@taken(make=lambda: ([1, 2], [1, 2]))
def identities(x, a, b):
    c = a
    c.append(b)
    d = [a, a, b]
    e = a[:]
    f = list(a)
    g = (a, b)
    h = tuple(g)
    return x + 1, c is a, d, e, f, e is a, g is h, a == e, a is b, g, d[0] is d[1]


@taken
def made(x):
    a = [x, x + 1]
    b = [a, a]
    a.append(b)
    t = (1, [2], a)
    return b, a[0] is x, t, [[]] * 3, [[] for _ in range(2)], [*a[:2], *t[:1]], (*t[:2],), list("ab"), list(range(3)), \
        [i for i in (1, 2) if i > 1]


@taken
def comparisons(x):
    return x + 1, [1, 2] < [1, 3], (1, 2) == (1, 2), [1] != [1], (1,) < (1, 0), [] == (), [1, "a"] == [1, "a"], (
        1, 2) >= (1,), \
        [x] == [x], x in [x], [None] == [None], (1.0,) == (1,), \
        [float("nan")] == [float("nan")], hash((1, "a")) == hash((1, "a"))


@taken
def errors(x):
    a = [1, 2]

    def delete():
        del a[9]

    def assign():
        a[5] = 1

    def extended():
        a[::2] = [1, 2, 3]

    out = []
    for make in (lambda: a[5], lambda: a.pop(9), lambda: [].pop(), lambda: a.remove(7), lambda: a.index(9),
                 lambda: (1,)[3],
        lambda: (1,).index(5), delete, assign, extended,
                 lambda: a["x"], lambda: a + (1,), lambda: (1,) + [1], lambda: a < (1,), lambda: len(5),
                 lambda: a * "a",
                 lambda: [1, "a"].sort(), lambda: sorted([None, 1]),
                 lambda: a.append(), lambda: a.nope, lambda: hash([1]), lambda: {[1]: 2}, lambda: iter(5),
                 lambda: next(iter([])),
                 lambda: (1, 2).append, lambda: list(5),
                 lambda: max([]), lambda: min(5), lambda: sum(["a"]), lambda: a[1:"a"], lambda: range(1, 2, 0),
                 lambda: operator.getitem(a, 7)):
        try:
            out.append(make())
        except Exception as e:
            out.append((type(e), str(e)))
    return x + 1, out


@taken
def ranges(x):
    r = range(1, 10, 3)
    return x + 1, r, len(r), r[1], r[-1], r[::2], list(r), 4 in r, 5 in r, r.index(7), r.count(
        4), r.start, r.stop, r.step, \
        list(reversed(r)), r == range(1, 11, 3), sum(r), \
        [i for i in range(3, 0, -1)], bool(range(0)), hash(r) == hash(range(1, 11, 3)), isinstance(
            r, collections.abc.Sequence), max(r)


@taken
def slices(x):
    s = slice(1, None, 2)
    return x[:, s], [1, 2, 3, 4][s], s.start, s.stop, s.step, s.indices(5), s == slice(1, None, 2), s, "abcdef"[s], \
        (1, 2, 3)[slice(2)], repr(s)


@taken
def unpacking(x):
    a, (b, *c), d = 1, (2, 3, 4), [5]
    (e,) = d
    *f, g = range(4)
    h, i = {"p": 1, "q": 2}
    [j, k] = "xy"
    return x + 1, a, b, c, d, e, f, g, h, i, j, k, [*"ab", *range(2)], {**{"a": 1}, "b": 2}, (lambda *p, **q: (p, q))(
        *[1, 2], **{"z": 3})


@taken
def unpacking_errors(x):
    out = []

    def few():
        a, b = [1]
        return a, b

    def many():
        a, b = 1, 2, 3
        return a, b

    def star():
        a, *b, c = [1]
        return a, b, c

    def none():
        a, b = None
        return a, b

    for make in (few, many, star, none):
        try:
            out.append(make())
        except Exception as e:
            out.append((type(e), str(e)))
    return x + 1, out


@taken(make=lambda: ([1, [2, 3], {"a": [4]}],))
def nested(x, a):
    a[1].append(x)
    a[2]["a"] += [5]
    a[2]["b"] = a[1]
    return a[1], a


@taken(make=lambda: ([X, X + 1],), others=[lambda: ([X],)])
def tensors_inside(x, ts):
    ts[0] = ts[0] * 2
    ts.append(x)
    return torch.stack([*ts]) if len(ts) > 2 else ts[0]


@taken(make=lambda: ((lambda a: (a, a))([1]),), others=[lambda: ([1], [1])])
def aliased(x, a, b=None):
    if b is None:
        a, b = a
    a.append(2)
    return x + 1, a, b, a is b


def two(x, a, b):
    a.append(1)
    return x + len(b), a is b


@taken(make=lambda: ((lambda a: (a, a))([1]))[:1] + ([1],))
def not_aliased(x, a, b):
    return two(x, a, b)


@broken(make=lambda: ([1, 2],))
def across_a_break(x, a):
    a.append(3)
    b = [a, x]
    framesmith.graph_break()
    a.append(4)
    b.append(a)
    c = b[0]
    torch._dynamo.graph_break()
    c.append(5)
    return x + len(a), a, b, c is a


@broken(make=lambda: ([1, 2, 3],))
def loop_with_a_break(x, a):
    for i, v in enumerate(a):
        x = x + v
        if i == 1:
            framesmith.graph_break()
    return x + 1, a


class Point(NamedTuple):
    """A named tuple."""

    a: int
    b: float = 2.0

    @property
    def total(self):
        return self.a + self.b

    def scaled(self, k):
        return self._replace(a=self.a * k)

    @classmethod
    def unit(cls):
        return cls(1, 1)


Pair = collections.namedtuple("Pair", "left right", defaults=[None])  # noqa: PYI024


@taken(make=lambda: (Point(1), Pair(1, [2])),
       others=[lambda: (Point(2), Pair(1, [2])), lambda: (Point(1, 3), Pair(1, []))])
def named_tuples(x, p, q):
    q.right.append(1)
    a, b = p
    r = p._replace(b=x)
    return r, p.a, p[1], a, b, p._asdict(), Point._fields, Point._make([1, 2]), p.total, p.scaled(3), Point.unit(), len(
        p), \
        p == (1, 2.0), p + (3,), repr(p), q, Pair(x), \
        Pair(left=1, right=2), Point._field_defaults, isinstance(p, tuple), p.index(p.a), hash(p) == hash(
            tuple(p)), p._fields, [*p], \
        p[::-1], {p: 1}[p], \
        getattr(q, "left"), Point(*[1], **{"b": 5}), p < Point(9), dict(zip(p._fields, p)), type(  # noqa: B009
            p) is Point, r.b.sum()


@taken
def named_tuple_made_inside(x):
    p = Point(x, 3)
    try:
        p.a = 1
    except AttributeError as e:
        message = str(e)
    try:
        Point()
    except TypeError as e:
        missing = str(e)
    return p, p.total, p._replace(a=1), message, missing, p.__class__, Point.__name__


class Stack(list):
    """A list with more."""

    def __init__(self, *args):
        super().__init__(*args)
        self.pushed = 0

    def push(self, v):
        self.pushed += 1
        self.append(v)
        return self


@taken(make=lambda: (Stack([1, 2]),), others=[lambda: (Stack(),)])
def list_subclass(x, s):
    s.push(x * 2).push(3)
    s[0] = 9
    t = Stack([s, 5])
    return s, t, len(s), s[-1], s.pushed, t.push(1) is t, isinstance(s, list), s[1:], list(s), [*t], s + [1], t == [
        s, 5, 1], bool(s), \
        9 in s, [v for v in t[1:] if v == 5]


class Triple(tuple):
    """A tuple with more."""

    def __new__(cls, *args):
        return super().__new__(cls, args)

    @property
    def last(self):
        return self[-1]


@taken(make=lambda: (Triple(1, 2, 3),), others=[lambda: (Triple(1, 2),)])
def tuple_subclass(x, t):
    u = Triple(x, 4)
    return x + 1, t.last, t[0], u, u.last, t + (1,), len(t), t == (1, 2, 3), [*u], isinstance(u, tuple), t[1:]


@taken(make=lambda: (torch.Size([2, 3]),), others=[lambda: (torch.Size([2]),)])
def sizes(x, s):
    return x.new_zeros(s), s.numel(), s[0], s + (1,), list(s), len(s), s == (2, 3), x.size() == s, x.size(0), s[:1], \
        isinstance(s, tuple), (*s, 4), torch.Size((1, 2)), tuple(s)


@taken(make=lambda: (collections.UserList([1, 2]),))
def user_list(x, u):
    u.append(x)
    u[0] = 7
    v = collections.UserList([3]) + [4]
    return u, len(u), v, u[-1], 7 in u, u.data


@taken
def mutated_while_iterated(x):
    a = [1, 2, 3]
    seen = []
    for v in a:
        seen.append(v)
        if v == 1:
            a.append(9)
        if v == 2:
            a.remove(1)
    return x + 1, a, seen


test_program = taken.test()
