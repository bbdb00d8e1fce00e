"""Functions: closures, scopes, defaults, recursion, unpacking, comprehensions, imports; what must break.
PYTEST_DONT_REWRITE"""
# ruff: noqa
from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import math
import sys

import pytest
import torch

import framesmith
from framesmith.config import Config
from framesmith.util.errors import Unsupported
from tests.capture.driver import Compiled
from tests.capture.lang import X, check
from tests.programs import Programs

program = Programs(check)
level = 1
removed = 2


@program
def partials_with_attributes(x):
    """Text."""
    p = functools.partial(torch.add, x)
    functools.update_wrapper(p, partials_with_attributes)
    q = functools.partial(p)
    q.tag = 3
    q.__dict__["more"] = [x + 1]
    return (p(x), p.__doc__, p.__module__, p.__name__, p.__wrapped__ is partials_with_attributes, hasattr(p, "nope"),
            q.tag, q.more, q.func is p,
            len(q.__dict__), q(x), vars(functools.partial(p, tag=3)))


@program
def closures(x):
    n = 1
    fs = []
    for i in range(3):
        fs.append(lambda v: v * i)
    gs = [lambda v, i=i: v * i for i in range(3)]

    def counter():
        nonlocal n
        n += 1

        def inner():
            nonlocal n
            n *= 2
            return n
        return inner

    def pair():
        v = 0

        def get():
            return v

        def put(w):
            nonlocal v
            v = w
        return get, put

    get, put = pair()
    get2, put2 = pair()
    put(x)
    put2(5)
    return [f(2) for f in fs], [g(2) for g in gs], counter()(), n, get() + 1, get2(), get.__closure__[
        0].cell_contents is x


@program
def escaping_closures(x):
    v = x
    def get():
        return v
    def put(w):
        nonlocal v
        v = w
    put(v + 1)
    return get, put, [get]


@program
def global_names(x):
    global level, removed, created
    level += 1
    created = x
    first = level, removed
    level -= 1
    del created
    try:
        created
    except NameError as e:
        return first, level, str(e)


@program
def unbound(x):
    out = []
    def f():
        if x.dim() == 9:
            late = 1
        return late
    def g():
        return h_free
    def k():
        try:
            raise ValueError
        except ValueError as e:
            pass
        return e
    for fn in (f, g, k):
        try:
            fn()
        except NameError as e:
            out.append((type(e), str(e)))
    h_free = 1
    return out, g()


@program
def deletions(x):
    a = [1, 2, 3, 4]
    d = {"k": 1, "l": 2}
    b, (c, e) = 1, (2, 3)
    del a[0], a[1:], d["k"], b, (c, e)
    class O: pass
    o = O()
    o.p = 1
    del o.p
    return a, d, hasattr(o, "p"), x


@program
def defaults(x):
    log = []
    def note(v):
        log.append(v)
        return v
    def f(a, b=note(2), /, c=note(3), *args, d=note(4), e, **kw):
        return a, b, c, args, d, e, kw
    def g(a, items=[]):
        items.append(a)
        return list(items)
    def annotated(a: note("ann") = 1, *, b: int = 2) -> str:
        return a + b
    return f(1, e=5), f(1, 2, 3, 4, e=5, z=x), f(*range(6), e=1,
                                                 **{"q": 2}), g(1), g(
                                                     2), log, annotated(), f.__defaults__, f.__kwdefaults__, g.__defaults__


@program
def recursion(x):
    def fact(n):
        return 1 if n < 2 else n * fact(n - 1)
    def even(n):
        return True if n == 0 else odd(n - 1)
    def odd(n):
        return False if n == 0 else even(n - 1)
    def deep(v, n):
        return v if n == 0 else deep(v + 1, n - 1)
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)
    return fact(6), even(7), odd(7), deep(x, 20), (lambda f: f(f, 5))(lambda f, n: 1 if n == 0
                                                                      else n * f(f, n - 1)), fib(10)


