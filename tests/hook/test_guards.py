"""Each kind of source and of guard: holds, fails, and says why in the user's terms."""

from __future__ import annotations

import builtins
import collections
import gc
import math
import types

import pytest
import torch

from framesmith import _C
from framesmith.capture.guards import compile_guards, why_missed
from framesmith.capture.sources import (
    MISSING,
    Attr,
    Builtin,
    Cell,
    DictAttr,
    DictKey,
    Global,
    GlobalOf,
    Guard,
    Item,
    Local,
    Made,
    Pinned,
    TypeOf,
)
from framesmith.util.errors import GuardError
from tests.hook.helpers import equals, type_of, variant

X = Local("x")


class Box:
    def __init__(self, **values):
        self.__dict__.update(values)


class Slots:
    __slots__ = ("a",)

    def __init__(self, a):
        self.a = a


def holds(kind, value, good, bad, words=()):
    """One guard on x: true of each of `good`, false of each of `bad`, with all `words` in each explanation."""
    for source, wrap in ((X, lambda v: v), (Item(X, 0), lambda v: [v])):
        tree = compile_guards([Guard(source, kind, value)], [source])
        for x in good:
            assert tree.check({"x": wrap(x)}) == (x,) or x != x, (kind, x)
            assert tree.explain_failure({"x": wrap(x)}) == ""
        for x in bad:
            assert tree.check({"x": wrap(x)}) is None, (kind, x)
            text = tree.explain_failure({"x": wrap(x)})
            assert str(source) in text and all(word in text for word in words), text


class IntChild(int):
    pass


def test_type():
    holds("type", int, [1, 0], [True, 1.0, None, IntChild(1)], ["int"])


def test_id_and_none():
    box = Box()
    holds("id", box, [box], [Box(), None], ["another object"])
    holds("none", None, [None], [0], ["None"])
    holds("not_none", None, [0], [None], ["None"])


@pytest.mark.parametrize("value, others", [
    (1, [True, 1.0, 2, None]), (0.0, [-0.0, 0, 1e-300]), (math.nan, [0.0]), (2**80, [2**80 + 1]), ("ab", ["a", b"ab"]),
    ((1, (2.0, "x")), [(1, (2, "x")), (True, (2.0, "x")), (1, (2.0, "y")), (1,)]), (1j, [complex(-0.0, 1), 1]),
    (None, [0]), (torch.float32, [torch.float64]), (slice(1, 2), [slice(1, 3)]), (b"x", ["x"]),
    (torch.device("cpu"), [torch.device("meta"), "cpu"]),
])
def test_equals(value, others):
    copies = [value] if value is None or isinstance(value, (torch.dtype, slice,
                                                            torch.device)) else [eval(repr(value), {"nan": math.nan})]
    holds("equals", value, [value, *copies], others, ["expected"])


def test_len_and_bool():
    holds("len", 2, [[1, 2], (1, 2), {1: 1, 2: 2}, {1, 2}, "ab", collections.deque([1, 2])], [[1], (), {}, 5],
          ["expected 2"])
    holds("bool", True, [[1], 1, "a"], [[], 0, ""], ["expected True"])
    holds("bool", False, [[], {}, 0], [[1], {1: 1}], ["expected False"])


def test_keys_in_order():
    key = Box()
    good = [{"a": 1, 2: 2, key: 3}, collections.OrderedDict([("a", 0), (2, 0), (key, 0)])]
    bad = [{"a": 1, 2: 2}, {2: 2, "a": 1, key: 1}, {"a": 1, 2.0: 2, key: 1}, {"a": 1, 2: 2, Box(): 3}, [1], {}]
    holds("keys", ("a", 2, key), good, bad)
    tree = compile_guards([Guard(X, "keys", ("a", "b"))], [])
    d = {"a": 1, "b": 2}
    assert tree.check({"x": d}) == ()
    d["c"] = 3
    assert tree.check({"x": d}) is None and "gained ['c']" in tree.explain_failure({"x": d})
    del d["c"]
    assert tree.check({"x": d}) == () == tree.check({"x": d})
    del d["a"]
    assert "lost ['a']" in tree.explain_failure({"x": d})


def test_contains():
    holds("contains", "a", [{"a": 1}, {"a"}, frozenset("a")], [{}, set(), [1]], ["not in"])
    holds("not_contains", "a", [{}, set()], [{"a": 1}, {"a"}, 3], ["in"])
    tree = compile_guards([Guard(X, "not_contains", "a")], [])
    d = {}
    assert tree.check({"x": d}) == ()
    d["a"] = 1
    assert tree.check({"x": d}) is None


