"""Dataclasses, enums, SimpleNamespace, typing's objects, weak references, copies."""

from __future__ import annotations

import abc
import collections
import copy
import dataclasses
import enum
import types
import typing
import weakref
from functools import partial

import torch

import framesmith
from tests.capture.values.harness import X, agree
from tests.programs import Programs

taken = Programs(agree)
broken = partial(taken, whole=False)


@dataclasses.dataclass
class Box:
    """A dataclass with defaults."""

    a: int
    b: list = dataclasses.field(default_factory=list)
    c: float = 2.5
    total: float = dataclasses.field(init=False, default=0.0, compare=False)
    hidden: dataclasses.InitVar[int] = 1
    kind: typing.ClassVar[str] = "box"

    def __post_init__(self, hidden):
        self.total = self.a + hidden


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    """Compared and hashed."""

    a: int
    b: str = "x"


@dataclasses.dataclass(slots=True)
class Slotted:
    """No instance dict."""

    a: int
    b: typing.Any = None


@dataclasses.dataclass(kw_only=True)
class Named(Box):
    """Inherits."""

    d: dict = dataclasses.field(default_factory=dict)


@taken(make=lambda: (Box(1), Frozen(1)), others=[lambda: (Box(2), Frozen(1)), lambda: (Box(1, [1]), Frozen(1, "y"))])
def dataclass_arguments(x, box, fr):
    box.b.append(x)
    box.c += 1
    n = Box(box.a, hidden=5)
    return x * box.a, box, n, n == Box(1), dataclasses.replace(n, a=9), dataclasses.asdict(
        Frozen(3)), dataclasses.astuple(fr), \
        [f.name for f in dataclasses.fields(box)], dataclasses.is_dataclass(box), \
        Frozen(1) == fr, Frozen(1) < Frozen(2), sorted([Frozen(2), fr]), hash(fr) == hash(Frozen(fr.a, fr.b)), \
        {Frozen(1): "a"}.get(fr), len({fr, Frozen(1)}), repr(fr), box.kind, Box.kind, \
        dataclasses.is_dataclass(Box), Named(a=1, d={"k": x}), fr in [Frozen(1)], repr(n), copy.copy(fr), fr != Frozen(
            5)


@taken(make=lambda: (Slotted(1, [2]),))
def slots(x, s):
    s.a += 1
    s.b.append(x)
    t = Slotted(s.a)
    t.b = s
    return x + 1, s, t, t == Slotted(2, s), dataclasses.replace(t, a=0), dataclasses.asdict(
        Slotted(1, {"k": [1]})), hasattr(t, "__dict__")


@taken
def frozen_errors(x):
    f = Frozen(1)
    out = []
    for make in (lambda: setattr(f, "a", 2), lambda: Frozen(), lambda: Frozen(1, 2, 3), lambda: delattr(f, "a"),
                 lambda: f < 1,
        lambda: Slotted(1).z, lambda: dataclasses.fields(3), lambda: Color(9), lambda: Color["Z"],
                 lambda: Color.Z, lambda: setattr(Color.RED, "value", 1)):
        try:
            out.append(make())
        except Exception as e:
            out.append((type(e), str(e)))
    return x + 1, out


class Color(enum.Enum):
    """Plain members."""

    RED = 1
    GREEN = "g"
    BLUE = RED

    @property
    def low(self):
        return self.name.lower()

    @classmethod
    def default(cls):
        return cls.GREEN

    def mixed(self, other):
        return (self, other)


class Level(enum.IntEnum):
    """Members that are ints."""

    LOW = enum.auto()
    HIGH = enum.auto()


class Perm(enum.Flag):
    """Bits."""

    R = enum.auto()
    W = enum.auto()
    RW = R | W


class Mode(str, enum.Enum):
    """Members that are strings."""

    A = "a"
    B = "b"


class Tone(enum.StrEnum):
    """Members that are strings."""

    LOUD = enum.auto()


@taken(make=lambda: (Color.RED, Level.HIGH, Perm.R, Mode.A),
    others=[lambda: (Color.GREEN, Level.HIGH, Perm.RW, Mode.A), lambda: (Color.RED, Level.LOW, Perm.R, Mode.B)])
