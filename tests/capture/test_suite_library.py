"""What CPython's own tests found about the standard library: single dispatch, abstract classes, texts, iter() with a
sentinel, search."""

import abc
import collections
import functools
import operator
import reprlib
import weakref

import pytest

import framesmith
from tests.capture.suite import kept, said, twice
from tests.programs import Programs

program = Programs(twice)


class Wrapper:
    def __repr__(self):
        return repr(self.value)


class Guarded:
    @reprlib.recursive_repr("again")
    def __repr__(self):
        return f"<{self.of!r}>"


class Counter:
    def __init__(self):
        self.i = 0

    def __call__(self):
        self.i += 1
        return self.i


TOLD: list[object] = []


def told(*args, **kwargs):
    TOLD.append((args, kwargs))
    if args == (7,):
        raise ValueError(TOLD.pop())
    return [args]


def refused(fn, *args):
    TOLD.append("before")
    try:
        fn(*args)
    except (TypeError, ValueError) as e:
        TOLD.append(str(e))


class Clearing:
    def __init__(self, of):
        self.of = of

    def __eq__(self, other):
        self.of.clear()
        return False


@program
def dispatch_that_is_registered_meanwhile():
    @functools.singledispatch
    def kind(x):
        return "object"

    out = [kind(1)]
    kind.register(int, lambda x: "int")
    out.append(kind(1))
    framesmith.graph_break()
    kind.register(bool, lambda x: "bool")
    return [*out, kind(True), kind(1), kind("")]


@program
def dispatch_of_class_methods():
    class Made:
        def __init__(self, arg):
            self.arg = arg

        @functools.singledispatchmethod
        @classmethod
        def of(cls, arg):
            return cls("base")

        @of.register(int)
        @classmethod
        def _(cls, arg):
            return cls("int")

    return said(lambda: Made.of(0).arg) + said(lambda: Made.of("").arg)


@program
def an_ambiguous_dispatch():
    @functools.singledispatch
    def kind(x):
        return "object"

    kind.register(collections.abc.Sized, lambda x: "sized")
    kind.register(collections.abc.Container, lambda x: "container")

    class Long:
        def __len__(self):
            return 0

    first = kind(Long())
    collections.abc.Container.register(Long)
    return first, said(lambda: kind(Long()))[0][0]


@program
def texts_within_texts():
    w, g = Wrapper(), Guarded()
    w.value = s = {w}
    g.of = [g]
    other = Wrapper()
    other.value = frozenset([other])
    framesmith.graph_break()
    return repr(s), repr(w), repr(g), repr(other.value), repr([other]), f"{[g]}"


@program
def until_a_sentinel():
    c = Counter()
    it = iter(c, 5)
    first = [next(it)]
    framesmith.graph_break()
    first += list(it)
    framesmith.graph_break()
    return first, c.i, list(it), c.i, type(it).__name__


@program
def until_the_call_has_come_to_the_end():
    def calls():
        if calls.inside:
            return 2
        calls.inside = True
        list(calls.it)
        return 1

    calls.inside = False
    calls.it = iter(calls, 2)
    return said(lambda: next(calls.it))


@program
def equal_strings_that_are_two():
    a = b = "abcdef"
    c = a[:3] + b[3:]
    framesmith.graph_break()
    return operator.is_(a, b), operator.is_(a, c), a is c, c is c, a == c


@program
def searches_that_clear():
    out = []
    for made in (collections.deque, list):
        for ask in ("index", "count", "remove", "__contains__"):
            d = made([0, 1, 2])
            d[1] = Clearing(d)
            out += said(lambda d=d, ask=ask: getattr(d, ask)(2))
            out.append(len(d))
    return out


@program
def getters():
    return said(lambda: operator.attrgetter("real")(3), lambda: operator.itemgetter(1)("ab"),
                lambda: operator.methodcaller("upper")("a"))


test_library = program.test()


