"""The object model: descriptors, attribute hooks, slots, metaclasses, operators, protocols, copies.
PYTEST_DONT_REWRITE"""
# ruff: noqa
from __future__ import annotations

import abc
import copy
import functools
import types
import typing

import torch

from tests.capture.lang import check
from tests.programs import Programs

program = Programs(check)


class Data:
    def __init__(self, default):
        self.default = default

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        return getattr(obj, self.name, self.default)

    def __set__(self, obj, value):
        if value == "bad":
            raise ValueError("bad value")
        setattr(obj, self.name, value)

    def __delete__(self, obj):
        delattr(obj, self.name)


class NonData:
    def __get__(self, obj, owner=None):
        return ("nondata", obj is None, owner.__name__)


class Described:
    d = Data(7)
    n = NonData()

    def __init__(self, v):
        self.v = v
        self._t = 0

    @property
    def t(self):
        return self._t + 1

    @t.setter
    def t(self, value):
        self._t = value * 2

    @t.deleter
    def t(self):
        del self._t

    @property
    def readonly(self):
        return 3


@program
def none_beside_others(x):
    none = None
    return x + 1, [none == other for other in ((), [], {}, 0, "", x.shape, Data, None)], () != none, none in [(), None]


@program(make=lambda: Described(2))
def descriptors(x, outer):
    out = []
    for o in (Described(x), outer):
        out += [o.d, o.n, o.t, o.readonly]
        o.d = x + 1
        o.t = 5
        out += [o.d, o.t, o._t]
        del o.d
        out.append(o.d)
        del o.t
        o.n = "own"
        out.append(o.n)
        for f in (lambda: setattr(o, "readonly", 1), lambda: delattr(o, "readonly"), lambda: o.t,
                  lambda: setattr(o, "d", "bad"),
                  lambda: delattr(o, "zz"), lambda: delattr(o, "d")):
            try:
                f()
            except Exception as e:
                out.append((type(e), str(e)))
        out.append(sorted(vars(o)))
    out.append(Described.d.name)
    out.append(Described.n)
    out.append(type(Described.t).__name__)
    return out


