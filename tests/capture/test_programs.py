"""Small programs: captured and run through residual code, they give what plain Python gives."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
from types import FunctionType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tests.capture.driver import Compiled, same

PROGRAMS: list[Any] = []


def program(fn: Any) -> Any:
    PROGRAMS.append(fn)
    return fn


X = torch.linspace(-1, 1, 12).reshape(3, 4)


@program
def straight(x):
    y = x * 2 + 1
    return y.relu().sum(dim=-1), y.shape, x.dtype


@program
def containers(x):
    a = [x, x + 1]
    a.append(x - 1)
    a[0] = a[2]
    b = {"p": a, 3: (x, None)}
    b.update(q=[i + 0 for i in range(3)])
    c = b.pop("q")
    first, *rest = a
    s = {1, 2} | {3}
    return a, b, c, first, rest, s, sorted(c, reverse=True), a[1:], len(a), list(b.keys()), {k: 1 for k in b if k != 3}


@program
def strings(x):
    n = x.shape[0]
    old = "%d %s" % (n, "z")  # noqa: UP031
    return f"{n:>3}|{x.dim()!r}", "-".join(str(i) for i in range(n)), old, "abc".upper().startswith("A")


@program
def closures(x):
    count = 0

    def add(y, *, k=2):
        nonlocal count
        count += k
        return y + count

    fs = [lambda v, i=i: v * i for i in range(3)]
    return add(add(x), k=5), count, sum(f(x) for f in fs)


@program
def generators(x):
    def gen(n):
        for i in range(n):
            got = yield x + i
            if got is not None:
                yield got
        return 7

    def outer():
        r = yield from gen(2)
        yield r

    g = gen(3)
    first = next(g)
    return list(outer()), first, g.send(x * 3), [v for v in g if True], next(g, None)


@program
def exceptions(x):
    log = []
    for i in range(4):
        try:
            if i == 1:
                raise ValueError("one")
            if i == 2:
                {}["missing"]
            log.append(i)
        except ValueError as e:
            log.append(str(e))
        except (KeyError, IndexError):
            log.append("key")
        else:
            log.append("else")
        finally:
            log.append("finally")
    try:
        [][1]
    except IndexError:
        x = x + 1
    return x, log


@contextlib.contextmanager
def noted(log, name):
    log.append("in " + name)
    try:
        yield name
    finally:
        log.append("out " + name)


@program
def contexts(x):
    log = []
    with noted(log, "a") as a, torch.no_grad(), contextlib.suppress(ValueError):
        y = x * 2
        raise ValueError
    with contextlib.nullcontext(3) as n:
        y = y + n
    return y, log, a, torch.is_grad_enabled()


@dataclasses.dataclass
class Point:
    a: Any
    b: int = 2

    def __post_init__(self):
        self.c = self.b + 1

    @property
    def total(self):
        return self.a + self.b

    def __eq__(self, other):
        return same(vars(self), vars(other))


class Pair(NamedTuple):
    left: Any
    right: Any = 1

    def swapped(self):
        return Pair(self.right, self.left)


class Meta:
    kind = "meta"
    registry: dict = {}

    def __init__(self, v):
        self.v = v

    def __add__(self, other):
        return type(self)(self.v + (other.v if isinstance(other, Meta) else other))

    __radd__ = __add__

    def __getattr__(self, name):
        if name.startswith("get_"):
            return lambda: (name, self.v)
        raise AttributeError(name)

    def __call__(self, k):
        return self.v * k

    def __getitem__(self, i):
        return self.v[i]

    def __len__(self):
        return 5

    @classmethod
    def make(cls, v):
        return cls(v)

    @staticmethod
    def double(v):
        return v * 2

    def __eq__(self, other):
        return same(self.v, other.v)


class Child(Meta):
    def __init__(self, v):
        super().__init__(v)
        self.extra = super().kind

    def __contains__(self, k):
        return k == 3


@program
def classes(x):
    p = Point(x, b=4)
    q = Pair(x)
    m = Child(x) + 1 + Meta(x)
    n = sum([Meta(x), Meta(x)])
    return (p, p.total, dataclasses.replace(p, b=1).c, q, q.swapped().left, q._replace(right=9), m, m.get_it(), n, m(2),
            m[0], len(m),
            3 in m,
            Child.make(x).extra, Meta.double(x), hasattr(m, "nope"), getattr(m, "nope", 3), isinstance(m, Meta),
            type(m).__name__)


@program
def standard_library(x):
    d = collections.defaultdict(list)
    d["a"].append(x)
    o = collections.OrderedDict(a=1, b=2)
    o.move_to_end("a")
    part = functools.partial(torch.add, x, alpha=2)
    return (dict(d), list(o), part(x), functools.reduce(lambda a, b: a + b, [x, x, x]), math.sqrt(16),
            list(itertools.chain([1], (2, 3))),
            list(zip([1, 2], "ab", strict=True)), list(map(lambda a, b: a + b, [1, 2], [3, 4])),
            list(enumerate([x, 1], start=2)),
            max([3, 1, 2], key=lambda v: -v), min(4, 2), any(v > 2 for v in (1, 3)), all([]),
            list(filter(None, [0, 1, 2])),
            list(itertools.product([1, 2], repeat=2)), list(reversed([1, 2])), sum([1, 2], 10), divmod(7, 2),
            list(range(5))[::2])


@program
def matching(x):
    k = x.shape[0]
    out = []
    while True:
        k -= 1
        if k < 0:
            break
        if k == 1:
            continue
        out.append(x[k] if k else -x[k])
    else:
        out.append("never")
    a = b = 1 if out else 2
    return out, a < b < 3, 1 < 2 <= 2, (n := 4) + n, not out, x is not None, a or b, a and None


@program
def in_place(x):
    y = x.clone()
    y += 1
    y[0] = 0
    y[:, 1].mul_(3)
    z = torch.zeros(3, 4)
    torch.add(x, 1, out=z)
    return y, z


@program
def star_args(x):
    def f(a, /, b, *args, c=1, **kw):
        return a, b, args, c, sorted(kw)

    def g(*, only):
        return only

    rest = (3, 4)
    kw = {"c": 5, "d": 6}
    return f(x, 2, *rest, **kw), f(1, b=2, e=3), g(only=x)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_program(fn: Any) -> None:
    with torch.no_grad():
        want = fn(X.clone())
        compiled = Compiled(fn)
        got = compiled(X.clone())
    assert same(got, want)
    assert compiled.breaks == []


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.calls = 0
        self.history: list[Any] = []
        self.table = {"n": 0}
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.history.append(x.shape[0])
        self.table["n"] = self.calls
        self.last = x.sum()
        self.seen += 1
        return self.norm(x)


def test_effects_are_replayed() -> None:
    with torch.no_grad():
        plain, captured = Counter(), Counter()
        compiled = Compiled(captured.forward)
        for _ in range(2):
            assert same(compiled(X.clone()), plain(X.clone()))
        assert captured.calls == plain.calls == 2
        assert captured.history == plain.history
        assert captured.table == plain.table
        assert same(captured.last, plain.last)
        assert same(dict(captured.state_dict()), dict(plain.state_dict()))


STATE = 0


def test_globals_and_cells_are_written() -> None:
    cell = []
    total = 0

    def fn(x):
        global STATE
        nonlocal total
        STATE += 2
        total = total + x.shape[0]
        cell.append(total)
        return x + STATE

    global STATE
    STATE = 0
    with torch.no_grad():
        assert same(Compiled(fn)(X), X + 2)
    assert (STATE, total, cell) == (2, 3, [3])


def test_shared_objects_keep_their_identity() -> None:
    def fn(x):
        a = [x + 1]
        return a, {"a": a}, x

    with torch.no_grad():
        a, d, x = Compiled(fn)(X)
    assert d["a"] is a
    assert x is X


def test_submodules_parameters_and_hooks() -> None:
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2, bias=False)).eval()
    m[0].register_forward_hook(lambda mod, args, out: out * 2)
    m[2].register_forward_pre_hook(lambda mod, args: (args[0] + 1,))
    with torch.no_grad():
        compiled = Compiled(m.forward)
        assert same(compiled(X), m(X))
    assert compiled.breaks == []
    graph = compiled.captures[0].graph
    assert graph is not None
    params = [n for n in graph.nodes if n.op == "placeholder" and n.meta.get("param")]
    assert len(params) == 3


class Odd(dict):
    """Its subscript is the program's own code."""

    def __getitem__(self, key):
        return {**self}[key] if isinstance(key, str) else list(self.values())[key]