@program
def unpacking(x):
    a, *b = [1, 2, 3]
    *c, d = "xyz"
    e, *f, g = range(5)
    [h, [i, *j]] = 1, (2, 3, 4)
    *k, = {"a": 1}
    (l, m), n = (x, x + 1), 3
    for o, *p in [(1, 2, 3), (4,)]:
        pass
    q = [*b, *c, *{1: 2}, *(v for v in range(2))]
    r = {**{"a": 1}, "b": 2, **{"a": 3}}
    s = {*b, *[9]}
    t = (*b, *(), *"q")
    def fn(*args, **kw):
        return args, kw
    u = fn(*b, 7, *c, k=1, **r, **{"z": 2})
    x0, x1, x2 = x
    return a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, x0 + x1


@program
def comprehensions(x):
    n = 2
    a = [i * j for i in range(3) if i for j in range(i) if j or n]
    b = {i: [j for j in range(i)] for i in range(3)}
    c = {i % 2 for i in range(5)}
    d = [[x * i + j for j in range(2)] for i in range(2)]
    z = [1, 2]
    e = [y for y in z]
    f = [last := i for i in range(3)]
    g = [(i, k) for i, (j, *k) in enumerate([(1, 2, 3), (4,)])]
    h = [fn() for fn in [lambda: i for i in range(3)]]
    k = [i if i > 1 else -i for i in range(4)]
    return a, b, c, d, e, f, last, g, h, k, z


@program
def walrus(x):
    out = []
    data = [1, 2, 3]
    while (n := data.pop() if data else None) is not None:
        out.append(n)
    if (m := len(out)) > 2 and (k := m + 1):
        out.append(k)
    y = (t := x * 2) + t
    return out, y, t, [w for v in range(4) if (w := v * v) > 1], f"{(q := 5)}", q


@program
def comparisons(x):
    log = []
    def v(n):
        log.append(n)
        return n
    return (v(1) < v(2) < v(3), v(3) < v(2) < v(1), 1 < 2 > 1 != 3 is not None, 1 in [1] in [[1]], not 1 == 2,
            v(1) or v(2), v(0) and v(5), v(0) or v(0) or v(7),
            (v(1), v(2))[v(0)], log, x is x is not None)


@program
def loops(x):
    out = []
    for i in range(5):
        if i == 1:
            continue
        for j in range(5):
            if j == 2:
                break
            out.append((i, j))
        else:
            out.append("no break")
        if i == 3:
            break
    else:
        out.append("never")
    while i:
        i -= 1
    else:
        out.append("while else")
    items = [1, 2, 3]
    for v in items:
        if v < 3 and len(items) < 6:
            items.append(v * 10)
    for k in {"a": 1}:
        out.append(k)
    for i in range(0):
        pass
    return out, items, i, x


@program
def dict_changed_in_loop(x):
    d = {1: 1, 2: 2}
    try:
        for k in d:
            d[k + 10] = x
    except RuntimeError as e:
        return str(e), len(d)


@program
def inner_imports(x):
    import math as m
    import os.path
    import torch.nn.functional as F
    from functools import partial, reduce as fold
    from collections import abc, OrderedDict
    mod = importlib.import_module("functools")
    try:
        from math import nothing_here
    except ImportError as e:
        message = str(e), e.name
    return F.relu(x), m.sqrt(4), os.path.join("a", "b"), partial(max, 1)(2), fold(lambda a, b: a + b,
                                                                                  [1, 2]), abc.Sized is not None, \
        mod is functools, message, OrderedDict(a=1)


def traced(label):
    def wrap(fn):
        @functools.wraps(fn)
        def inner(*args, **kw):
            return label, fn(*args, **kw)
        return inner
    return wrap


class AsDecorator:
    def __init__(self, fn=None, *, k=1):
        self.fn = fn
        self.k = k

    def __call__(self, *args):
        if self.fn is None:
            return AsDecorator(args[0], k=self.k)
        return self.fn(*args) * self.k