class Hooks:
    def __init__(self, log):
        object.__setattr__(self, "log", log)
        object.__setattr__(self, "store", {})

    def __getattr__(self, name):
        self.log.append(("get", name))
        try:
            return self.store[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self.log.append(("set", name))
        self.store[name] = value

    def __delattr__(self, name):
        self.log.append(("del", name))
        del self.store[name]


class Everything:
    def __init__(self, v):
        self.v = v
        self.hits = 0

    def __getattribute__(self, name):
        if name.startswith("magic"):
            return name.upper()
        if name not in ("hits", "__dict__", "__class__"):
            object.__setattr__(self, "hits", object.__getattribute__(self, "hits") + 1)
        return super().__getattribute__(name)

    def __getattr__(self, name):
        return "fallback " + name


@program(make=lambda: (Hooks([]), Everything(3)))
def attribute_hooks(x, given):
    h, e = given
    h.a = x
    h.b = 2
    first = h.a + h.b
    del h.b
    try:
        h.b
    except AttributeError as error:
        missing = str(error)
    local = Everything(x)
    return first, missing, hasattr(h, "zz"), getattr(
        h, "zz", 4), e.magic_word, e.v, e.nothing, e.hits, local.v, local.other, local.hits


class Slotted:
    __slots__ = ("a", "b", "__weakref__")
    kind = "slotted"

    def __init__(self, a):
        self.a = a


class SlottedChild(Slotted):
    __slots__ = ("c",)


class SlottedWithDict(Slotted):
    pass


@program(make=lambda: (Slotted(1), SlottedChild(2), SlottedWithDict(3)))
def slots(x, given):
    out = []
    for o in (*given, Slotted(x), SlottedChild(x), SlottedWithDict(x)):
        out.append((o.a, o.kind, hasattr(o, "b"), hasattr(o, "__dict__")))
        o.b = x + 1
        o.a = [o.a]
        out.append(o.a)
        del o.b
        for f in (lambda: o.b, lambda: setattr(o, "zz", 1), lambda: setattr(o, "kind", 1), lambda: delattr(o, "b")):
            try:
                f()
            except AttributeError as e:
                out.append(str(e))
            else:
                out.append(vars(o))
        o.b = 5
    return out


class Registry(type):
    instances: dict = {}

    def __call__(cls, *args, **kw):
        made = super().__call__(*args, **kw)
        made.by = cls.__name__
        return made

    def __instancecheck__(cls, obj):
        return getattr(obj, "duck", False) or type.__instancecheck__(cls, obj)

    def __subclasscheck__(cls, other):
        return other is int or type.__subclasscheck__(cls, other)

    def __getattr__(cls, name):
        if name.startswith("auto_"):
            return (cls.__name__, name)
        raise AttributeError(name)

    def __iter__(cls):
        return iter([cls.__name__, 1])

    def __contains__(cls, v):
        return v == 3

    def __getitem__(cls, k):
        return (cls.__name__, k)

    def __add__(cls, other):
        return "added"

    def __eq__(cls, other):
        return cls is other

    def __hash__(cls):
        return 5

    def __bool__(cls):
        return False

    def __repr__(cls):
        return f"<registry {cls.__name__}>"

    @property
    def shape(cls):
        return (cls.__name__, "shape")

    def method(cls, k):
        return (cls.__name__, k)

    kind = "meta attribute"


class Registered(metaclass=Registry):
    def __init__(self, v):
        self.v = v


class Duck:
    duck = True


class Single(type):
    def __call__(cls, *args):
        if cls.__dict__.get("only") is None:
            cls.only = super().__call__(*args)
        return cls.only


class One(metaclass=Single):
    only = None

    def __init__(self, v):
        self.v = v


@program
def metaclasses(x):
    r = Registered(x)
    return (r.v, r.by, isinstance(r, Registered), isinstance(Duck(), Registered), isinstance(3, Registered),
            issubclass(int, Registered),
            issubclass(str, Registered), Registered.auto_thing, list(Registered), 3 in Registered, 4 in Registered,
            Registered["k"],
            Registered + 1, bool(Registered), not Registered, repr(Registered), f"{Registered}", Registered.shape,
            Registered.method(2),
            Registered.kind, hasattr(Registered, "zz"), hasattr(r, "shape"), Registered == Registered,
            {Registered: 1}[Registered])


class Num:
    def __init__(self, v):
        self.v = v

    def __add__(self, o):
        if isinstance(o, (int, Num)):
            return Num(self.v + getattr(o, "v", o))
        return NotImplemented

    def __radd__(self, o):
        return ("radd", o, self.v)

    def __iadd__(self, o):
        self.v = self.v + o
        return self

    def __sub__(self, o):
        return NotImplemented

    def __rsub__(self, o):
        return ("rsub", type(o).__name__)

    def __mul__(self, o):
        return ("mul", o)

    def __eq__(self, o):
        if not isinstance(o, Num):
            return NotImplemented
        return self.v == o.v

    def __hash__(self):
        return hash(self.v)

    def __lt__(self, o):
        return self.v < o.v if isinstance(o, Num) else NotImplemented

    def __le__(self, o):
        return ("le",)

    def __neg__(self):
        return ("neg", self.v)

    def __pos__(self):
        return ("pos", self.v)

    def __invert__(self):
        return ("invert", self.v)

    def __abs__(self):
        return ("abs", self.v)

    def __bool__(self):
        return self.v != 0

    def __len__(self):
        return 99

    def __index__(self):
        return self.v

    def __int__(self):
        return self.v

    def __float__(self):
        return float(self.v)

    def __round__(self, n=None):
        return ("round", n)

    def __matmul__(self, o):
        return ("matmul", o)

    def __pow__(self, o, mod=None):
        return ("pow", o, mod)

    def __floordiv__(self, o):
        return ("floordiv", o)

    def __divmod__(self, o):
        return ("divmod", o)

    def __and__(self, o):
        return ("and", o)

    def __ror__(self, o):
        return ("ror", o)

    def __lshift__(self, o):
        return ("lshift", o)


class SubNum(Num):
    def __radd__(self, o):
        return ("subradd", o.v)

    def __rsub__(self, o):
        return ("subrsub",)


class OnlyLen:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


class OnlyIn:
    def __iter__(self):
        return iter([1, 2])


class Indexed:
    def __getitem__(self, i):
        if i >= 3:
            raise IndexError
        return i * 10


@program(make=lambda: Num(5))
def operators(x, outer):
    a, b, s = Num(1), Num(2), SubNum(3)
    before = outer
    outer += 2
    out = [(a + b).v, (a + 1).v, 1 + a, "s" + a, a + s, a - b if False else None, a - s, 4 - a, a * 3, outer.v,
           outer is before, a == b, a == Num(1), a != b,
           a == 1, a != 1, a < b, b > a, a <= 3, -a, +a, ~a, abs(a), bool(Num(0)), not a, len(a), [10, 20, 30][a],
           "abc"[a:b], int(a),
           float(a), round(a), round(a, 2), a @ 1, a ** 2, pow(a, 2, 5), a // 2, divmod(a, 3), a & 1, 2 | a, a << 1,
           {a: "k"}[Num(1)],
           a in [Num(1)], [Num(3), Num(1)].index(a), hash(a) == hash(1), range(b), sorted([s, b, a])[0] is a,
           min(s, a) is a,
           bool(OnlyLen(0)), bool(OnlyLen(2)), 1 in OnlyIn(), 5 in OnlyIn(), list(Indexed()), 20 in Indexed(),
           [*Indexed()], x * int(b)]
    for f in (lambda: a - b, lambda: a - 1 + "x", lambda: a % 2, lambda: a < 1, lambda: a + 1.5, lambda: Indexed() + 1,
              lambda: len(OnlyLen(-1)),
              lambda: iter(OnlyLen(1)), lambda: a[0], lambda: a(), lambda: OnlyLen(1) < OnlyLen(2), lambda: -Indexed(),
              lambda: Indexed()["a"]):
        try:
            out.append(f())
        except Exception as e:
            out.append((type(e), str(e)))
    return out


class Text:
    def __init__(self, v):
        self.v = v

    def __str__(self):
        return f"str {self.v}"

    def __repr__(self):
        return f"Text({self.v!r})"

    def __format__(self, spec):
        return f"format {spec!r}"


class OnlyRepr:
    def __repr__(self):
        return "only"


@program
def texts(x):
    t, r = Text("a"), OnlyRepr()
    n, w = 3.14159, 10
    return (f"{t}", f"{t!s}", f"{t!r}", f"{t!a}", f"{t:>5}", str(t), repr(t), format(t, "q"), "%s %r" % (t, t),
            "{} {!r} {:x}".format(t, t, t),
            f"{r}", str(r), [t, r], f"{[t, r]}", f"{n:{w}.{2}f}|{n!r:>{w}}|{w=}|{n=:.1f}|{t=}|{t=!s}",
            f"{'nested ' + f'{w}'}", f"{{}}{w:>{w}}",
            f"{x.shape[0]:03d}", f"{w:,}", f"{True}", f"{None}", f"{r!s:>6}", str({"a": t}), str((t,)), f"{x.dtype}")


class Container:
    def __init__(self, items):
        self.items = items

    def __getitem__(self, k):
        if isinstance(k, slice):
            return ("slice", k.start, k.stop, k.step)
        return self.items[k]

    def __setitem__(self, k, v):
        self.items[k] = v

    def __delitem__(self, k):
        del self.items[k]

    def __contains__(self, v):
        return v in self.items

    def __iter__(self):
        return iter(self.items)

    def __reversed__(self):
        return iter(["reversed"])

    def __len__(self):
        return len(self.items)

    def __missing__(self, k):
        return k

    def __call__(self, *args, **kw):
        return args, kw


@program(make=lambda: Container({"a": 1}))
def containers(x, c):
    c["t"] = x
    c["n"] = 4
    del c["a"]
    k = Container([1, 2, 3])
    k[1] = x
    return c["t"] * 2, "n" in c, "a" in c, list(c), len(c), k[1:2], k[::2], list(reversed(k)), c(1, 2, k=3), {
        **{"z": 1}}, [*k], k[-1], x in [1]  if False else 0


class Base:
    def __init__(self, *args, **kw):
        self.trace = ["base"]

    def who(self):
        return ["base"]

    @classmethod
    def create(cls, v):
        made = cls()
        made.v = v
        return made

    @staticmethod
    def fixed(v):
        return v + 1


class Left(Base):
    def __init__(self, **kw):
        super().__init__(**kw)
        self.trace.append("left")

    def who(self):
        return ["left", *super().who()]

    @classmethod
    def create(cls, v):
        made = super().create(v)
        made.left = True
        return made


class Right(Base):
    def __init__(self, **kw):
        super().__init__(**kw)
        self.trace.append("right")

    def who(self):
        return ["right", *super().who()]

    @property
    def prop(self):
        return "right prop"


class Diamond(Left, Right):
    def who(self):
        return ["diamond", *super().who(), *super(Left, self).who(), *Base.who(self)]

    @property
    def prop(self):
        return "diamond " + super().prop


class Mixin:
    def doubled(self):
        return self.v * 2


class Mixed(Mixin, Diamond):
    pass


class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self):
        ...

    @property
    @abc.abstractmethod
    def size(self):
        ...


