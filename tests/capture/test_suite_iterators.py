"""What CPython's own tests found about iterators that cross a break: their types, and that they see the containers that
they walk over."""

import collections
import functools
import itertools
import types

import framesmith
from tests.capture.suite import kept, said, twice
from tests.programs import Programs

program = Programs(twice)


class Named(dict):
    pass


class Ordered(collections.OrderedDict):
    pass


class Many(list):
    pass


def left(its):
    return [list(it) for it in its], [type(it).__name__ for it in its]


@program
def of_mappings():
    d, o = {1: 2, 3: 4, 5: 6}, collections.OrderedDict(a=1, b=2)
    its = [iter(d), iter(d.items()), reversed(d), reversed(d.values()), iter(o), iter(o.items()), reversed(o)]
    for it in its:
        next(it)
    framesmith.graph_break()
    return left([*its, d.items(), o.keys(), o.values()])


@program
def of_a_proxy_at_its_end():
    its = [iter(types.MappingProxyType({"a": 1}).values()), iter(types.MappingProxyType({1: 2}).items())]
    for it in its:
        next(it)
        next(it, None)
    framesmith.graph_break()
    return left(its)


@program
def of_subclasses():
    d, o, m = Named(a=1, b=2), Ordered(a=1, b=2), Many([1, 2, 3])
    its = [iter(d), iter(o), iter(m), reversed(m), d.items(), o.values(), reversed(o)]
    next(its[0]), next(its[2]), next(its[3])
    framesmith.graph_break()
    m.append(4)
    d["c"] = 3
    return [list(it) for it in its[1:]], [type(it).__name__ for it in its]


@program
def of_others():
    q = collections.deque([1, 2, 3])
    its = [iter(q), reversed(q), iter({1}), iter("abc"), iter("é"), iter(range(5)), iter(b"ab"), reversed(range(4)),
           iter((1, 2)),
           reversed((1, 2)), iter(frozenset([1]))]
    for it in its:
        next(it)
    framesmith.graph_break()
    q[1] = 7
    return left(its)


@program
def exhausted():
    made = [1]
    its = [iter(made), reversed(made), iter((1,)), iter({1: 2}), iter(collections.deque([1])), iter("a")]
    for it in its:
        list(it)
    framesmith.graph_break()
    made.append(2)
    return left(its)


@program
def backwards_over_a_list_that_changes():
    made = [4, 5, 6, 7]
    it = reversed(made)
    next(it)
    framesmith.graph_break()
    made[:] = [1, 2, 3, 4, 5, 6]
    rest = list(it)
    other = reversed(made)
    made.clear()
    return rest, list(other)


def growing(d, change):
    it = iter(d)
    next(it)
    framesmith.graph_break()
    change(d)
    try:
        return next(it)
    except RuntimeError as e:
        return str(e)


@program
def over_what_grew():
    def put(d):
        d["x"] = 1

    return (growing({1: 2, 3: 4}, put), growing(collections.OrderedDict(a=1, b=2), put),
            growing({1, 2, 3}, lambda s: s.add(9)),
            growing(collections.deque([1, 2]), lambda q: q.append(3)), growing([1, 2], lambda m: m.append(3)))


@program
def while_elements_are_replaced():
    q = collections.deque(range(4))
    it = iter(q)
    next(it)
    framesmith.graph_break()
    for i in range(4):
        q[i] = i * 10
    q.reverse()
    return list(it), list(q)


@program
def of_iterators_over_what_changes():
    m, n, out = [1, 2], [1, 2], []
    for a, _ in zip(m, range(6)):
        framesmith.graph_break()
        m[1:1] = [a + 5]
        out.append(a)
    for i, (a, _) in enumerate(zip(n, range(6))):
        framesmith.graph_break()
        n.insert(0, i)
        out.append(a)
    return m, n, out


@program
def of_wrong_arguments():
    def calls():
        return said(map, lambda: map(abs), lambda: zip([1], other=1), lambda: filter(None, [1], 2),
                    lambda: enumerate([1], 1, 2),
                    lambda: enumerate([1], "a"), lambda: reversed([1], 1), lambda: iter(1, 2, 3),
                    lambda: next(iter([]), 1, 2),
                    lambda: itertools.chain(x=1), lambda: getattr(1, "a", 2, 3), lambda: bool(1, 2), lambda: int(x=1),
                    lambda: slice(1, 2, 3, 4), lambda: collections.deque([1], 1, 2),
                    lambda: collections.deque().rotate("a"),
                    lambda: sum([1], ""), lambda: sum(["a"], start=b""), lambda: min(1, 2, default=3),
                    lambda: max([1], [2], key=5),
                    lambda: functools.reduce(max, 5), lambda: functools.partial(5), lambda: [].sort(5),
                    lambda: print(1, sep=5))

    made = calls()
    framesmith.graph_break()
    return made == calls(), made


test_iterators = program.test()


def test_a_long_range():
    def first(n):
        it = iter(range(2, n))
        taken = [next(it), next(it)]
        framesmith.graph_break()
        return taken, next(it), list(zip(range(2), it))

    fast = kept(first)
    for _ in range(2):
        assert fast(10**12) == first(10**12)
