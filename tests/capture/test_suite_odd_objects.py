"""What CPython's own tests found about odd objects: a `__class__` that lies, proxies, classes made by a call, a
clock."""

import datetime
import threading
import weakref

from tests.capture.suite import kept


class Lies:
    asked: list[str] = []

    @property
    def __class__(self):
        self.asked.append("class")
        return int

    @property
    def __dict__(self):
        self.asked.append("dict")
        return {"x": 1}


def own_class(o):
    return isinstance(o, Lies), type(o)


def other_class(o):
    return isinstance(o, int)


def test_nobody_asks_an_object_for_its_class():
    fast = kept(own_class)
    for _ in range(2):
        assert fast(Lies()) == (True, Lies)
    assert Lies.asked == []
    assert kept(other_class)(Lies()) is True
    assert "dict" not in Lies.asked


class Thing:
    kind = 3


def through_a_proxy(p, local):
    return p.kind, isinstance(p, Thing), local.x


def test_proxies_and_thread_locals():
    thing, local = Thing(), threading.local()
    local.x = 5
    fast = kept(through_a_proxy)
    assert [fast(weakref.proxy(thing), local) for _ in range(2)] == [(3, True, 5)] * 2
    local.x = 6
    assert fast(weakref.proxy(thing), local) == (3, True, 6)


made: list[type] = []


class Base:
    def __init_subclass__(cls):
        made.append(cls)


def makes_a_class():
    return type.__new__(type, "A", (Base,), {})


def test_a_class_is_made_in_each_call():
    fast = kept(makes_a_class)
    classes = [fast() for _ in range(3)]
    assert made == classes and len(set(classes)) == 3


def reads_the_clock():
    return datetime.datetime.now()


def test_the_clock_is_read_in_each_call():
    fast = kept(reads_the_clock)
    assert fast() < fast() < fast()


class Shy:
    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}")

    def __repr__(self):
        raise RuntimeError("asked for text")


def takes_anything(x):
    return x is None, type(x)


def test_nobody_asks_for_the_text_of_an_object_that_a_guard_refuses():
    fast = kept(takes_anything)
    for x in (3, Shy(), 10 ** 5000, None, -(10 ** 5000), "a", Shy(), (Shy(),), float):
        assert fast(x) == takes_anything(x)
