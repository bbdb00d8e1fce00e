"""Steps that read one dict are not run again while it is unchanged: every change must be seen all the same."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from framesmith.capture.guards import compile_guards
from framesmith.capture.sources import DictAttr, Guard, Item, Local


class Thing:
    def __init__(self):
        self.size = 3
        self.name = "a"
        self.hooks = OrderedDict()
        self.parts = {"x": 1, "y": [1]}
        self.note = None


T = Local("t")
GUARDS = [
    Guard(T, "type", Thing),
    Guard(DictAttr(T, "size"), "equals", 3),
    Guard(DictAttr(T, "name"), "equals", "a"),
    Guard(DictAttr(T, "note"), "none"),
    Guard(T, "not_hasattr", "absent"),
    Guard(DictAttr(T, "hooks"), "type", OrderedDict),
    Guard(DictAttr(T, "hooks"), "bool", False),
    Guard(DictAttr(T, "parts"), "type", dict),
    Guard(DictAttr(T, "parts"), "keys", ("x", "y")),
    Guard(Item(DictAttr(T, "parts"), "x"), "equals", 1),
    Guard(Item(DictAttr(T, "parts"), "y"), "len", 1),
]
INPUTS = [Item(DictAttr(T, "parts"), "y")]


class Other(Thing):
    pass


CHANGES = {
    "size": (lambda t: setattr(t, "size", 4), "L['t'].size: expected 3, got 4"),
    "type of a value": (lambda t: setattr(t, "size", 3.0), "L['t'].size: expected 3, got 3.0"),
    "None": (lambda t: setattr(t, "note", 0), "L['t'].note: expected None, got a int"),
    "new attribute": (lambda t: setattr(t, "absent", 0), "L['t'] has an attribute 'absent' of its own now"),
    "gone": (lambda t: delattr(t, "name"), "L['t'].name is not there any more"),
    "emptiness": (lambda t: t.hooks.update(a=1), "bool(L['t'].hooks): expected False, got True"),
    "another empty dict": (lambda t: setattr(t, "hooks", {}), "L['t'].hooks is a dict, expected OrderedDict"),
    "item": (lambda t: t.parts.update(x=2), "L['t'].parts['x']: expected 1, got 2"),
    "key": (lambda t: t.parts.update(z=2), "the keys of L['t'].parts changed: gained ['z']"),
    "length": (lambda t: t.parts["y"].append(2), "len(L['t'].parts['y']): expected 1, got 2"),
    "class": (lambda t: setattr(t, "__class__", Other), "L['t'] is a Other, expected Thing"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_change_is_seen_and_named(what):
    change, words = CHANGES[what]
    tree = compile_guards(GUARDS, INPUTS)
    t = Thing()
    for _ in range(3):
        assert tree.check({"t": t}) == (t.parts["y"],)
    change(t)
    for _ in range(2):
        assert tree.check({"t": t}) is None
        assert tree.explain_failure({"t": t}) == words


def test_unread_changes_are_not_seen():
    tree = compile_guards(GUARDS, INPUTS)
    t = Thing()
    for i in range(4):
        assert tree.check({"t": t}) == (t.parts["y"],)
        t.extra = i
        t.size = 3
        t.parts["y"] = [i]
    twin = Thing()
    assert tree.check({"t": twin}) == (twin.parts["y"],)
    assert tree.check({"t": t}) == (t.parts["y"],)


def test_emptiness_of_a_class_with_its_own_truth_is_asked_each_time():
    class Odd(dict):
        truth = False

        def __bool__(self):
            return self.truth

    t = Thing()
    t.hooks = Odd()
    tree = compile_guards([Guard(DictAttr(T, "hooks"), "type", Odd), Guard(DictAttr(T, "hooks"), "bool", False),
                           Guard(DictAttr(T, "size"), "equals", 3)], [])
    assert tree.check({"t": t}) == ()
    Odd.truth = True
    assert tree.check({"t": t}) is None


def test_sequences_are_walked_each_time():
    tree = compile_guards([Guard(Item(T, 0), "equals", 1), Guard(Item(T, 1), "equals", 2)], [Item(T, 1)])
    for box in ([1, 2], (1, 2), {0: 1, 1: 2}, [1, 2]):
        assert tree.check({"t": box}) == (2,)
    assert tree.check({"t": [1, 3]}) is None
    assert tree.check({"t": {0: 1}}) is None