def enums(x, c, n, p, m):
    if c is Color.RED:
        x = x + 1
    return x * n, c, c.name, c.value, c.low, Color(1), Color["GREEN"], list(Color), len(Color), Color.default(), \
        Color.BLUE is Color.RED, c == Color.RED, c in Color, c != Color.GREEN, {Color.RED: 1}.get(c), \
        n + 1, n > 1, Level(1), n == 2, f"{n}", max(Level), p | Perm.W, p & Perm.R, Perm.R in p, bool(
            p & Perm.W), ~p, p.value, \
        m == "a", m.value, f"{m.value}", m.upper(), Mode("b"), Tone.LOUD, f"{Tone.LOUD}", \
        c.mixed(n), isinstance(c, Color), Color.__members__["RED"], [v.name for v in Perm], repr(c), str(c), \
        hash(c) == hash(Color.RED), [10, 20, 30][n], isinstance(n, int), type(c), {m: 1}.get("a"), \
        Perm.RW ^ Perm.W, str(m), Perm(3), c.__class__.__name__, n.name, sorted(
            [Level.HIGH, Level.LOW]), Perm.R | Perm.W is Perm.RW, \
        list(Perm.RW), n * 2, int(n)


@taken(make=lambda: (types.SimpleNamespace(a=1, b=[2]),), others=[lambda: (types.SimpleNamespace(a=2, b=[2]),)])
def namespaces(x, n):
    n.b.append(x)
    n.c = 5
    m = types.SimpleNamespace(q=n, r=x)
    del n.a
    return x + 1, n, m, m.q.c, vars(m), hasattr(n, "a"), m == types.SimpleNamespace(q=n, r=x), repr(
        types.SimpleNamespace(a=1)), \
        m.__dict__["q"] is n


T = typing.TypeVar("T")


class Holder(typing.Generic[T]):
    """A generic class."""

    def __init__(self, v: T):
        self.v: T = v


class Sized(typing.Protocol):
    """A protocol."""

    def size(self) -> int: ...


@typing.runtime_checkable
class Shaped(typing.Protocol):
    """A protocol that isinstance takes."""

    def shaped(self) -> int: ...


class Round:
    def shaped(self):
        return 1


@taken(make=lambda: (typing.Optional[int], list[int], T, typing.Any),
    others=[lambda: (typing.Union[int, str], list[str], T, None)])  # noqa: UP007, UP045
def typings(x, o, g, v, a):
    h: int = typing.cast(int, 3)
    return x + 1, h, o, g, v, a, typing.get_origin(o), typing.get_args(g), Holder[int](3).v, Holder(x).v, dict[
        str, int], \
        typing.Optional[str], int | None, typing.List[int] == list[int], o == typing.Optional[int], \
        typing.get_type_hints(Box.__post_init__), isinstance(Round(), Shaped), isinstance(
            x, Shaped), typing.TYPE_CHECKING, \
        g.__origin__, typing.NamedTuple is None, T.__name__, Holder.__parameters__  # noqa: UP006, UP007, UP045


class Base(abc.ABC):
    """An abstract class."""

    @abc.abstractmethod
    def run(self): ...

    @classmethod
    def __subclasshook__(cls, other):
        return True if other is int else NotImplemented


class Real(Base):
    def run(self):
        return 2


@taken
def abstract(x):
    try:
        Base()
    except TypeError as e:
        message = str(e)
    return x * Real().run(), isinstance(Real(), Base), isinstance(3, Base), issubclass(Real, Base), message, \
        isinstance([], collections.abc.Sequence), isinstance({}, collections.abc.MutableMapping), \
        isinstance((), collections.abc.Sized), issubclass(dict, collections.abc.Mapping), \
        isinstance(iter([]), collections.abc.Iterator), isinstance("a", collections.abc.Sequence), isinstance(
            x, collections.abc.Iterable)


class Node:
    """Something that can be copied."""

    def __init__(self, v):
        self.v = v
        self.next = None


class Hooked(Node):
    """Says itself how."""

    def __copy__(self):
        return Hooked(("copy", self.v))

    def __deepcopy__(self, memo):
        return Hooked(copy.deepcopy(self.v, memo))


@taken(make=lambda: ([1, [2, X]], Node([1])))
def copies(x, a, n):
    n.next = n
    b = copy.copy(a)
    c = copy.deepcopy(a)
    d = copy.copy(n)
    e = copy.deepcopy(n)
    f = copy.deepcopy({"a": a, "b": a})
    g = copy.deepcopy([n, n.v])
    c[1][1].add_(1)
    return x + 1, b[1] is a[1], b, c, d, e, e.next is e, f["a"] is f["b"], g[0].v is g[1], copy.copy(Hooked(1)), \
        copy.deepcopy(Hooked([1])).v, copy.copy((1, a))[1] is a, copy.deepcopy((1, 2)), copy.copy({1: a}), \
        copy.deepcopy(Frozen(1)), copy.copy("a"), copy.deepcopy(collections.OrderedDict(a=[1])), copy.copy({1, 2}), \
        copy.deepcopy(Color.RED), copy.copy(None), copy.deepcopy(Slotted(1, [2])), \
        copy.copy(collections.deque([1])), copy.deepcopy(collections.defaultdict(list, a=[1])), copy.deepcopy(len), \
        copy.deepcopy(Box(1, [2])), copy.deepcopy(x)


