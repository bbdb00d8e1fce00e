"""Small programs whose state the state net changes between two calls. `PROGRAMS`: by name, what gives a callable and
its inputs.

The file is executed anew for each world, so that globals and classes are the world's own.
"""

import dataclasses
import enum
import functools
import math
import os
import types
from collections import OrderedDict, namedtuple

import torch
import torch.nn.functional as F
from torch import nn

PROGRAMS = {}
SCALE = 1.5
FLAG = True
NAME = "gelu"
STEPS = [1.0, 2.0, 3.0]
TABLE = {"a": 1.0, "b": 2.0}
NAMES = {"x", "y"}
OFFSET = torch.arange(4.0)
Pair = namedtuple("Pair", "left right")
PAIR = Pair(1.0, 2.0)
HELPERS = types.ModuleType("helpers")
HELPERS.factor = 3.0
HELPERS.table = {"k": [1.0, 2.0]}


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


MODE = Mode.FAST


@dataclasses.dataclass
class Config:
    width: float = 2.0
    act: str = "relu"
    inner: list = dataclasses.field(default_factory=lambda: [1.0, 2.0])
    mode: Mode = Mode.SLOW
    bias: bool = True


@dataclasses.dataclass(frozen=True)
class Frozen:
    eps: float = 1e-3
    sizes: tuple = (4, 4)


def program(make):
    PROGRAMS[make.__name__] = make
    return make


def helper(x, by=2.0, *, plus=1.0):
    return x * by + plus


def act(x, name):
    return F.relu(x) if name == "relu" else torch.tanh(x) if name == "tanh" else F.gelu(x)


@program
def linear():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), (torch.randn(2, 4),)


@program
def convolution():
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
                         nn.AvgPool2d(2)), (torch.randn(2, 2, 4, 4),)


class Attention(nn.Module):
    heads = 2

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.out = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.1)
        self.causal = False
        self.register_buffer("mask", torch.zeros(3, 3))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x):
        q, k, v = map(self.split, self.qkv(x).chunk(3, -1))
        mask = None if self.causal else self.mask
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        return self.drop(self.out(y.transpose(1, 2).flatten(2)))


@program
def attention():
    return Attention(), (torch.randn(1, 3, 4),)


@program
def function():
    cell, note = 2.0, [1.0]

    def inner(x, by=0.5):
        return helper(x, by) + note[-1] * cell

    def f(x, n=2, *, scale=3.0):
        y = inner(x) * n + scale
        if FLAG:
            y = y * SCALE
        return act(y, NAME) + OFFSET

    return f, (torch.randn(2, 4),)


@program
def containers():
    def f(x):
        y = x
        for s in STEPS:
            y = y * s
        for key, v in TABLE.items():
            y = y + v if key == "a" else y - v
        if "x" in NAMES:
            y = y + len(NAMES)
        return y * PAIR.left + PAIR.right, len(STEPS), sorted(TABLE), TABLE.get("c", 0.0)

    return f, (torch.randn(4),)


@program
def library():
    def f(x):
        y = x * HELPERS.factor + HELPERS.table["k"][0] + math.sqrt(HELPERS.table["k"][1])
        if os.environ.get("STATE_NET", "no") == "yes":
            y = y + 1
        if os.environ.get("STATE_NET_2"):
            y = y + 2
        return torch.sin(y).add(1).abs() + max(2, len(STEPS)), MODE is Mode.FAST, MODE.name, MODE.value, Frozen().eps

    return f, (torch.randn(4),)


class Counter:
    total = 0
    step = 1

    def __init__(self):
        self.calls = 0
        self.history = []
        self.weights = {"w": torch.ones(4), "b": torch.zeros(4)}

    @property
    def double(self):
        return self.step * 2

    @staticmethod
    def shift(x):
        return x + 1

    @classmethod
    def of(cls, x):
        return x * cls.step

    def __getattr__(self, name):
        if name == "lazy":
            return 7.0
        raise AttributeError(name)

    def __call__(self, x):
        self.calls += self.step
        self.history.append(self.calls)
        Counter.total += 1
        x = self.of(self.shift(x)) * self.weights["w"] + self.weights["b"]
        return x * self.double + self.lazy, self.calls, hasattr(self, "extra")