def test_own_attributes():
    holds("hasattr", "a", [Box(a=1)], [Box(), 3], ["'a'"])
    holds("not_hasattr", "a", [Box(), Box(b=1), 3, Slots(1)], [Box(a=1)], ["'a'"])
    box = Box()
    tree = compile_guards([Guard(X, "not_hasattr", "a")], [])
    assert tree.check({"x": box}) == ()
    box.a = 1
    assert tree.check({"x": box}) is None


def test_callable():
    holds("callable", lambda x: x > 3, [4, 5], [3, "a"], ["false"])


SOURCES = {
    "item of list": (Item(X, 1), [0, 5], [0]),
    "item of tuple": (Item(X, -1), (0, 5), ()),
    "item of dict": (Item(X, "k"), {"k": 5}, {"j": 5}),
    "item of ordered dict": (Item(X, (1, "k")), collections.OrderedDict({(1, "k"): 5}), {1: 5}),
    "key of dict": (DictKey(X, 1), {"a": 0, 5: 0}, {"a": 0}),
    "attribute": (Attr(X, "a"), Slots(5), 3),
    "attribute of module": (Attr(X, "a"), types.ModuleType("m"), types.ModuleType("n")),
    "instance dict": (DictAttr(X, "a"), Box(a=5), Box(b=5)),
    "nested": (Item(DictAttr(Item(X, 0), "d"), "k"), [Box(d={"k": 5})], [Box(d={})]),
}
SOURCES["attribute of module"][1].a = 5


@pytest.mark.parametrize("name", SOURCES)
def test_sources(name):
    source, good, bad = SOURCES[name]
    tree = compile_guards([Guard(source, "equals", 5)], [source, X])
    for _ in range(3):
        assert tree.check({"x": good}) == (5, good)
        assert tree.check({"x": bad}) is None
    assert tree.explain_failure({"x": bad}) == f"{source} is not there any more"


def test_roots():
    cell = types.CellType(7)
    guards = [Guard(Global("g"), "equals", 1), Guard(Builtin("len"), "id", len), Guard(Cell("c"), "equals", 7),
              Guard(GlobalOf("math", "pi"), "equals", math.pi), Guard(TypeOf(X), "id", int),
              Guard(Pinned(math), "not_none")]
    tree = compile_guards(guards, [Cell("c"), Global("g")])
    frame = ({"x": 3}, {"g": 1}, vars(builtins), {"c": cell})
    assert tree.check(*frame) == (7, 1)
    cell.cell_contents = 8
    assert tree.check(*frame) is None and tree.explain_failure(*frame) == "C['c']: expected 7, got 8"
    del cell.cell_contents
    assert tree.check(*frame) is None
    cell.cell_contents = 7
    assert tree.check({"x": 3}, {"g": 2}, vars(builtins), {"c": cell}) is None
    assert tree.check({"x": 3}, {}, vars(builtins), {"c": cell}) is None
    assert tree.check(*frame) == (7, 1)


def test_what_the_program_makes_is_kept_and_what_it_has_is_watched():
    made, pinned = torch.ones(3), torch.ones(3)
    trees = [compile_guards([], [source]) for source in (Made(made), Pinned(pinned))]
    assert trees[0].check({}) == (made,) and trees[1].check({}) == (pinned,)
    address = id(made)
    del made, pinned
    gc.collect()
    (kept,) = trees[0].check({})
    assert id(kept) == address and torch.equal(kept, torch.ones(3))
    assert trees[1].check({}) is None and not trees[1].alive


def test_dict_walks_see_every_change():
    tree = compile_guards([Guard(Item(DictAttr(X, "d"), "k"), "type", int)], [Item(DictAttr(X, "d"), "k")])
    box, other = Box(d={"k": 1}), Box(d={"k": 10})
    seen = [tree.check({"x": box})]
    box.d["k"] = 2
    seen.append(tree.check({"x": box}))
    box.d = {"k": 3}
    seen.append(tree.check({"x": box}))
    seen.append(tree.check({"x": other}))
    box.__dict__ = {"d": {"k": 4}}
    seen.append(tree.check({"x": box}))
    del box.d["k"]
    seen.append(tree.check({"x": box}))
    box.d["k"] = "5"
    seen.append(tree.check({"x": box}))
    assert seen == [(1,), (2,), (3,), (10,), (4,), None, None]