def test_registrations_are_guarded():
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self):
            return 0

    class Square:
        pass

    def is_shape(x):
        return isinstance(x, Shape), issubclass(type(x), (int, Shape))

    fast = kept(is_shape)
    assert fast(Square()) == (False, False)
    Shape.register(Square)
    assert fast(Square()) == (True, True)


def test_capture_leaves_the_cache_of_dispatch_alone():
    @functools.singledispatch
    def kind(x):
        return "object"

    def ask(x):
        return kind(x)

    cells = dict(zip(kind.dispatch.__code__.co_freevars, kind.dispatch.__closure__, strict=True))
    assert kept(ask)(1) == "object"
    assert isinstance(cells["dispatch_cache"].cell_contents, weakref.WeakKeyDictionary)
    assert not len(cells["dispatch_cache"].cell_contents)


Point = collections.namedtuple("Point", "x y")


class Reads(tuple):
    first = Point.x
    second = Point.y


class Open(Point):
    pass


def fields(p):
    return p.first, p.second, p.first == 1, p.second == 2, p.count(1)


def opened(p):
    p.w = 5
    framesmith.graph_break()
    return p.__dict__ == {"w": 5}, p.w, p.__dict__, p.x == 3


def ordered(d):
    d.x = 10
    framesmith.graph_break()
    return isinstance(d.__dict__, dict), d.__dict__, d.x, hasattr(d, "y")


def calls(method):
    return method(3), method.__name__


@pytest.mark.parametrize("fn, make", [
    (fields, lambda: Reads([1, 2])), (opened, lambda: Open(3, 4)), (ordered, lambda: collections.OrderedDict(a=1)),
    (calls, lambda: [1, 2, 3].index), (calls, lambda: {3: 4}.get), (calls, lambda: (3.0).__add__),
    (calls, lambda: bytearray(3).append),
])
def test_attributes_of_builtin_values(fn, make):
    fast = kept(fn)
    for _ in range(3):
        assert fast(make()) == fn(make())


def test_the_first_call_of_a_cached_function_comes_in_its_place():
    def run(fn):
        TOLD.append("before")
        out = fn(1), fn(1)
        TOLD.append("between")
        more = fn(1, k=2), fn(1, k=2), fn("a")
        refused(fn, 7)
        refused(fn, [])
        return out[0] is out[1], more[0] is more[1]

    for make in (functools.cache, functools.lru_cache(1), functools.lru_cache(4, typed=True)):
        fast = kept(run)
        for fn in (make(told), make(told)):
            in_order(fast, fn, run, make(told))


def in_order(fast, mine, run, plain):
    """Three calls give what plain ones give, and tell `TOLD` the same in the same order."""
    for _ in range(3):
        TOLD.clear()
        want, order = run(plain), TOLD.copy()
        TOLD.clear()
        assert fast(mine) == want
        assert order == TOLD


def test_a_plain_result_of_a_cached_function_is_what_its_cache_holds():
    setting = [2]

    def get(k=0):
        TOLD.append("asked")
        return setting[k]

    def run(fn):
        TOLD.append("before")
        return fn() * 10

    fast, mine, plain = kept(run), functools.lru_cache(1)(get), functools.lru_cache(1)(get)
    for n, change in ((2, None), (3, None), (3, "clear"), (10**20, "clear"), (5, "other key"), (5, None)):
        setting[0] = n
        for fn in (mine, plain):
            if change == "clear":
                fn.cache_clear()
            elif change:
                fn(0)
        in_order(fast, mine, run, plain)


class Asked:
    def __init__(self, n):
        self.n = n

    @functools.lru_cache(None)  # noqa: B019
    def about(self, x):
        TOLD.append(x)
        return [self.n, x]


def test_a_cached_method_runs_once():
    def run(a):
        b = Asked(2)
        first = a.about(1)
        a.n += 1
        return first is a.about(1), b.about(1) is b.about(1), first

    in_order(kept(run), Asked(1), run, Asked(1))
