"""What CPython's own tests found about dicts and sets: keys by the program's own hash and equality, views,
arguments."""

import collections
import functools
import sys

import framesmith
from tests.capture.suite import kept, said, twice
from tests.programs import Programs

program = Programs(functools.partial(twice, shown=repr))


class Counting:
    def __init__(self):
        self.hashed = self.compared = 0

    def __hash__(self):
        self.hashed += 1
        return 42

    def __eq__(self, other):
        self.compared += 1
        return self is other


class Failing:
    fail = False

    def __hash__(self):
        if self.fail:
            raise LookupError("now")
        return 42


class Like:
    def __init__(self, text):
        self.text = text

    def __hash__(self):
        return hash(self.text)

    def __eq__(self, other):
        return self.text == (other.text if isinstance(other, Like) else other)

    def __repr__(self):
        return f"like {self.text}"


@program
def hashes_are_asked_for_once():
    a, b = Counting(), Counting()
    d = {a: 5}
    d.setdefault(b, [])
    s = {a}
    s.add(b)
    framesmith.graph_break()
    return a.hashed, b.hashed, a.compared + b.compared, len(d), len(s)


@program
def a_hash_that_fails_later():
    x = Failing()
    d = {x: 42}
    x.fail = True
    framesmith.graph_break()
    return list(d.values()), said(lambda: d.setdefault(x, []), lambda: x in d, lambda: {x})


def look(d):
    return d.get("c"), d.get(Like("c")), d.get("ke" + "y"), "c" in d, Like("key") in d, [*d], d.pop(
        Like("c"), None), len(d)


@program
def keys_like_text():
    plain, own = {"key": 42, "c": 44}, {"key": 42, Like("c"): 44, (Like("d"), 1): 2}
    framesmith.graph_break()
    first = look(dict(plain)), [repr(look(dict(own)))], own[Like("d"), 1], hash(Like("c")) == hash("c")
    framesmith.graph_break()
    s = {Like("a"), (Like("b"), 3), frozenset([Like("e")])}
    framesmith.graph_break()
    return first, Like("a") in s, ("b", 3) in s, (Like("b"), 3) in s, frozenset([Like("e")]) in s


@program
def an_equality_that_changes_the_dict():
    class Clearing:
        def __hash__(self):
            return 0

        def __eq__(self, other):
            from_.clear()
            return False

    from_ = dict.fromkeys(range(1, 40), 0)
    from_[Clearing()] = 0
    d = {Clearing(): 0, 1: 1}
    return said(lambda: d.update(from_))


@program
def an_equality_that_deletes():
    class Deleting:
        where = None

        def __init__(self, value):
            self.value = value

        def __hash__(self):
            return 1

        def __eq__(self, other):
            if Deleting.where:
                d, key = Deleting.where
                Deleting.where = None
                del d[key]
            return self.value == other.value

    a, b = Deleting(1), Deleting(2)
    d = {a: 1}
    Deleting.where = (d, a)
    d[b] = 2
    return d == {b: 2}, len(d)


@program
def locals_for_exec():
    d, x = {}, Counting()
    d[x] = 1
    exec("d[2] = 3", locals())
    return len(d)


@program
def views():
    a, b, odd = {1: [2], 3: 4}, {3: 4, 1: [2]}, {1: Failing()}
    framesmith.graph_break()
    return (a.items() == b.items(), a.keys() == {1, 3}, a.keys() < {1, 2, 3}, a.items() >= {(3, 4)},
            (3, 4) in a.items(),
            (1, [2]) in a.items(), (1, 2, 3) in a.items(), 3 in a.items(), {1, 3} == a.keys(), 4 in a.values(),
            a.keys() == [1, 3],
            a.values() == a.values(), {(3, 4)} <= b.items(), odd.items() == {1: Failing()}.items(),
            a.items() != odd.items())


@program
def wrong_arguments():
    ordered = collections.OrderedDict
    return said(lambda: {}.update(1, 2), lambda: dict([], None), lambda: ordered([], None),
                lambda: collections.defaultdict(None, [], None),
                lambda: {}.popitem(42), lambda: ordered().popitem(), lambda: ordered().move_to_end(1), dict.fromkeys,
                lambda: {}.popitem(), lambda: ordered(a=1).popitem(False), lambda: ordered(a=1).popitem(last=False))


@program
def fromkeys_of_subclasses():
    class Named(dict):
        pass

    class Started(dict):
        def __init__(self):
            self["0"] = 1

    class Refusing(dict):
        def __setitem__(self, key, value):
            raise LookupError(key)

    framesmith.graph_break()
    return type(Named.fromkeys("ab")).__name__, Named().fromkeys("ab"), Started.fromkeys("ab", 2), said(
        lambda: Refusing.fromkeys([1]))


@program
def popitem_and_the_size():
    class Three:
        def __init__(self):
            self.x, self.y, self.z = 1, 2, 3

    a, b = vars(Three()), vars(Three())
    size = sys.getsizeof(a)
    framesmith.graph_break()
    return a.popitem(), sys.getsizeof(a) > size, a, b


@program
def partials_of_partials():
    inner, other = functools.partial(max, 1), functools.partial(max, 1)
    inner.attribute = 5
    framesmith.graph_break()
    outer = functools.partial(inner, 3)
    return outer.func is inner, outer.args, functools.partial(other, 2).args


test_keys = program.test()


def test_many_keys_are_not_guarded():
    def total(d):
        return sum(d.values()), len(d), d[3]

    fast = kept(total)
    for n in (10, 20_000):
        d = dict.fromkeys(range(n), 1)
        assert fast(d) == total(d)
