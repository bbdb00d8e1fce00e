"""Dicts of all kinds, their views, and sets."""

from __future__ import annotations

import collections
import types
import typing
from functools import partial

import torch

import framesmith
from tests.capture.values.harness import X, agree
from tests.programs import Programs

taken = Programs(agree)
broken = partial(taken, whole=False)


@taken(make=lambda: ({"a": 1, "b": X},), others=[lambda: ({"b": X, "a": 1},), lambda: ({"a": 1},), lambda: ({},)])
def argument(x, d):
    d["c"] = x + 1
    d.setdefault("a", 5)
    d.setdefault("z", [])
    d.update(q=1)
    d.update({"r": 2}, s=3)
    d.update([("t", 4)])
    d |= {"u": 5}
    n = d.pop("q")
    m = d.pop("nope", None)
    del d["r"]
    return d["c"], d.get("a"), d.get("n"), d.get("n", 3), n, m, "a" in d, "n" not in d, len(d), list(d), list(
        d.values()), \
        list(d.items()), d, {**d, "v": 1}, d | {"w": 1}, {"w": 1} | d, d == dict(d)


@taken(make=lambda: ({"a": 1, "b": 2, "c": 3},))
def order(x, d):
    d["a"] = d.pop("a")
    k = d.popitem()
    d["d"] = 4
    return x + 1, d, k, list(reversed(d)), list(reversed(d.items())), next(iter(d)), [*d], dict(sorted(d.items())), min(
        d), \
        max(d, key=d.get), sorted(d, key=d.__getitem__)


@taken(make=lambda: ({"a": 1, "b": 2},))
def views(x, d):
    k, v, i = d.keys(), d.values(), d.items()
    d["c"] = 3
    return x + 1, list(k), list(v), list(i), "c" in k, 3 in v, ("a", 1) in i, len(k), sorted(k & {"a", "z"}), sorted(
        k | {"z"}), \
        sorted(k - {"a"}), sorted(k ^ {"a", "z"}), k == {"a", "b", "c"}, \
        k.isdisjoint({"q"}), k <= {"a", "b", "c",
                                   "d"}, sorted(i & {("a", 1)}), isinstance(k, collections.abc.KeysView), {"a"} & k, \
        k - k, bool(v), k > {"a"}, repr(k), repr(i), repr(d)


@taken
def made(x):
    d = dict(a=1, b=x)
    e = dict([("p", 1)], q=2)
    f = dict(zip("ab", range(2)))
    g = dict.fromkeys("ab", 0)
    h = {i: i * 2 for i in range(3)}
    d["self"] = d
    j = d.copy()
    j.clear()
    return d["b"], d, e, f, g, h, j, {1: "a", True: "b", 1.0: "c"}, {(1, 2): 3}[1, 2], {None: 1}, len({}), dict(d), \
        {int: 1, torch.float32: 2}, {"a": {"b": {"c": 1}}}["a"]["b"]


@taken(make=lambda: ({1: "a", (2, 3): "b", None: "c", True and "t": "d", 2.5: "e", torch.float32: "f", int: "g",
                      X.device: "h"},))
def keys(x, d):
    return x + 1, d[1], d[2, 3], d[None], d["t"], d[2.5], d[torch.float32], d[int], d[1.0], d[True], [
        type(k) for k in d], \
        d.get(x.device), 3 in d, (2, 3) in d, d


@taken(make=lambda: ({"a": 1},), others=[lambda: ({"a": 2},), lambda: ({},), lambda: ({"b": 1},)])
def only_what_is_read(x, d):
    if "a" in d:
        return x * d["a"]
    return x


@taken
def errors(x):
    d = {"a": 1}

    def changed():
        for k in d:
            d[k + "z"] = 1

    def delete():
        del d["q"]

    out = []
    for make in (lambda: d["z"], lambda: d.pop("z"), lambda: {}.popitem(), delete, lambda: d.nope, lambda: d[[]],
                 lambda: {1: 2} + {},
        lambda: dict([1]), lambda: dict([(1, 2, 3)]),
                 lambda: {**5}, lambda: d | [("a", 1)], lambda: d < d, lambda: dict(5), changed, lambda: d.update(5),
                 lambda: (lambda a: a)(**{"b": 1}), lambda: (lambda **k: k)(**{1: 2}),
                 lambda: (lambda a, **k: k)(1, **{"a": 1}), lambda: hash(d)):
        try:
            out.append(make())
        except Exception as e:
            out.append((type(e), str(e)))
    return x + 1, out