@program
def counting():
    counter = Counter()
    return lambda x: counter(x), (torch.randn(4),)


class Scale:
    def __init__(self, by):
        self.by = by

    def __get__(self, obj, kind=None):
        return self.by if obj is None else self.by + obj.base


class Described:
    scale = Scale(2.0)
    __slots__ = ("base", "tag")

    def __init__(self):
        self.base = 1.0

    def __len__(self):
        return 3

    def __bool__(self):
        return self.base > 0

    def __eq__(self, other):
        return isinstance(other, Described)

    __hash__ = None


@program
def descriptors():
    described = Described()

    def f(x):
        y = x * described.scale + len(described)
        return (y if described else -y), getattr(described, "tag", None), described == 3

    return f, (torch.randn(4),)


class Configured(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.frozen = Frozen()
        self.options = {"residual": True, "scale": 2.0}
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.norms = nn.ModuleDict({"a": nn.LayerNorm(4), "b": nn.Identity()})
        self.gamma = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))])
        self.register_buffer("seen", torch.zeros(()))
        self.fn = torch.tanh

    @property
    def depth(self):
        return len(self.layers)

    def forward(self, x, flag=False):
        self.seen += 1
        for layer in self.layers:
            y = act(layer(x), self.config.act) * self.config.width
            x = x + y if self.options["residual"] else y
        for norm in self.norms.values():
            x = norm(x) + self.frozen.eps
        if self.config.mode is Mode.SLOW and not flag:
            x = x * self.gamma[0] + self.gamma[1]
        return self.fn(x) * self.depth + sum(self.config.inner), self.training


@program
def configured():
    return Configured(), (torch.randn(2, 4),)


@program
def recurrent():
    return nn.LSTM(4, 4, batch_first=True), (torch.randn(2, 3, 4),)


@program
def normed():
    return nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.LayerNorm(4),
                         nn.Embedding(5, 4).weight.__class__ and nn.Tanh()), (
        torch.randn(3, 4),)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.emb.weight
        self.extra = [torch.ones(4), nn.Linear(4, 4)]
        self.hook_calls = 0

    def forward(self, i):
        x = self.emb(i) + self.extra[0]
        x = self.extra[1](x)
        return self.head(x), self.head.weight is self.emb.weight, self.head.weight.requires_grad


@program
def tied():
    return Tied(), (torch.tensor([0, 3, 5]),)


class Base(nn.Module):
    gain = 2.0

    def pre(self, x):
        return x + 1

    def forward(self, x):
        return self.pre(x) * self.gain


class Derived(Base):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return super().forward(self.lin(x)) + super().pre(x)

    def extra_repr(self):
        return "derived"


@program
def derived():
    return Derived(), (torch.randn(2, 4),)


@program
def breaking():
    total = []

    def f(x):
        y = x * SCALE
        total.append(float(y.sum()))
        if y.sum() > 0:
            y = y + len(total)
        return helper(y) * TABLE["a"]

    return f, (torch.ones(4),)


@program
def writing():
    state = {"buffer": torch.zeros(4), "n": 0}

    def f(x):
        state["buffer"].add_(x)
        state["n"] += 1
        print("step", state["n"], NAME)
        return state["buffer"] * SCALE, state["n"]

    return f, (torch.ones(4),)


@program
def partials():
    scaled = functools.partial(helper, by=3.0)
    order = OrderedDict(a=1.0, b=2.0)

    def f(x):
        y = scaled(x)
        for i, (_, v) in enumerate(order.items()):
            y = y * v + i
        return y, list(order), [s for s in STEPS if s > 1]

    return f, (torch.randn(4),)


@program
def modes():
    def f(x):
        y = x * 2 + torch.ones(4) * torch.full((), 0.5)
        z = torch.arange(4) / 3
        if torch.is_grad_enabled():
            y = y + 1
        with torch.no_grad():
            w = y.detach() + 1
        set_to = torch.get_default_dtype(), torch.is_inference_mode_enabled()
        return y @ y, w, z.dtype, *set_to, x.requires_grad, x.dtype, x.stride()

    return f, (torch.randn(4),)
