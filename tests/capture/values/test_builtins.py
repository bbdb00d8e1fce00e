"""Python's builtin functions, itertools, operator, functools, heapq, bisect."""

from __future__ import annotations

import bisect
import collections
import functools
import heapq
import itertools
import operator
from functools import partial

import torch

from tests.capture.values.harness import agree
from tests.programs import Programs

taken = Programs(agree)
broken = partial(taken, whole=False)


@taken(make=lambda: ([3, 1, 2],))
def iterating(x, a):
    e = enumerate(a, 1)
    z = zip(a, "abc", range(9))
    m = map(lambda p, q: p + q, a, a)
    f = filter(None, [0, 1, "", "a"])
    r = reversed(a)
    first = next(e)
    return x + 1, first, list(e), list(z), list(m), list(f), list(r), list(filter(lambda v: v > 1, a)), list(
        zip()), dict(enumerate(a)), \
        next(iter([]), 5), next(m, None), \
        list(zip(*[(1, 2), (3, 4)])), tuple(map(str, a)), [*map(torch.neg, [x])][0], type(e), type(z), type(m), type(
            r), iter(a) is a, \
        isinstance(z, zip), list(map(max, a, [2, 2, 2]))


@taken
def strict(x):
    out = []
    for make in (lambda: list(zip([1], [1, 2], strict=True)), lambda: list(zip([1, 2], [1], strict=True)),
        lambda: list(zip([1], [2], strict=True)),
                 lambda: list(zip([1], [1], [], strict=True)), lambda: next(zip()), lambda: next(iter(())),
                 lambda: list(map(None, [1])), lambda: next([]), lambda: list(zip(5)),
                 lambda: sum([[1]]), lambda: sorted(5), lambda: reversed({1}), lambda: enumerate(5), lambda: abs("a"),
                 lambda: ord("ab"), lambda: chr(-1), lambda: round("a"),
                 lambda: getattr(1, "zz"), lambda: setattr(1, "a", 2), lambda: isinstance(1, 1),
                 lambda: issubclass(1, int),
                 lambda: int([]), lambda: float(None), lambda: divmod(1, 0),
                 lambda: functools.reduce(operator.add, []), lambda: vars(1), lambda: hash({}), lambda: pow(1, "a"),
                 lambda: iter(1, 2), lambda: object().a):
        try:
            out.append(make())
        except Exception as e:
            out.append((type(e), str(e)))
    return x + 1, out


@taken
def reductions(x):
    a = [3, 1, 2]
    return x + 1, any(v > 2 for v in a), all(a), any([]), all([]), sum(a), sum(a, 10), sum([0.1] * 3), min(a), max(
        a, key=lambda v: -v), \
        max(3, 5, 4), min([], default=7), max("a", "b", key=ord), \
        sum([x, x]), sum([[1], [2]], []), sum((v for v in a), start=1), min((2, "a"), (1, "b")), max([1, 2], [1, 3]), \
        max(a, default=None), min(4, 2, key=lambda v: v % 3), \
        functools.reduce(lambda p, q: p * q, a), functools.reduce(operator.add, a,
                                                                  10), functools.reduce(torch.add, [x, x, x]), \
        sorted(a, reverse=True)


@taken
def sentinels(x):
    a = [1, 2, 3, 0, 4]
    it = iter(a)
    first = list(iter(lambda: next(it), 0))
    return x + 1, first, list(it), list(iter([5, 6].pop, 5))


@taken
def stopped_early(x):
    log = []

    def note(v):
        log.append(v)
        return v

    first = next(map(note, [1, 2, 3]))
    some = any(note(v) > 1 for v in [1, 2, 3])
    pair = list(zip(map(note, [7, 8, 9]), [1]))
    total = all(map(note, [0, 5]))
    found = 2 in map(note, [1, 2, 3])
    a, b = itertools.islice(map(note, itertools.count(20)), 2)
    return x + 1, log, first, some, pair, total, found, a, b


@taken(make=lambda: ([1, 2, 3],))
def iterators_shared(x, a):
    it = iter(a)
    pairs = list(zip(it, it))
    jt = iter(a)
    head = next(jt)
    rest = [v for v in jt]
    z = zip(a, itertools.count())
    (p, q), *_ = z
    g = (v * 2 for v in a)
    h = map(str, g)
    one = next(h)
    return x + 1, pairs, head, rest, p, q, one, list(g), list(h), sum(1 for _ in a), list(it)