class Concrete(Abstract):
    def run(self):
        return "ran"

    size = 3


@typing.runtime_checkable
class Runs(typing.Protocol):
    def run(self): ...


@Abstract.register
class Virtual:
    pass


@program
def inheritance(x):
    d = Diamond()
    m = Mixed.create(x)
    out = [d.trace, d.who(), m.left, m.doubled(), Mixed.fixed(1), m.fixed(2), d.prop, isinstance(m, Right),
           Mixed.__mro__[3].__name__,
           Concrete().run(), isinstance(Concrete(), Runs), isinstance(3, Runs), isinstance(Virtual(), Abstract),
           issubclass(Virtual, Abstract)]
    try:
        Abstract()
    except TypeError as e:
        out.append(str(e))
    bound = d.who
    unbound = Diamond.who
    out += [bound(), unbound(d), bound.__self__ is d, bound.__func__ is unbound, bound.__name__, d.who == d.who,
            d.who is d.who,
            Mixed.create.__self__ is Mixed, type(bound).__name__]
    return out


class Newed:
    made = 0

    def __new__(cls, *args, **kw):
        self = super().__new__(cls)
        self.args = args
        return self

    def __init__(self, v, k=2):
        self.v = v + k


class Other:
    def __new__(cls, v):
        return [v]

    def __init__(self, v):
        raise AssertionError