@program
def decorators(x):
    @traced("outer")
    @traced("inner")
    def f(v):
        return v + 1

    @AsDecorator
    def g(v):
        return v * 2

    @AsDecorator(k=3)
    def h(v):
        return v

    class C:
        @staticmethod
        @traced("static")
        def s(v):
            return v

        @property
        @traced("prop")
        def p(self):
            return 1

        @classmethod
        @traced("class")
        def c(cls):
            return cls.__name__
    return f(x), f.__name__, g(x), h(2), C.s(1), C().p, C.c(), C().c()


@program
def contexts_as_decorators(x):
    @torch.no_grad()
    def f(v):
        return v * 2, torch.is_grad_enabled()

    @contextlib.contextmanager
    def scope(log):
        log.append("in")
        yield
        log.append("out")

    log = []

    @scope(log)
    def g():
        log.append("body")
    g()
    g()
    return f(x), log


@program
def lambdas(x):
    f = lambda a, b=2, *c, d=4, **e: (a, b, c, d, e)
    return f(1), f(1, 2, 3, d=5,
                   z=6), (lambda: x + 1)(), (lambda *a: a)(*[1, 2]), [(lambda v: v ** 2)(v)
                                                                      for v in range(3)], (
                                                                          lambda: (yield))().__class__.__name__


@program
def locals_of_inlined(x):
    def f():
        return sorted(["a", "b"])
    return f(), x


test_programs = program.test()


# --- what must break --------------------------------------------------------------------------------------------------
def refused_whole(fn):
    """Refused in one piece; by compile, with breaks, as plain Python has it."""
    if fn.__name__ == "new_import":
        module = type(sys)("this_module_is_made_for_one_test")
        with pytest.raises(Unsupported):
            Compiled(fn, Config(fullgraph=True))(X)
        sys.modules[module.__name__] = module
        try:
            Compiled(fn, Config(fullgraph=True))(X)
        finally:
            del sys.modules[module.__name__]
        return
    with pytest.raises(Unsupported):
        Compiled(fn, Config(fullgraph=True))(X)
    want, got = fn(X), framesmith.compile(fn, backend="eager")(X)
    assert repr(want) == repr(got)


BREAKS = Programs(refused_whole)


@BREAKS
def local_names(x):
    a = 1
    return sorted(locals()), a


@BREAKS
def evaluated(x):
    a = 2
    return eval("a + 1"), x


@BREAKS
def executed(x):
    d = {}
    exec("q = 3", d)
    return d["q"], x


@BREAKS
def frames(x):
    return sys._getframe().f_code.co_name, x


@BREAKS
def inspected(x):
    return inspect.currentframe().f_code.co_name, x


@BREAKS
def new_import(x):
    import this_module_is_made_for_one_test  # noqa: F401
    return x


@BREAKS
def coroutine_made(x):
    async def f():
        return x + 1
    return asyncio.run(f())


@BREAKS
def coroutine_gathered(x):
    class Manager:
        async def __aenter__(self):
            return 1

        async def __aexit__(self, *e):
            return True

    async def numbers(n):
        for i in range(n):
            yield i
            await asyncio.sleep(0)

    async def f():
        out = []
        async with Manager() as m:
            async for v in numbers(2):
                out.append(v + m)
            raise ValueError
        return out, [v async for v in numbers(3) if v]
    return asyncio.run(f()), x


test_breaks = BREAKS.test()


async def asynchronous(x):
    await asyncio.sleep(0)
    out = [x + 1]
    async for v in counting(2):
        out.append(x * v)
    return out


async def counting(n):
    for i in range(n):
        yield i
        await asyncio.sleep(0)


def test_async_functions_pass_through():
    want, got = asyncio.run(asynchronous(X)), asyncio.run(framesmith.compile(asynchronous, backend="eager")(X))
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    assert inspect.iscoroutinefunction(asynchronous)


def test_generator_functions_pass_through():
    def gen(x):
        got = yield x + 1
        yield got
    g = framesmith.compile(gen, backend="eager")(X)
    assert torch.equal(next(g), X + 1) and g.send(3) == 3
