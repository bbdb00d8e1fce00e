"""Class statements inside functions: closures, metaclasses, decorators, super().  PYTEST_DONT_REWRITE"""
# ruff: noqa
from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import typing

from tests.capture.lang import check
from tests.programs import Programs

program = Programs(check)


T = typing.TypeVar("T")


class Base:
    registry: list = []

    def __init__(self, v):
        self.v = v

    def scaled(self, k):
        return self.v * k


class Meta(type):
    def __new__(mcls, name, bases, space, **kw):
        cls = super().__new__(mcls, name, bases, space)
        cls.tag = kw.get("tag", "none") + name
        return cls

    def __init__(cls, name, bases, space, **kw):
        super().__init__(name, bases, space)
        cls.made = sorted(k for k in space if not k.startswith("__"))

    def __len__(cls):
        return 42

    @property
    def upper(cls):
        return cls.__name__.upper()


class Hooked:
    children: typing.Any = ()

    def __init_subclass__(cls, /, label="plain", **kw):
        super().__init_subclass__(**kw)
        cls.label = label


class Named:
    def __set_name__(self, owner, name):
        self.name = name
        self.owner = owner.__name__

    def __get__(self, obj, owner=None):
        return self if obj is None else (self.name, self.owner, obj.v)


@program
def simple(x):
    class Point:
        """A point."""
        dims = 2
        shift = x + 1

        def __init__(self, a, b=2):
            self.a = a
            self.b = b

        def total(self):
            return self.a + self.b + self.dims

        @property
        def double(self):
            return self.a * 2

        @staticmethod
        def plain(v):
            return v + 1

        @classmethod
        def make(cls, v):
            return cls(v, b=cls.dims)

        def __add__(self, other):
            return Point(self.a + other.a, self.b)

        def __repr__(self):
            return f"Point({self.b})"

    p = Point(x)
    q = Point.make(x * 2)
    r = p + q
    return (p.total(), p.double, Point.plain(x), q.b, r.a, repr(r), Point.__name__, Point.__qualname__, Point.__doc__,
            isinstance(p, Point),
            type(p) is Point, Point.shift, p.shift, hasattr(p, "nope"), vars(p), issubclass(Point, object),
            Point.__module__)


@program
def inherits(x):
    class Child(Base):
        def __init__(self, v, extra):
            super().__init__(v)
            self.extra = extra

        def scaled(self, k):
            return super().scaled(k) + super(Child, self).scaled(1)

        def cls(self):
            return __class__

    class Grandchild(Child):
        def scaled(self, k):
            return super().scaled(k) - 1

    c = Grandchild(x, 3)
    return c.scaled(2), c.extra, c.cls() is Child, [k.__name__ for k in Grandchild.__mro__], isinstance(c, Base)


class Root:
    pass


class Branch(Root):
    pass


@program
def subclasses(x):
    return [k.__name__ for k in type.__subclasses__(Root)], [k.__name__ for k in Root.__subclasses__()], x + 1


@program
def closures(x):
    n = 3
    log = []

    class Counter:
        start = n
        squares = [i * i for i in range(n)]
        log.append("body")

        def bump(self):
            nonlocal n
            n += 1
            log.append(n)
            return n + self.start

        if n > 2:
            def big(self):
                return "big"
        else:
            def small(self):
                return "small"

        for k in range(2):
            pass
        del k

    c = Counter()
    return c.bump(), c.bump(), n, log, c.big(), hasattr(c, "small"), Counter.squares, hasattr(Counter, "k"), x


@program
def metaclasses(x):
    class A(metaclass=Meta, tag="t"):
        p = 1

        def q(self):
            return self.tag

    class B(A):
        pass

    return A.tag, B.tag, A.made, len(A), A.upper, A().q(), type(A) is Meta, type(B).__name__, x


@program
def subclass_hook(x):
    class A(Hooked, label="a"):
        pass

    class B(A):
        def f(self):
            return self.label + "f"

    return A.label, B.label, B().f(), x