class IntSub(int):
    def __new__(cls, v):
        self = super().__new__(cls, v * 2)
        self.note = "n"
        return self

    def plus(self):
        return self + 1


class StrSub(str):
    def shout(self):
        return self.upper() + "!"


class TupleSub(tuple):
    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))

    @property
    def first(self):
        return self[0]


class ListSub(list):
    def total(self):
        return sum(self)

    def append(self, v):
        super().append(v * 2)


class DictSub(dict):
    def __missing__(self, k):
        return ("missing", k)

    def __setitem__(self, k, v):
        super().__setitem__(k, (v,))


@program(make=lambda: (ListSub([1, 2]), DictSub(a=1), IntSub(4), StrSub("q"), TupleSub(1, 2)))
def builtin_subclasses(x, given):
    l, d, i, s, t = given
    out = []
    for l, d, i, s, t in (given, (ListSub([1, 2]), DictSub(a=1), IntSub(4), StrSub("q"), TupleSub(1, 2))):
        l.append(3)
        d["k"] = x
        l.tag = "tag"
        out += [l.total(), len(l), l, d["k"], d["zz"], "zz" in d, i + 1, i.plus(), i.note, s.shout(), s + "r", t.first,
                t[1], t + (3,),
                isinstance(i, int), type(i).__name__, type(i + 1).__name__, [*t], l == [1, 2, 6], s == "q", i == 8,
                {**d}.keys()]
    n = Newed(1, k=5)
    return out, n.v, n.args, Other(2)


class Copied:
    def __init__(self, v, child=None):
        self.v = v
        self.child = child

    def __copy__(self):
        return Copied(("copy", self.v), self.child)

    def __deepcopy__(self, memo):
        return Copied(("deep", self.v), copy.deepcopy(self.child, memo))


class Plain:
    def __init__(self, v):
        self.v = v


