"""Who is whom: arguments that are one object in one call and two in another, containers that contain themselves, order
as a guard."""

from __future__ import annotations

import collections
from functools import partial

import torch

import framesmith
from tests.capture.values.harness import X, agree
from tests.programs import Programs

taken = Programs(agree)
broken = partial(taken, whole=False)


def twice(make):
    """One object, two arguments."""
    made = make()
    return made, made


class Box:
    """Something with an attribute."""

    def __init__(self, n=0):
        self.n = n


@taken(make=lambda: ([1], [1]), others=[lambda: twice(lambda: [1])])
def lists(x, a, b):
    a.append(2)
    return x * len(b), a, b


@taken(make=lambda: ({"k": 1}, {"k": 1}), others=[lambda: twice(lambda: {"k": 1})])
def dicts(x, a, b):
    a["k"] += 1
    return x * b["k"], a, b


@taken(make=lambda: (Box(1), Box(1)), others=[lambda: twice(lambda: Box(1))])
def objects(x, a, b):
    a.n += 1
    return x * b.n, a, b


@taken(make=lambda: ({1}, {1}), others=[lambda: twice(lambda: {1})])
def sets(x, a, b):
    a.add(2)
    return x * len(b), a, b


@taken(make=lambda: (collections.deque([1]), collections.deque([1])),
       others=[lambda: twice(lambda: collections.deque([1]))])
def deques(x, a, b):
    a.append(2)
    return x * len(b), a, b


@taken(make=lambda: ([1], [1]), others=[lambda: twice(lambda: [1])])
def identities(x, a, b):
    return x + 1, a is b, a == b, a is not b, b in [a], id(a) == id(b)


@taken(make=lambda: ([[1], [1]],), others=[lambda: ([*twice(lambda: [1])],)])
def inside(x, a):
    a[0].append(5)
    return x * len(a[1]), a


@taken(make=lambda: ([1],))
def cycles(x, a):
    a.append(a)
    d = {"a": a}
    d["d"] = d
    return x + 1, a, d, a[1] is a, d["d"]["a"] is a, repr(a), repr(d)


def moved(*names):
    """An ordered dict whose own order is not that of its table."""
    made = collections.OrderedDict.fromkeys("abc", 1)
    for name in names:
        made.move_to_end(name)
    return (made,)


@taken(make=moved, others=[lambda: moved("a"), lambda: moved("b", "a")])
def order_of_an_ordered_dict(x, d):
    return x + 1, "".join(d), list(d.items())


@taken(make=lambda: ({"a": 1, "b": 2},), others=[lambda: ({"b": 2, "a": 1},)])
def order_of_a_dict(x, d):
    return x + 1, "".join(d), list(d.values())


@taken(make=lambda: ([1, 2, 3],))
def changed_while_iterated(x, a):
    out = []
    d = {1: 1, 2: 2}
    for make in (lambda: [d.pop(k) for k in d], lambda: [d.setdefault(k + 9, 0) for k in d],
                 lambda: [d.update({5: 6}) for _ in d.items()]):
        try:
            out.append(make())
        except RuntimeError as e:
            out.append(str(e))
    for k in d:
        d[k] = k * 10
    seen = []
    for k, v in d.items():
        seen.append((k, v))
        d[99 if 99 in d else k] = -1
    s = {1, 2}
    try:
        for v in s:
            s.add(v + 10)
    except RuntimeError as e:
        out.append(str(e))
    return x + 1, out, d, seen, len(s)


@taken
def a_view_that_was_written_lies_where_it_lay(x):
    a, b, *_ = torch.eye(3).clone()
    b.copy_(a.square())
    c = (x + 1)[1]
    c.mul_(x[0])
    return b, b.storage_offset(), c, c.storage_offset(), c.as_strided((2,), (1,), 1)


@broken(make=lambda: (torch.zeros(3).expand(2, 3), torch.zeros(4)))
def elements_that_share_memory_are_written(x, a, b):
    b.add_(1)
    a[0] = x[0]
    b.add_(1)
    y = b.expand(2, 4)
    y[1].mul_(3)
    return a, b, y


class Own:
    def __init__(self, a):
        self.a = a


def _own(a, shared=True):
    o = Own(a)
    return o, vars(o) if shared else {"a": a}


@taken(make=lambda: _own(1), others=[lambda: _own(1, False), lambda: _own(2)])
def an_object_and_its_dict(x, o, d):
    same = vars(o) is d, vars(o) is o.__dict__, vars(o) is vars(Own(1))
    d["b"] = 2
    o.c = 3
    del d["a"]
    return x + 1, same, o, d


@broken(make=lambda: _own(1), others=[lambda: _own(2)])
def a_dict_and_its_object(x, o, d):
    d["b"] = 2
    o.c = 3
    d["e"] = o.b = 5
    return x + 1, o, list(d)


test_program = taken.test()


def test_a_view_lies_in_what_it_views_in_machine_code():
    def f(x):
        y = x.sin()
        return y[1], (x * 2)[:, 1:]

    with torch.no_grad():
        for want, got in zip(f(X), framesmith.compile(f)(X), strict=True):
            torch.testing.assert_close(got, want)
            assert (got.storage_offset(), got.stride()) == (want.storage_offset(), want.stride())
            torch.testing.assert_close(got.as_strided((3,), (1,), 0), want.as_strided((3,), (1,), 0))
