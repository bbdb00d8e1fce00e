"""Objects die in captured code where they die in plain Python: finalizers and weak references tell."""

from __future__ import annotations

import enum
import gc
import weakref
from types import FunctionType

import pytest
import torch

import framesmith
from framesmith import _C
from framesmith.capture.entry import convert_frame
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.ledger import Ledger


class Thing:
    pass


class Told:
    """Says when it dies."""

    log: list[str] = []

    def __del__(self) -> None:
        Told.log.append("died")


def deleted(x):
    o = Thing()
    r = weakref.ref(o)
    y = x + 1
    before = r() is None
    del o
    return y, before, r() is None


def after_a_break(x):
    o = Thing()
    r = weakref.ref(o)
    gc.collect()
    before = r() is None
    o = None
    return x * 2, before, r() is None, o


def not_read_again(x):
    o = Thing()
    r = weakref.ref(o)
    gc.collect()
    return x - 1, r() is None


def in_a_list(x):
    items = [Thing()]
    r = weakref.ref(items[0])
    gc.collect()
    before = r() is None
    items.clear()
    return x, before, r() is None


def in_a_set(x):
    o = Thing()
    s = {o}
    r = weakref.ref(o)
    del o
    gc.collect()
    before = r() is None
    s.clear()
    return x, before, r() is None


def in_an_attribute(x):
    o = Thing()
    o.part = Thing()
    r = weakref.ref(o.part)
    gc.collect()
    del o.part
    return x, r() is None


def finalizer(x):
    d = Told()
    Told.log.clear()
    y = x + 1
    del d
    return y, list(Told.log)


def finalizer_of_what_is_replaced(x):
    d = Told()
    Told.log.clear()
    d = x + 1
    return d, list(Told.log)


def callback(x):
    seen = []
    o = Thing()
    r = weakref.ref(o, lambda _: seen.append(1))
    y = x + 1
    o = 3
    return y, list(seen), o, r() is None


def weak_values(x):
    d = weakref.WeakValueDictionary()
    o = Thing()
    d["a"] = o
    n = len(d)
    del o
    return x, n, len(d), list(d)


def held_by_an_exception(x):
    o = Thing()
    r = weakref.ref(o)
    try:
        raise ValueError(o)
    except ValueError:
        gc.collect()
        del o
    return x + 1, r() is None


def a_proxy(x):
    o = Thing()
    p = weakref.proxy(o)
    o.n = 3
    y = x * p.n
    del o
    try:
        return y, p.n
    except ReferenceError as e:
        return y, str(e)


def an_argument_that_is_replaced(x, k=1):
    k = 2
    del k
    try:
        return x, k  # noqa: F821
    except UnboundLocalError as e:
        return x, str(e)


class Clearing(int):
    def __del__(self):
        self.owner.clear()


def dies_while_its_dict_is_iterated(x):
    d = {}
    for i in range(6):
        d[i] = Clearing(i)
        d[i].owner = d
    seen = []
    try:
        for k, v in d.items():
            seen.append((k, int(v)))
            if k == 2:
                d[2] = None
    except RuntimeError as e:
        seen.append(str(e))
    return x, seen


PROGRAMS = [dies_while_its_dict_is_iterated,
            deleted, after_a_break, not_read_again, in_a_list, in_a_set, in_an_attribute, finalizer,
            finalizer_of_what_is_replaced,
            callback,
            weak_values, held_by_an_exception, a_proxy, an_argument_that_is_replaced]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_they_die_where_they_die_in_python(fn):
    x = torch.ones(2)
    want = fn(x)
    config = Config(backend="eager", suppress_errors=False, keep_graphless=True, standard_library=True)
    compiled = _C.CompiledFunction(fn, FrameCompiler(config, Ledger()))
    with torch.no_grad():
        for _ in range(3):
            y, *rest = compiled(x)
            assert torch.equal(y, want[0])
            assert tuple(rest) == want[1:]


def of_functions_and_methods():
    f = lambda: 3  # noqa: E731
    held = weakref.ref(f)
    first = held() is f
    del f
    m = Thing().__init__
    n = Told.log.append
    return first, held(), m is m, n is n


class Number(float):
    pass


def of_values_and_references():
    number = Number(2.0)
    p = weakref.proxy(number)
    o = Thing()
    a, b = weakref.ref(o), weakref.ref(o)
    return p + 1.0, 1.0 + p, a is b, weakref.getweakrefcount(o)


def one_method(holder):
    return holder.go is holder.go, holder.go() is holder


def test_what_else_may_die():
    thing = Thing()
    thing.go = (lambda self: self).__get__(thing)
    for program, args in ((of_functions_and_methods, ()), (of_values_and_references, ()), (one_method, (thing,))):
        want = program(*args)
        fast = framesmith.compile(program, backend="eager", options={"keep_graphless": True, "warn": False})
        assert [fast(*args), fast(*args)] == [want] * 2


class Mode(enum.Enum):
    ON = 1


def test_what_guards_watch_is_dropped_unseen():
    def fn(x, mode):
        y = x + mode.value
        mode = None
        return y, mode

    compiled = framesmith.compile(fn, backend="eager", fullgraph=True)
    for x in (torch.ones(2), torch.ones(3), torch.ones(2, 2)):
        assert torch.equal(compiled(x, Mode.ON)[0], x + 1)


class Hashed:
    def __init__(self, x):
        self.x = x

    def __hash__(self):
        return hash(self.x)

    def __eq__(self, other):
        return self.x == other.x


def weak_keys():
    things, hashed = [Thing() for _ in range(4)], [Hashed(i) for i in range(4)]
    a, b = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()
    for i, (x, y) in enumerate(zip(things, hashed, strict=True)):
        a[x] = b[y] = i
    out = [(a[x], b[y]) for x, y in zip(things, hashed, strict=True)]
    it = a.items()
    next(it)
    del things, x, hashed[1:], y
    gc.collect()
    n = len(a), len(b)
    del it
    gc.collect()
    return out, n, len(a)


def a_class():
    told = []

    class Local:
        pass

    thing = Local()
    r = weakref.ref(Local, told.append)
    thing.me = thing
    del Local, thing
    gc.collect()
    return len(told), r() is None


def in_a_cell():
    thing = Thing()

    def raises():
        raise KeyError(thing)

    r = weakref.ref(thing)
    try:
        raises()
    except KeyError:
        told = True
    thing = None
    return told, r()


class Final(weakref.finalize):
    pass


def a_finalizer():
    thing, told = Thing(), []
    f = Final(thing, lambda: told.append(1))
    r = weakref.ref(f)
    del f
    first = r() is not None
    del thing
    gc.collect()
    return first, r(), told


@pytest.mark.parametrize("program", [weak_keys, a_class, in_a_cell, a_finalizer], ids=lambda f: f.__name__)
def test_what_guards_and_residual_code_do_not_hold(program):
    want = program()
    fast = framesmith.compile(program, backend="eager",
                              options={"keep_graphless": True, "warn": False, "standard_library": True})
    assert [fast(), fast(), fast()] == [want] * 3


def test_a_target_that_dies_behind_the_guards():
    def run(r):
        x = r()
        return 3 if x is None else [x]

    thing = Thing()
    r = weakref.ref(thing)
    captured = convert_frame(run.__code__, {"r": r}, globals())
    residual = FunctionType(captured.residual_code, globals())
    assert residual(r, ()) == [thing]
    del thing
    assert _C.run(residual(r, ())) == 3
