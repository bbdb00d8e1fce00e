"""What CPython's own tests found about slots and instance dicts: names in both, descriptors, classes made in the
frame."""

import copy
import functools

import pytest

import framesmith
from tests.capture.suite import kept, said, twice
from tests.programs import Programs

program = Programs(twice)


class Cached:
    def __init__(self):
        self.asked = []

    @functools.cached_property
    def kept(self):
        self.asked.append(1)
        return len(self.asked)

    nameless = [functools.cached_property(len)]


class Dictless:
    __slots__ = ("asked",)
    kept = Cached.kept
    __init__ = Cached.__init__


class Renamed(Cached):
    pass


Renamed.other = Cached.kept  # type: ignore[attr-defined]
Renamed.none = Cached.nameless[0]  # type: ignore[attr-defined]


class Missing:
    def __get__(self, obj, cls):
        raise AttributeError("missing")


class Fallen:
    kept = functools.cached_property(lambda self: self.nothing)  # type: ignore[attr-defined]
    own = Missing()

    def __getattr__(self, name):
        return name, "asked"


class Doubled:
    @property
    def x(self):
        return self.__dict__["x"]

    @x.setter
    def x(self, v):
        self.__dict__["x"] = v * 2


class Slotted:
    __slots__ = ("__dict__", "__y", "x")

    def __init__(self):
        self.x = 1
        self.__y = 2
        self.z = 3
        self.__dict__["x"] = 7

    def y(self):
        return self.__y


class Again(Slotted):
    __slots__ = ("x",)

    def __init__(self):
        Slotted.x.__set__(self, 9)
        super().__init__()


def setter(p):
    p.x = 5
    return p.__dict__


def deleter(s):
    del s.x
    s.__dict__["x"] = 8
    return s.__dict__, hasattr(s, "x")


@program
def a_property_over_the_dict():
    p = Doubled()
    p.x = 3
    framesmith.graph_break()
    return p.x, setter(p), p.x


@program
def a_name_in_both():
    s = Slotted()
    c = copy.copy(s)
    framesmith.graph_break()
    return s.__dict__, s.x, s.y(), c.__dict__, c.x, deleter(s)


@program
def a_slot_below_another():
    s = Again()
    framesmith.graph_break()
    return s.x, s.__dict__, Slotted.x.__get__(s)


@program
def slots_of_a_made_class():
    class Made:
        __slots__ = ["q", "__dict__"]

    m = Made()
    m.q = 1
    m.r = 2
    framesmith.graph_break()
    return m.q, m.__dict__, Made.__slots__


@program
def the_hash_of_a_made_class():
    class Made(tuple):
        pass

    known = {hash((Made((1,)), Made)): 1, Made: 2}
    framesmith.graph_break()
    return known[hash((Made((1,)), Made))], known[Made]


@program
def cached_properties():
    c, d, r = Cached(), Dictless(), Renamed()
    first = c.kept, c.kept
    del c.kept
    c.more = 1
    told = said(lambda: c.kept, lambda: d.kept, lambda: r.other, lambda: r.other, lambda: r.none)
    return first, told, c.__dict__, d.asked, r.__dict__


@program
def descriptors_without_an_answer():
    f = Fallen()
    return f.kept, f.own, said(lambda: object.__getattribute__(f, "own")), hasattr(f, "own"), vars(f)


test_slots = program.test()


@pytest.mark.parametrize("fn, make", [(setter, Doubled), (deleter, Slotted), (lambda s: vars(s), Slotted)])
def test_objects_from_outside(fn, make):
    fast = kept(fn)
    for _ in range(2):
        a, b = make(), make()
        assert fast(a) == fn(b)
        assert a.__dict__ == b.__dict__


def test_no_dict_is_made():
    inner = functools.partial(int, "5")

    def look(p):
        return p.func, p.args

    assert framesmith.compile(look, backend="eager", options={"keep_graphless": True})(inner) == (int, ("5",))
    assert functools.partial(inner, base=8).func is int  # it would be `inner` if that had a dict of its own