@taken(make=lambda: (lambda n: (n, weakref.ref(n)))(Node(3)))
def weak_references(x, n, r):
    return x * r().v, r() is n, weakref.ref(n)() is n, r == weakref.ref(n)


@broken(make=lambda: (Node(3), weakref.WeakKeyDictionary(), weakref.WeakValueDictionary()))
def weak_dicts(x, n, d, e):
    d[n] = 1
    e["n"] = n
    return x + 1, d[n], len(d), e["n"] is n, weakref.proxy(n).v


@broken(make=lambda: (Box(1), Slotted(1), types.SimpleNamespace(a=1), Color.RED))
def across_a_break(x, b, s, n, c):
    b.b.append(x)
    s.b = b
    d = Box(3, [s])
    f = Frozen(1)
    m = types.SimpleNamespace(c=c)
    framesmith.graph_break()
    n.a = d
    d.b.append(1)
    m.c = (m.c, f)
    torch._dynamo.graph_break()
    s.a = m
    return x + b.a, d, f, m, s.b is b


@taken(make=lambda: (collections.deque([1, 2, 3]), collections.deque([1, 2], maxlen=3)),
    others=[lambda: (collections.deque([1, 2]), collections.deque([1, 2], maxlen=3)),
    lambda: (collections.deque([1, 2, 3]), collections.deque([1, 2]))])
def deques(x, d, m):
    d.append(4)
    d.appendleft(0.5)
    d.rotate(1)
    d.extend([5, 6])
    d.extendleft([7, 8])
    m.extend([8, 9])
    m.appendleft(0)
    p = d.pop()
    q = d.popleft()
    d[0] = "z"
    del d[1]
    d.insert(1, "i")
    d.reverse()
    e = collections.deque(maxlen=2)
    for v in range(4):
        e.append(v)
    return x + 1, d, m, p, q, d[0], d[-1], len(d), 3 in d, e, e.maxlen, list(e), d.copy() == d, d.count(3), \
        e == collections.deque([2, 3]), bool(d), list(reversed(e)), e + e, e * 2, repr(e), d.index("z"), e.clear(), e, \
        [v for v in m], isinstance(m, collections.deque), m.maxlen, collections.deque("abc", 2), m.remove(
            m[0]), m, e < d, \
        list(map(str, m)), m.__len__(), m + m


@taken
def deque_errors(x):
    out = []
    d = collections.deque([1], 1)
    for make in (lambda: collections.deque().pop(), lambda: collections.deque().popleft(), lambda: d[4],
                 lambda: d.remove(9),
        lambda: d.index(8), lambda: d.insert(0, 1), lambda: hash(d), lambda: d[:1],
                 lambda: collections.deque([], -1), lambda: d + [1], lambda: setattr(d, "maxlen", 3)):
        try:
            out.append(make())
        except Exception as e:
            out.append((type(e), str(e)))
    return x + 1, out


@broken(make=lambda: (collections.deque([1, 2], maxlen=4),))
def deque_across_a_break(x, d):
    e = collections.deque([x], maxlen=2)
    d.append(e)
    framesmith.graph_break()
    e.append(d.popleft())
    return x + 1, d, e, d[-1] is e


@taken(make=lambda: (types.SimpleNamespace(a=1, b=2),), others=[lambda: (types.SimpleNamespace(a=1, b=2, d=3),),
                                                              lambda: (types.SimpleNamespace(b=2, a=1),)])
def attributes_made_again_come_last(x, o):
    del o.a
    o.__dict__["a"] = 3
    o.c = 4
    o.d = 5
    del o.d, o.c
    o.e = 6
    o.c = 7
    return x + 1, list(vars(o)), o


@taken(make=lambda: (types.SimpleNamespace(a=1),), others=[lambda: (types.SimpleNamespace(a=1, d=3),)])
def an_attribute_that_was_there_for_a_while(x, o):
    o.d = 5
    del o.d
    del o.a
    o.a = 1
    return x + 1, o


test_program = taken.test()