def test_residual_code_reads_a_container_without_its_own_subscript() -> None:
    ours = Compiled(Odd.__getitem__)
    box = Odd(a=X, b=Meta(2))
    assert ours(box, "b") is box["b"] and ours(box, 1) is box["b"] and ours(box, 0) is X
    used = {name for c in ours.captures for name in c.residual_code.co_names}
    assert ours.breaks == [] and "__getitem__" not in used
    called: list[Any] = []
    Odd.__getitem__, kept = (lambda self, key: called.append(key)), Odd.__getitem__  # type: ignore[method-assign]
    try:
        for c in ours.captures[:1]:
            FunctionType(c.residual_code, globals(), "residual", None, kept.__closure__)(box, "b", ())
    finally:
        Odd.__getitem__ = kept  # type: ignore[method-assign]
    assert called == []


class Slots:
    def __init__(self) -> None:
        self.kept, self.sign, self.table = None, 0.0, {0: None, "same": None}


def fill(slots, x):
    slots.kept, slots.sign = x + 1, -0.0
    slots.table[0] = x * 2
    return x


def test_writes_over_none_and_over_zero_are_replayed() -> None:
    slots = Slots()
    Compiled(fill)(slots, X)
    assert torch.equal(slots.kept, X + 1) and torch.equal(slots.table[0], X * 2) and slots.table["same"] is None
    assert math.copysign(1, slots.sign) == -1