@taken(make=lambda: (collections.OrderedDict(a=1, b=2, c=3),))
def ordered(x, d):
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    first = d.popitem(last=False)
    e = collections.OrderedDict([("p", x)])
    e["q"] = d
    return x + 1, d, first, e, d == collections.OrderedDict([("b", 2), ("a", 1)]), d == {"a": 1, "b": 2}, list(
        reversed(d)), \
        d | {"z": 1}, \
        isinstance(d, dict), repr(d), e.copy(), \
        d == collections.OrderedDict([("a", 1), ("b", 2)])


@taken(make=lambda: (collections.defaultdict(list, a=[1]),),
    others=[lambda: (collections.defaultdict(list),), lambda: (collections.defaultdict(None, a=[1], b=[], c=0),)])
def default_dicts(x, d):
    d["a"].append(2)
    d["b"].append(x)
    n = d.get("zz")
    e = collections.defaultdict(int)
    for c in "hello":
        e[c] += 1
    f = collections.defaultdict(lambda: {"n": 0})
    f["k"]["n"] += 1
    return x + 1, d, n, e, "zz" in d, dict(f), d.default_factory, e.default_factory, e.copy(), repr(e), len(d), d[
        "c"], d


@taken
def counters(x):
    c = collections.Counter("hello")
    c.update("lo")
    d = collections.Counter(a=1, l=5)
    e = c + d
    c["zz"] += 1
    return x + 1, c, c["l"], c["none"], c.most_common(2), e, c - d, c & d, c | d, sorted(c.elements()), c.total(), len(
        c), dict(d), \
        collections.Counter([1, 1, 2]), "h" in c, d == collections.Counter(a=1, l=5), \
        c.subtract("hh"), +c, repr(d)


@taken(make=lambda: (collections.Counter(a=1),),
       others=[lambda: (collections.Counter(a=2),), lambda: (collections.Counter(),)])
def counter_argument(x, c):
    c["a"] += 1
    c.update(["b", "b"])
    return x * c["a"], c, c["z"], c.most_common()


@taken(make=lambda: ({"a": 1}, {"b": 2, "a": 3}))
def chain_maps(x, d, e):
    m = collections.ChainMap(d, e)
    m["c"] = x
    n = m.new_child({"a": 9})
    return x + 1, m["b"], m["a"], d, n["a"], n.parents["a"], len(m), sorted(m), "c" in e, dict(m), m.maps, m.get(
        "zz", 1), list(n.items())