@taken
def attributes(x):
    class_names = []
    o = Thing(3)
    setattr(o, "b", 5)
    delattr(o, "b")
    for n in ("a", "b", "double", "c"):
        class_names.append((n, hasattr(o, n), getattr(o, n, None)))
    return x + 1, o.a, class_names, vars(o), getattr(x, "shape"), hasattr(x, "nope"), getattr(
        o, "zz", x) is x, callable(o.twice), \
        callable(o), callable(len), callable(3), callable(Thing), o.__dict__, \
        type(o).__name__, o.__class__ is Thing, isinstance(o, (int, Thing)), issubclass(
            Thing, object), o == o, o != Thing(3), \
        type(x), type(None), isinstance(x, torch.Tensor), \
        isinstance(3, int | str), isinstance(None, int | None), issubclass(bool, (int, str)), \
        isinstance([], collections.abc.Iterable), isinstance({}, collections.abc.Mapping), \
        isinstance(o, collections.abc.Hashable), isinstance(len, collections.abc.Callable), \
        isinstance((i for i in ()), collections.abc.Generator), dir(Thing)[-3:]  # noqa: B009


class Thing:
    """Something with attributes."""

    c = 7

    def __init__(self, a):
        self.a = a

    @property
    def double(self):
        return self.a * 2

    def twice(self):
        return self.a * 2


@broken
def identity_numbers(x):
    y = x + 1
    return y, id(y) == id(y), id([]) != 0


@taken(make=lambda: ([1],))
def identity_numbers_of_arguments(x, a):
    return x + 1, id(a) == id(a), {id(a): 1}[id(a)], id(a) in {id(a)}


@taken
def itertools_functions(x):
    a = [1, 2, 3, 4]
    groups = [(k, list(g)) for k, g in itertools.groupby("aabbc")]
    t1, t2 = itertools.tee(a)
    cycled = list(itertools.islice(itertools.cycle(a), 6))
    return x + 1, list(itertools.chain(a, "ab")), list(itertools.chain.from_iterable([[1], [2]])), list(
        itertools.accumulate(a)), \
        list(itertools.accumulate(a, operator.mul)), \
        list(itertools.accumulate(a, initial=10)), list(itertools.combinations(a, 2)), list(
            itertools.permutations("ab")), \
        list(itertools.product("ab", repeat=2)), list(itertools.compress(a, [1, 0, 1])), \
        list(itertools.dropwhile(lambda v: v < 3, a)), list(itertools.takewhile(lambda v: v < 3, a)), \
        list(itertools.filterfalse(lambda v: v % 2, a)), groups, list(t1), next(t2), list(t2), cycled, \
        list(itertools.starmap(pow, [(2, 3)])), list(itertools.zip_longest(a, "ab", fillvalue=0)), list(
            itertools.pairwise(a)), \
        list(itertools.repeat(1, 2)), list(itertools.islice(a, 1, None, 2)), \
        list(itertools.combinations_with_replacement("ab", 2)), list(zip(itertools.count(5, 2), "ab")), \
        list(itertools.islice(itertools.count(), 3)), \
        [(k, [v.item_ for v in g]) for k,
         g in itertools.groupby([Item(1), Item(3), Item(2)], key=lambda v: v.item_ % 2)], \
        list(itertools.accumulate([x, x], torch.add))[1], \
        sorted(itertools.chain({1}, {2: 3})), list(itertools.islice("abc", 0)), list(
            itertools.compress("ab", itertools.cycle([0, 1])))


class Item:
    def __init__(self, n):
        self.item_ = n


@taken
def itertools_lazily(x):
    log = []

    def note(v):
        log.append(v)
        return v

    c = itertools.chain(map(note, [1, 2]), map(note, [3]))
    first = next(c)
    acc = itertools.accumulate(map(note, [5, 6, 7]))
    second = next(acc)
    p = itertools.pairwise(map(note, [10, 11, 12]))
    third = next(p)
    f = itertools.chain.from_iterable(map(note, v) for v in ([20], [21]))
    fourth = next(f)
    z = itertools.zip_longest(map(note, [30, 31]), [1])
    fifth = next(z)
    return x + 1, log, first, second, third, fourth, fifth, list(c), log[:]


@taken
def operators(x):
    get = operator.itemgetter(1, 0)
    attr = operator.attrgetter("a", "double")
    call = operator.methodcaller("twice")
    o = Thing(2)
    a = [1, 2]
    operator.setitem(a, 0, 5)
    operator.iadd(a, [6])
    operator.delitem(a, 1)
    return x + 1, get([1, 2]), operator.itemgetter("k")({"k": x}), operator.itemgetter(slice(1))(a), attr(o), \
        operator.attrgetter("shape")(x), call(o), operator.attrgetter("__class__.__name__")(o), \
        operator.methodcaller("sum", dim=0)(x), a, operator.concat([1], [2]), operator.countOf([1, 1], 1), \
        operator.indexOf([1, 2], 2), operator.length_hint([1]), operator.is_(o, o), operator.contains(a, 5), \
        operator.truth([]), operator.not_([]), operator.xor(1, 3), operator.floordiv(7, 2), operator.matmul(
            x, x.T), operator.inv(3), \
        operator.invert(3), operator.abs(-1), operator.pow(2, 3), operator.eq(a, a), \
        operator.lt(1, 2), operator.getitem(a, 0), operator.add("a", "b"), operator.mod("%d", 3), operator.is_not(
            1, None), \
        operator.call(len, "ab"), list(map(operator.itemgetter(0), [(1,), (2,)])), \
        sorted([o, Thing(1)],
               key=operator.attrgetter("a"))[0].a, operator.imul([1], 2), operator.pos(-1), operator.ne(1, 2)