class Reduced:
    def __init__(self, v):
        self.v = v

    def __reduce__(self):
        return Reduced, (("reduced", self.v),)


@program
def copies(x):
    p = Plain([1, [2]])
    q, r = copy.copy(p), copy.deepcopy(p)
    p.v[1].append(3)
    shared = [1]
    d = copy.deepcopy({"a": shared, "b": shared})
    c = Copied(1, Copied(2))
    loop = Plain(None)
    loop.v = loop
    deep = copy.deepcopy(loop)
    return (q.v, r.v, q.v is p.v, copy.copy(c).v, copy.deepcopy(c).child.v, d["a"] is d["b"], deep.v is deep,
            deep is loop, x + 1,
            copy.copy([1, x])[1], copy.copy({1: 2}))


@program(make=lambda: Plain(1))
def identity(x, p):
    a, b = Plain(x), Plain(x)
    l = [a, a, b]
    a.me = a
    a.peer = b
    b.peer = a
    p.ring = a
    p.again = [p, a]
    return l, l[0] is l[1], l[0] is l[2], a.me is a, a in l, l.index(b), p, p.again[
        0] is p, x is x, None is None, l is l[:], () is ()


class Configured:
    __class_getitem__ = classmethod(lambda cls, k: (cls.__name__, k))


@program
def class_getitem(x):
    return Configured[3], list[int] == list[int], typing.Optional[int] == typing.Union[int, None], dict[
        str, int].__args__, x


def counted(x):
    counted.calls += 1
    counted.last = x * 2
    return counted.calls


counted.calls = 0


def decorate(times):
    def wrap(fn):
        @functools.wraps(fn)
        def inner(*args, **kw):
            inner.hits = getattr(inner, "hits", 0) + 1
            out = fn(*args, **kw)
            for _ in range(times - 1):
                out = fn(out, **kw)
            return out
        return inner
    return wrap


class Deco:
    def __init__(self, fn):
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.n = 0

    def __call__(self, *args):
        self.n += 1
        return self.fn(*args)

    def __get__(self, obj, owner=None):
        return self if obj is None else types.MethodType(self, obj)


class Decorated:
    @Deco
    def method(self, v):
        """Doc."""
        return v + 1


@program
def function_attributes(x):
    @decorate(3)
    @decorate(2)
    def add(v, k=1):
        """Adds."""
        return v + k

    @Deco
    def plain(v):
        return v * 2

    def f():
        pass

    f.a = x
    f.b = [f]
    out = [add(x), add(1, k=2), add.hits, add.__name__, add.__doc__, add.__wrapped__.hits, plain(x), plain.n,
           plain.__name__, f.a, f.b[0] is f,
           hasattr(f, "zz"), f.__name__, f.__qualname__, f.__module__, add.__defaults__, Decorated().method(2),
           Decorated.method.n >= 1]
    f.__name__ = "renamed"
    out.append(f.__name__)
    return out, f


@program
def modules_as_values(x):
    m = torch if x.dim() else types
    f = getattr(m, "relu")
    mods = {"t": torch, "f": functools}
    return f(x), m.__name__, mods["t"].sigmoid(x), mods["f"] is functools, isinstance(
        m, types.ModuleType), torch.nn.functional.relu is not None


class Counter:
    total = 0
    log: list = []

    def __init__(self):
        type(self).total += 1
        self.log.append(self.total)

    @classmethod
    def reset(cls):
        cls.total = 0
        del cls.log[:]


@program
def class_state(x):
    Counter.reset()
    a, b = Counter(), Counter()
    Counter.extra = x
    out = Counter.total, a.total, list(b.log), a.extra + 1
    del Counter.extra
    Counter.reset()
    return out, hasattr(Counter, "extra"), Counter.total


@program(make=lambda: (Plain([1]), {"k": [2]}, [3], Plain(None)))
def effects_in_order(x, given):
    p, d, l, q = given
    p.v.append(x)
    d["k"] = p.v
    d["new"] = Plain(p)
    l[0] = d
    l.extend([p, q])
    q.v = l
    q.other = d["new"]
    q.other.v.late = x + 1
    del d["k"]
    p.v = p.v[:1]
    return p.late, len(l), q.v is l


test_programs = program.test()