class Config(dict):
    """A dict read as attributes."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value

    def __missing__(self, key):
        return f"no {key}"


@taken(make=lambda: (Config(a=1, b=[2]),), others=[lambda: (Config(a=2, b=[2]),), lambda: (Config(b=[2]),)])
def attribute_dict(x, c):
    c.z = x
    c.b.append(3)
    d = Config(q=1)
    d.r = 5
    return x + 1, c["a"], c["nope"], c.get("nope"), c.b, c, d, d.q, len(c), "z" in c, {**d}, isinstance(c, dict), dict(
        d), list(c), \
        c == {"a": 1}, hasattr(c, "zzz"), d | {"s": 1}, c.keys()


class Upper(dict):
    """A dict with a subscript of its own."""

    def __getitem__(self, key):
        return super().__getitem__(key.upper())

    def __setitem__(self, key, value):
        super().__setitem__(key.upper(), value)

    def __contains__(self, key):
        return super().__contains__(key.upper())

    def __iter__(self):
        return reversed(list(super().__iter__()))


@taken(make=lambda: (Upper(A=1, B=2),))
def own_subscript(x, d):
    d["c"] = x
    return x + 1, d["a"], "b" in d, "z" in d, list(d), d.get("a"), d.get("A"), len(d), dict(d), d, list(d.items())


@taken(make=lambda: (collections.UserDict(a=1),))
def user_dict(x, d):
    d["b"] = x
    d.update(c=3)
    return x + 1, d["a"], len(d), "b" in d, list(d), d.data, d.get("q", 7), d, d.pop("a"), collections.UserDict(
        {"z": 1}) | {"y": 2}


@taken(make=lambda: (types.MappingProxyType({"a": 1}),),
    others=[lambda: (types.MappingProxyType({"a": 2}),), lambda: (types.MappingProxyType({"a": 1, "b": 2}),)])
def proxies(x, p):
    return x * p["a"], list(p), len(p), "a" in p, p.get("z"), dict(p), list(p.items()), isinstance(p, dict), \
        isinstance(p, collections.abc.Mapping), {**p}, p == {"a": 1}, next(iter(p.values())), next(iter(p), None), [
            *iter(p.items())]


class Movie(typing.TypedDict):
    """A typed dict."""

    name: str


@taken
def typed(x):
    m = Movie(name="a")
    return x + 1, m, type(m), m["name"], types.MappingProxyType({"a": 1})["a"]


# --- sets -------------------------------------------------------------------------------------------------------------
@taken(make=lambda: ({3, 1, 2},), others=[lambda: ({3, 1},), lambda: (set(),), lambda: ({1, 2, 9},)])
def set_argument(x, s):
    s.add(7)
    s.update([8, 9], (10,))
    s.discard(1)
    s.discard(99)
    s |= {20}
    s -= {9}
    return x + len(s), s, 7 in s, 1 in s, sorted(s), sorted(s | {100}), sorted(s & {7, 8}), sorted(s - {7}), sorted(
        s ^ {7, 100}), \
        s <= {7}, \
        s >= {7}, s < s, s == set(s), s.isdisjoint({0}), s.issubset(range(50)), s.issuperset([7]), \
        sorted(s.union([1], [2])), sorted(s.intersection([7, 8], {8})), sorted(s.difference([7])), \
        sorted(s.symmetric_difference([7])), sorted(s.copy()), s.copy() is s, sorted(frozenset(s)), bool(s)


@taken
def set_order(x):
    s = {"banana", "apple", "cherry", "date", "fig"}
    t = {30, 1, 17, 8, 64, 100}
    u = set()
    for i in (9, 1, 33, 17, 4):
        u.add(i)
    u.discard(33)
    t.remove(17)
    return x + 1, list(s), list(t), [*u], tuple(s | {"x"}), list(t & u), list(t - {1}), list(t ^ u), list(
        frozenset(s)), [k for k in s], \
        dict.fromkeys(t), ",".join(s), {i % 3 for i in range(9)}, \
        list({*t, *u}), repr(t), list(set("hello world")), t.pop(), t, sum(u), next(iter(s)), list(zip(s, t)), sorted(
            s), \
        list(map(str, t)), u.union(t).pop()


@taken(make=lambda: ({"b", "a", "c"}, frozenset({5, 1, 9})))
def set_iteration(x, s, f):
    for n in f:
        x = x * n
    t = list(s)
    s.add("d")
    return x + 1, t, [*f], max(f), hash(f) == hash(frozenset({1, 5, 9})), {f: 1}[f], sorted(f | {2}), sorted(
        f.union({2})), \
        sorted({2} | f), type({2} & f), \
        type(f & {2}), f == {1, 5, 9}, s


@broken(make=lambda: ({"b", "a", "c"},))
def order_after_a_change(x, s):
    s.add("d")
    s.discard("b")
    return x + 1, list(s), "".join(s | {"z"}), s


@taken
def set_errors(x):
    out = []
    for make in (lambda: {1}.remove(2), lambda: set().pop(), lambda: {[]}, lambda: {1} | [2], lambda: {1} < [1],
                 lambda: set(5),
        lambda: {1}[0], lambda: frozenset().add, lambda: {1} + {2},
                 lambda: hash({1}), lambda: {{1}}):
        try:
            out.append(make())
        except Exception as e:
            out.append((type(e), str(e)))
    return x + 1, out


@taken
def sets_of_tensors(x):
    y = x + 1
    s = {x, y}
    return x + 1, x in s, y in s, (x + 1) in s, len(s), {x: 1}[x], {id: 2}[id], len({x, x, y}), {y}.pop()


@broken
def order_of_tensors(x):
    y = x + 1
    return len([v.sum() for v in {x, y}])


class Key:
    """Hashed and compared by its own methods."""

    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return hash(self.n) + 1

    def __eq__(self, other):
        return isinstance(other, Key) and self.n == other.n


@taken(make=lambda: (Key(1),), others=[lambda: (Key(2),)])
def own_hash(x, k):
    d = {Key(1): "a", Key(2): "b"}
    d[Key(1)] = "c"
    return x + 1, d[k], d.get(Key(3)), len(d), k in d, len({Key(1), Key(1),
                                                            Key(2)}), Key(1) in [Key(1)], [v.n for v in d], d[Key(2)], \
        list(d.values())


@taken(make=lambda: ({Key(1): "a"},))
def own_hash_in_an_argument(x, d):
    d[Key(1)] = "b"
    d[Key(2)] = "c"
    return x + 1, d[Key(1)], [k.n for k in d], len(d)


@broken(make=lambda: ({"a": [1]}, {1, 2}))
def across_a_break(x, d, s):
    d["b"] = x
    s.add(3)
    v = d.items()
    framesmith.graph_break()
    d["c"] = 2
    s.discard(1)
    e = {"d": d}
    torch._dynamo.graph_break()
    e["d"]["a"].append(1)
    return x + 1, d, s, list(v), e["d"] is d


test_program = taken.test()