@taken
def heaps(x):
    h = []
    for v in (5, 1, 4, 2):
        heapq.heappush(h, v)
    heapq.heapify(g := [9, 3, 7])
    return x + 1, heapq.heappop(h), h, g, heapq.nlargest(2, g), heapq.nsmallest(2, g, key=lambda v: -v), \
        list(heapq.merge([1, 4], [2, 3])), heapq.heappushpop(h, 0), heapq.heapreplace(h, 8), h, \
        heapq.heappop([(1, "a"), (2, "b")])


@taken
def bisecting(x):
    a = [1, 3, 5]
    bisect.insort(a, 4)
    return x + 1, a, bisect.bisect(a, 3), bisect.bisect_left(a, 3), bisect.bisect_right([1, 2], 2), \
        bisect.bisect([(1, "a"), (3, "b")], 2, key=lambda p: p[0])


@taken
def partials(x):
    f = functools.partial(torch.add, alpha=2)
    g = functools.partial(lambda a, b, c=1: (a, b, c), 1, c=5)
    h = functools.partial(g, 2)
    k = functools.partial(int, base=2)
    return f(x, x), g(3), h(), g(2, c=9), h.func is g.func, h.args, h.keywords, k("101"), \
        list(map(functools.partial(operator.add, 1), [1, 2])), sorted([3, 1], key=functools.partial(operator.mul, -1))


@functools.lru_cache(maxsize=None)
def cached(n):
    return [n, n + 1]


@functools.cache
def cached_tensor_free(n):
    return n * 2


@broken(make=lambda: (cached_tensor_free.cache_clear(),))
def caches(x, _):
    a = cached(x.shape[0])
    return x * cached_tensor_free(3), a, cached(x.shape[0]) is a


def doubled(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        return fn(*args, **kwargs) * 2

    return inner


@doubled
def plus(a, b=1):
    """Adds."""
    return a + b


@taken
def wrapped(x):
    @doubled
    def minus(a):
        "Subtracts."
        return a - 1

    return plus(x), minus(x), plus.__name__, minus.__name__, minus.__doc__, plus.__wrapped__(1), minus.__wrapped__(3), \
        minus.__qualname__, plus.__doc__


@functools.singledispatch
def kind(v):
    return "object"


@kind.register
def _(v: int):
    return "int"


@kind.register(list)
def _list(v):
    return ["list", kind(v[0])]


class Dispatcher:
    @functools.singledispatchmethod
    def kind(self, v):
        return "object"

    @kind.register
    def _(self, v: str):
        return "str"

    @functools.cached_property
    def once(self):
        self.count = getattr(self, "count", 0) + 1
        return self.count


@taken
def dispatching(x):
    return x + 1, kind(1), kind("a"), kind([2]), kind(True), kind(x), Dispatcher().kind("a"), Dispatcher().kind(1)


@taken(make=lambda: (Dispatcher(),))
def cached_properties(x, d):
    e = Dispatcher()
    return x + 1, d.once, d.once, vars(d), e.once, e.once, e.count


@functools.total_ordering
class Version:
    def __init__(self, n):
        self.n = n

    def __eq__(self, o):
        return self.n == o.n

    def __lt__(self, o):
        return self.n < o.n


@taken(make=lambda: (Version(1), Version(2)))
def total_orders(x, a, b):
    return x + 1, a <= b, a > b, a >= b, a != b, max(a, b).n, sorted([b, a])[0].n, \
        sorted([3, 1, 2], key=functools.cmp_to_key(lambda p, q: q - p)), min([b, a]).n, Version(3) >= a


@broken(make=lambda: ([1, 2, 3],))
def iterators_across_a_break(x, a):
    it = iter(a)
    first = next(it)
    g = (v + 1 for v in a)
    torch._dynamo.graph_break()
    second = next(it)
    return x * second, first, list(it), a


@taken
def comprehensions(x):
    n = 3
    return x + 1, [i * n for i in range(n)
                   if i], {i: n for i in range(n)}, {i % 2 for i in range(n)}, list(i + n for i in range(n)), \
        [(i, j) for i in range(2) for j in range(i)], [[j for j in range(i)] for i in range(3)]


@taken
def hashes(x):
    return x + 1, hash(1) == hash(1.0), hash("a") == hash("a"), hash((1, 2)) == hash((1, 2)), hash(None) == hash(
        None), \
        hash(frozenset({1})) == hash(frozenset({1})), {hash(2.5): 1}, hash(int) == hash(int), repr(int), \
        repr(...), repr(NotImplemented), ascii("ü"), repr([1, "a", None, 2.5, (1,), {2: 3},
                                                           {4}]), str(torch.float32), repr(slice(1)), \
        str(ValueError("x")), repr(ValueError("x", 1)), str(KeyError("k")), repr(range(3))


test_program = taken.test()