def test_namespace_of_a_dict():
    space = {"f": len, "n": 5, "other": 0}
    tree = compile_guards([Guard(Pinned(space), "namespace", {"f": len, "gone": MISSING}),
                           Guard(Pinned(space), "namespace", {"n": 5})], [])
    assert tree.check({}) == ()
    space["other"] = 1
    assert tree.check({}) == ()
    space["gone"] = 1
    assert tree.check({}) is None
    del space["gone"]
    assert tree.check({}) == ()
    space["n"] = 6
    assert tree.check({}) is None and "was rebound" in tree.explain_failure({})


def test_namespace_of_the_frames_globals_is_checked_on_the_frame():
    mine = {"f": len}
    tree = compile_guards([Guard(Pinned(mine), "namespace", {"f": len})], [], f_globals=mine)
    assert tree.check({}, mine) == () and tree.check({}, {"f": len}) == () and tree.check({}, {"f": max}) is None


def test_namespace_of_a_class_goes_over_its_bases():
    class Base:
        def f(self):
            pass

    class Child(Base):
        pass

    tree = compile_guards([Guard(Pinned(Child), "namespace", {"f": Base.f, "g": MISSING})], [])
    assert tree.check({}) == ()
    Child.unrelated = 1
    assert tree.check({}) == () == tree.check({})
    Base.g = 1
    assert tree.check({}) is None
    del Base.g
    assert tree.check({}) == ()
    Child.f = lambda self: None
    assert tree.check({}) is None


def test_same_and_distinct():
    a, b = Local("a"), Local("b")
    one, two = Box(), Box()
    tree = compile_guards([Guard(a, "same", b)], [])
    assert tree.check({"a": one, "b": one}) == () and tree.check({"a": one, "b": two}) is None
    assert "two objects" in tree.explain_failure({"a": one, "b": two})
    tree = compile_guards([Guard(None, "distinct", [a, b])], [])
    assert tree.check({"a": one, "b": one}) is None and tree.check({"a": one, "b": two}) == ()
    many = [Item(X, i) for i in range(20)]
    tree = compile_guards([Guard(None, "distinct", many)], [])
    boxes = [Box() for _ in range(20)]
    assert tree.check({"x": boxes}) == ()
    boxes[3] = boxes[17]
    assert tree.check({"x": boxes}) is None and "one object" in tree.explain_failure({"x": boxes})


def test_near_and_cheap_checks_come_first():
    """A call with another type must not pay for the walk through the whole model, nor run a user's predicate."""
    ran = []
    guards = [Guard(X, "callable", lambda x: ran.append(x) or True), Guard(Item(Local("m"), "deep"), "type", int),
              type_of("x")]
    tree = compile_guards(guards, [])
    assert tree.check({"x": "text", "m": {}}) is None and ran == []
    assert tree.failure({"x": "text", "m": {}})[0] == 2
    assert tree.check({"x": 1, "m": {"deep": 1}}) == () and ran == [1]


def test_the_users_line_is_named():
    tree = compile_guards([Guard(X, "type", int, (("a.py", 1, "outer"), ("b.py", 7, "inner")))], [])
    assert tree.explain_failure({"x": "s"}) == "L['x'] is a str, expected int (assumed at b.py:7 in inner)"


def test_unfit_guards_are_refused():
    with pytest.raises(GuardError):
        compile_guards([Guard(X, "nonsense", 1)], [])
    with pytest.raises(GuardError):
        compile_guards([], [GlobalOf("no.such.module", "x")])
    with pytest.raises(TypeError):
        compile_guards([Guard(X, "len", "two")], [])


def test_missing_arguments_fail():
    tree = compile_guards([], [X])
    assert tree.check({}) is None and tree.check({"x": 1}) == (1,)


def test_why_missed_tells_of_every_variant():
    def f(n):
        return n

    cb = variant(types.FunctionType((lambda n, inputs: n).__code__, {}, "f"), equals("n"))
    g = _C.CompiledFunction(f, cb)
    assert [g(1), g(2)] == [1, 2]
    missed = why_missed(_C.entries(f), f.__code__, f, {"n": 3})
    assert [miss.text for miss in missed] == ["L['n']: expected 2, got 3", "L['n']: expected 1, got 3"]
