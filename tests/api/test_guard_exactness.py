"""Guards cover what was read and nothing else: each related change compiles anew and is right, unrelated ones do not
compile."""

import types
from collections import OrderedDict
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import framesmith
from framesmith.testing import CompileCounter

X = torch.randn(3, 4)
SCALE = 2.0
TABLE = {"a": 1.0, "b": 2.0}
UNREAD = 1
HELPERS = types.ModuleType("helpers")
HELPERS.factor = 3.0
HELPERS.other = 1


def helper(x, by=2.0):
    return x * by


class Config:
    kind = "plain"
    unread = 0

    def __init__(self):
        self.width = 3
        self.name = "c"

    @property
    def double(self):
        return self.width * 2

    def apply(self, x):
        return x + self.width


@dataclass
class Data:
    size: int = 2
    rest: list = field(default_factory=lambda: [1, 2])


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a, self.b = 1.0, 2.0


class Sub(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.flag = True
        self.calls = [1, 2]
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        return self.drop(self.lin(x) * self.scale if self.flag else self.lin(x))


def setter(name, value):
    return lambda o: setattr(o, name, value)


def globally(name, value):
    return lambda _: globals().__setitem__(name, value)


def closure(a=1.0, b=2.0):
    def f(x, o):
        return x * a

    def set_a(value):
        nonlocal a
        a = value

    def set_b(value):
        nonlocal b
        b = value

    def g():
        return b

    f.set_a, f.set_b, f.g = set_a, set_b, g
    return f


CLOSED = closure()


def defaults(x, o, by=2.0, *, plus=1.0):
    return x * by + plus


def uses_defaults(x, o):
    return defaults(x, o)


def with_attribute():
    def f():
        return None

    f.by = 2.0
    return f


def in_order(x, o):
    for k, v in o.items():
        x = x * v + len(k)
    return x


def modes(x, o):
    return x.sum() * 2


# name: (function of (x, o), maker of o, changes that must compile anew, changes that must not)
CASES = {
    "global": (lambda x, o: x * SCALE, lambda: None, [globally("SCALE", 3.0)],
               [globally("UNREAD", 7), globally("NEW", 1)]),
    "global dict item": (
        lambda x, o: x * TABLE["a"], lambda: None, [lambda _: TABLE.update(a=5.0)],
        [lambda _: TABLE.update(b=9.0), lambda _: TABLE.update(z=0.0)]),
    "module": (
        lambda x, o: x * HELPERS.factor, lambda: None, [lambda _: setattr(HELPERS, "factor", 4.0)],
        [lambda _: setattr(HELPERS, "other", 4.0)]),
    "function": (
        lambda x, o: helper(x), lambda: None, [lambda _: setattr(helper, "__defaults__", (5.0,))],
        [lambda _: setattr(helper, "tag", 1)]),
    "function's defaults": (
        uses_defaults, lambda: None,
        [lambda _: setattr(defaults, "__defaults__", (7.0,)),
         lambda _: setattr(defaults, "__kwdefaults__", {"plus": 3.0})], []),
    "function's code": (
        lambda x, o: HELPERS.fn(x), lambda: setattr(HELPERS, "fn", lambda x: x + 1),
        [lambda _: setattr(HELPERS, "fn", lambda x: x + 2)],
        []),
    "function attribute": (
        lambda x, o: x * o.by + (1 if hasattr(o, "plus") else 2), lambda: with_attribute(),
        [setter("by", 3.0), setter("plus", 1)], [setter("note", 3), setter("__doc__", "none")]),
    "closure": (lambda x, o: CLOSED(x, o), lambda: None, [lambda _: CLOSED.set_a(4.0)], [lambda _: CLOSED.set_b(9.0)]),
    "attribute": (
        lambda x, o: x * o.width, Config, [setter("width", 5), setter("width", 5.0)],
        [setter("name", "d"), setter("new", 1), setter("width", 3)]),
    "class attribute": (
        lambda x, o: x * len(o.kind), Config, [lambda o: setattr(type(o), "kind", "x"), setter("kind", "own")],
        [lambda o: setattr(type(o), "unread", 1), setter("name", "d")]),
    "property": (
        lambda x, o: x * o.double, Config,
        [setter("width", 7), lambda o: setattr(type(o), "double", property(lambda self: 11))], [setter("name", "z")]),
    "method": (lambda x, o: o.apply(x), Config, [setter("width", 9), setter("apply", lambda x: x * 100)],
               [setter("name", "z")]),
    "hasattr": (lambda x, o: x + 1 if hasattr(o, "extra") else x - 1, Config, [setter("extra", 1)],
                [setter("another", 1)]),
    "subclasses": (
        lambda x, o: x * len(o.__subclasses__()), lambda: type("Root", (), {}),
        [lambda o: setattr(o, "kid", type("Kid", (o,), {}))],
        [lambda o: setattr(o, "note", 1)]),
    "slots": (lambda x, o: x * o.a, Slotted, [setter("a", 3.0)], [setter("b", 5.0)]),
    "dataclass": (lambda x, o: x * o.size, Data, [setter("size", 3)], [setter("rest", []), lambda o: o.rest.append(1)]),
    "list item": (lambda x, o: x * o[0], lambda: [1, 2], [lambda o: o.__setitem__(0, 3)], []),
    "list length": (lambda x, o: x * len(o), lambda: [1, 2], [lambda o: o.append(3)], [lambda o: o.__setitem__(0, 9)]),
    "list loop": (lambda x, o: x * sum(o), lambda: [1, 2], [lambda o: o.append(3), lambda o: o.__setitem__(0, 4)], []),
    "dict item": (
        lambda x, o: x * o["a"], lambda: {"a": 1, "b": 2}, [lambda o: o.update(a=2)],
        [lambda o: o.update(b=3), lambda o: o.update(c=3)]),
    "dict get": (
        lambda x, o: x * o.get("q", 5), lambda: {"a": 1}, [lambda o: o.update(q=2)],
        [lambda o: o.update(a=3), lambda o: o.update(c=3)]),
    "dict keys": (in_order, lambda: {"a": 1, "bb": 2}, [lambda o: o.update(c=1), lambda o: o.update(a=o.pop("a"))], []),
    "ordered dict": (in_order, lambda: OrderedDict(a=1, bb=2), [lambda o: o.move_to_end("a"), lambda o: o.update(c=2)],
                     []),
    "in": (
        lambda x, o: x * 2 if "a" in o else x * 3, lambda: {"a": 1}, [lambda o: o.pop("a")],
        [lambda o: o.update(b=3), lambda o: o.update(a=9)]),
    "set": (lambda x, o: x * 2 if 3 in o else x * 3, lambda: {1, 2}, [lambda o: o.add(3)], []),
    "type": (
        lambda x, o: x * 2 if type(o) is Config else x * 3, Config, [setter("__class__", type("Kid", (Config,), {}))],
        [setter("width", 1)]),
    "module flag": (
        lambda x, o: o(x), lambda: Sub().eval(),
        [setter("flag", False), lambda o: o.drop.register_forward_hook(lambda *a: None),
         lambda o: setattr(o.drop, "training", True)],
        [setter("unread", 1), lambda o: o.calls.append(1), setter("training", True)]),
    "module weights": (
        lambda x, o: o(x), lambda: Sub().eval(),
        [lambda o: setattr(o.lin, "bias", None),
         lambda o: o.double().float() and o.lin.weight.data.__class__ and o.to(torch.float64)],
        [lambda o: o.lin.weight.data.mul_(2), lambda o: setattr(o.lin, "weight", nn.Parameter(torch.randn(4, 4)))]),
    "modules": (
        lambda x, o: o(x), lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(),
        [lambda o: o.append(nn.Tanh()), lambda o: o.__setitem__(1, nn.Tanh())],
        [setter("unread", 1), lambda o: setattr(o[0], "note", 1)]),
    "submodule of a list": (
        lambda x, o: o[1](x), lambda: nn.ModuleList([nn.Linear(4, 4), nn.ReLU()]),
        [lambda o: o.__setitem__(1, nn.Tanh())],
        [lambda o: setattr(o[0], "note", 1)]),
}


def cases():
    for name, (_, _, related, unrelated) in CASES.items():
        yield from ((name, "related", i) for i in range(len(related)))
        yield from ((name, "unrelated", i) for i in range(len(unrelated)))


@pytest.fixture(autouse=True)
def state():
    saved = dict(globals()), dict(TABLE), dict(HELPERS.__dict__), dict(
        Config.__dict__), helper.__defaults__, defaults.__defaults__
    kw = dict(defaults.__kwdefaults__)
    CLOSED.set_a(1.0)
    yield
    g, table, helpers, config, helper.__defaults__, defaults.__defaults__ = saved
    defaults.__kwdefaults__ = kw
    globals().update(g)
    TABLE.clear()
    TABLE.update(table)
    HELPERS.__dict__.update(helpers)
    for name in ("kind", "unread", "double", "apply"):
        setattr(Config, name, config[name])


@pytest.mark.parametrize(("name", "which", "number"), list(cases()), ids=lambda v: str(v))
def test_change(name, which, number):
    fn, make, related, unrelated = CASES[name]
    counter = CompileCounter()
    compiled = framesmith.compile(fn, backend=counter)
    o = make()
    for _ in range(2):
        assert torch.equal(compiled(X, o), fn(X, o))
    assert counter.frame_count == 1
    (related if which == "related" else unrelated)[number](o)
    if name == "module weights" and which == "related" and number == 1:
        x = X.double()
    else:
        x = X
    torch.manual_seed(0)
    expected = fn(x, o)
    torch.manual_seed(0)
    assert torch.equal(compiled(x, o), expected)
    assert counter.frame_count == (2 if which == "related" else 1)