@program
def set_name(x):
    class A:
        first = Named()
        second = Named()

        def __init__(self, v):
            self.v = v

    a = A(x)
    return a.first, a.second, A.first.name, A.first.owner


@program
def decorated(x):
    def registered(names):
        def register(cls):
            names.append(cls.__name__)
            cls.extra = len(names)
            return cls
        return register

    names = []

    @registered(names)
    @registered(names)
    class A:
        pass

    @functools.total_ordering
    class Ordered:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return self.n == other.n

        def __lt__(self, other):
            return self.n < other.n

    return names, A.extra, Ordered(1) <= Ordered(2), Ordered(3) > Ordered(2), Ordered(1) >= Ordered(2), x


@program
def dataclass_inside(x):
    @dataclasses.dataclass
    class Point:
        a: object
        b: int = 2
        c: list = dataclasses.field(default_factory=list)

        def total(self):
            return self.a + self.b

    @dataclasses.dataclass(frozen=True)
    class Frozen:
        k: int = 1

    p = Point(x, b=4)
    p.c.append(1)
    try:
        Frozen().k = 3
    except dataclasses.FrozenInstanceError as e:
        frozen = str(e)
    return p.total(), p.c, Point(x).c, Frozen(3) == Frozen(3), repr(Frozen(2)), frozen, dataclasses.replace(p, b=1).b


@program
def abstract(x):
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self):
            ...

        def double(self):
            return self.area() * 2

    class Square(Shape):
        def __init__(self, s):
            self.s = s

        def area(self):
            return self.s * self.s

    try:
        Shape()
    except TypeError as e:
        error = str(e)
    return Square(x).double(), error


@program
def escapes(x):
    class Local(Base):
        k = x + 1

        def f(self):
            return self.k + self.v

    def make(v):
        return Local(v)

    a = Local(x)
    a.peer = Local(2)
    return Local, a, make, [Local, Local]


@program
def made_by_type(x):
    def f(self):
        return self.v + 1

    T = type("T", (Base,), {"f": f, "k": 3})
    return T(x).f(), T.k, T.__name__, T.__mro__[1] is Base


@program
def generic(x):
    class Box(typing.Generic[T]):
        def __init__(self, v: T) -> None:
            self.v = v

        def get(self) -> T:
            return self.v

    class IntBox(Box[int]):
        pass

    return Box(x).get(), IntBox(2).get()


MRO = vars(type)["__mro__"].__get__


@program
def mro_by_its_descriptor(x):
    class A:
        pass

    return MRO(bool), MRO(type(x)), MRO(A) == (A, object)


@program
def class_attributes(x):
    class A:
        n = 0
        items = []

        @classmethod
        def count(cls):
            cls.n += 1
            return cls.n

    class B(A):
        pass

    A.count()
    B.count()
    B.count()
    A.extra = x
    B.items.append(3)
    first = B.n, A.n, B().extra, A.items
    del A.extra
    try:
        A.extra
    except AttributeError as e:
        error = str(e)
    return first, error, hasattr(B, "extra"), getattr(A, "zzz", 1)


@program
def exceptions_inside(x):
    class Stop(Exception):
        def __init__(self, value):
            super().__init__("stop", value)
            self.value = value

    class Sub(Stop, ValueError):
        pass

    try:
        raise Sub(x)
    except Stop as e:
        return e.value, e.args[0], isinstance(e, ValueError), type(e).__name__


@program
def annotations(x):
    class A:
        a: int
        b: str = "t"

        def f(self, v: int = 2, *, k: str = "s") -> float:
            return v

    return A.__annotations__, A.f.__annotations__, A().f(), x


@program
def slots(x):
    class S:
        __slots__ = ("a", "b")

        def __init__(self, a):
            self.a = a

    s = S(x)
    out = [s.a]
    for f in (lambda: s.b, lambda: setattr(s, "c", 1)):
        try:
            f()
        except AttributeError as e:
            out.append(str(e))
    s.b = 4
    del s.a
    return out, s.b, hasattr(s, "a"), hasattr(s, "__dict__")


test_programs = program.test()
