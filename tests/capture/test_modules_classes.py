"""Module classes that bend the rules, wrappers, parametrisation, and compiled modules among plain ones."""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import warnings
from types import MethodType
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tests.capture.scenarios import check
from tests.programs import Programs

suite = Programs(check)
X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Doubled(nn.Module):
    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4) if inner is None else inner

    def forward(self, x):
        return self.inner(x) * 2


@suite
def getattr_that_forwards_to_the_inner_module(c):
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return self.inner(x) + self.bias + self.in_features

    m = Wrapper(nn.Linear(4, 4))
    run = c(m)
    out = [run(X)]
    m.inner = nn.Linear(4, 4)
    return out, run(X), run.out_features


@suite
def getattr_and_getattribute_that_compute(c):
    class Odd(nn.Module):
        def __getattr__(self, name):
            if name.startswith("times_"):
                return lambda x: x * int(name[6:])
            return super().__getattr__(name)

        def __getattribute__(self, name):
            if name == "secret":
                return 42
            return super().__getattribute__(name)

        def forward(self, x):
            try:
                return self.nothing
            except AttributeError as e:
                return self.times_3(x) + self.secret, str(e)

    return c(Odd())(X)


class Slotted:
    __slots__ = ("scale", "reads")

    def __init__(self):
        Slotted.scale.__set__(self, 2.0)
        Slotted.reads.__set__(self, 0)


class Covered(Slotted):
    scale = property(lambda self: super().scale + 1)


class Hidden(Slotted):
    __slots__ = ("scale",)

    def doubled(self):
        return super().scale * 2


class Counting(Slotted):
    __slots__ = ()

    def __getattribute__(self, name):
        if name == "scale":
            object.__setattr__(self, "reads", object.__getattribute__(self, "reads") + 1)
        return object.__getattribute__(self, name)


def each_slot_twice(c, f, given):
    run = c(f)
    out = [run(X), run(X)]
    Slotted.scale.__set__(given, 3.0)
    return *out, run(X), run(X), Slotted.reads.__get__(given)


@suite
def a_slot_under_a_property(c):
    given = Covered()
    return each_slot_twice(c, lambda x: x * given.scale, given)


@suite
def a_slot_under_another_of_its_name(c):
    given = Hidden()
    given.scale = 5.0
    return each_slot_twice(c, lambda x: x * given.doubled(), given)


@suite
def a_slot_behind_a_getattribute(c):
    given = Counting()
    return each_slot_twice(c, lambda x: x * given.scale, given)


@suite
def setattr_and_delattr_overrides(c):
    class Logged(nn.Module):
        def __init__(self):
            object.__setattr__(self, "log", [])
            super().__init__()
            self.part = nn.Linear(4, 4)

        def __setattr__(self, name, value):
            self.log.append(name)
            super().__setattr__(name, value * 2 if name == "n" else value)

        def __delattr__(self, name):
            self.log.append("-" + name)
            super().__delattr__(name)

        def forward(self, x):
            self.n = 4
            self.last = x
            del self.last
            return self.part(x) * self.n

    m = Logged()
    run = c(m)
    m.log.clear()
    return run(X), m.log[:], run(X), m.log, m.n


@suite
def call_overrides(c):
    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def __call__(self, x, *args, **kwargs):
            self.calls += 1
            return super().__call__(x + 1, *args, **kwargs)

        def forward(self, x, y=0):
            return x * 2 + y

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Calls()

        def forward(self, x):
            return self.part(x, y=3)

    m, inner = Outer(), Calls()
    return c(m)(X), m.part.calls, c(inner)(X), inner.calls


@suite
def forward_replaced_on_the_instance(c):
    m = nn.Sequential(nn.Linear(4, 4), Doubled())
    run = c(m)
    out = [run(X)]
    m[0].forward = lambda x: x * 5
    out.append(run(X))
    m[1].forward = MethodType(lambda self, x: self.inner(x) - 1, m[1])
    out.append(run(X))
    old = m[1].forward
    m[1].forward = lambda x: old(x) * 10
    out.append(run(X))
    m.forward = lambda x: x + 100
    out.append(run(X))
    del m.forward, m[0].forward, m[1].forward
    out.append(run(X))
    return out


@suite
def forward_replaced_on_the_class(c):
    class Part(nn.Module):
        def forward(self, x):
            return x + 1

    run = c(nn.Sequential(Part(), Part()))
    out = [run(X)]
    Part.forward = lambda self, x: x * 3
    out.append(run(X))
    return out


@suite(graphs=1)
def forward_wrapped_by_a_decorator(c):
    def twice(fn):
        @functools.wraps(fn)
        def wrapper(self, *args, **kwargs):
            return fn(self, fn(self, *args, **kwargs))

        return wrapper

    class Part(nn.Module):
        @twice
        @torch.no_grad()
        def forward(self, x):
            return x * 2 + 1

    return c(Part())(X)


@suite
def class_of_an_instance_is_changed(c):
    class Other(nn.ReLU):
        def forward(self, x):
            return x - 7

    m = nn.Sequential(nn.ReLU())
    run = c(m)
    out = [run(X)]
    m[0].__class__ = Other
    return out, run(X)


@suite(graphs=1)
def a_module_that_contains_itself_through_a_wrapper(c):
    class Link:
        def __init__(self, to):
            self.to = to

    class Tree(nn.Module):
        def __init__(self, depth):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.child = Tree(depth - 1) if depth else None
            if self.child is not None:
                self.child.parent = Link(self)

        def forward(self, x):
            x = self.lin(x)
            if self.child is not None:
                assert self.child.parent.to is self
                x = self.child(x) + self.child.parent.to.lin.bias
            return x

    return c(Tree(3))(X)


@suite
def partials_of_modules_and_of_their_classes(c):
    class Block(nn.Module):
        def __init__(self, norm=nn.LayerNorm, act=nn.GELU):
            super().__init__()
            self.norm, self.act = norm(4), act()
            self.run = functools.partial(self.step, scale=2)

        def step(self, x, scale=1):
            return self.act(self.norm(x)) * scale

        def forward(self, x):
            return self.run(x) + functools.partial(self.norm, X)().sum()

    m = Block(functools.partial(nn.LayerNorm, eps=0.1), functools.partial(nn.LeakyReLU, 0.3))
    call = c(functools.partial(m, X))
    return c(m)(X), call()


@suite
def spectral_and_weight_norm_in_eval(c):
    m = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)),
                      parametrizations.spectral_norm(nn.Linear(4, 4))).eval()
    run = c(m)
    out = [run(X)]
    m[0].parametrizations.weight.original0.mul_(2)
    return out, run(X)


@suite
def old_weight_norm(c):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m = nn.utils.weight_norm(nn.Linear(4, 4))
    run = c(m)
    out = [run(X)]
    m.weight_g.mul_(3)
    out.append(run(X))
    nn.utils.remove_weight_norm(m)
    return out, run(X)


@suite
def parametrised_weights(c):
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).T

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, w):
            return w * self.scale

    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    run = c(m)
    out = [run(X)]
    parametrize.register_parametrization(m[0], "weight", Symmetric())
    out.append(run(X))
    parametrize.register_parametrization(m[0], "weight", Scaled())
    out.append(run(X))
    m[0].parametrizations.weight[1].scale.fill_(5)
    out.append(run(X))
    parametrize.remove_parametrizations(m[0], "weight")
    return out, run(X), type(m[0]).__name__


@suite
def parametrisation_cached(c):
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).T

    m = nn.Linear(4, 4)
    parametrize.register_parametrization(m, "weight", Symmetric())

    def both(x):
        with parametrize.cached():
            return m(x) + m(x)

    return c(both)(X)


@suite
def deep_wrappers(c):
    class Delegates(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *inputs, **kwargs):
            return self.module(*inputs, **kwargs)

    m = Delegates(Delegates(Delegates(Doubled())))
    run = c(m)
    return run(X), run(x=X), list(run.state_dict())


@suite
def compiled_submodules_in_a_plain_model(c):
    m = nn.Sequential(nn.Linear(4, 4), Doubled(), nn.ReLU())
    m[1] = c(m[1])
    m[0] = c(m[0])
    out = [m(X), isinstance(m[1], Doubled), list(m.state_dict())]
    m[1].inner.weight.zero_()
    out.append(m(X))
    m.train(False)
    return out, m[1].training, m(X)


@suite
def compiled_submodule_in_a_compiled_model(c):
    inner = Doubled()
    m = nn.Sequential(c(inner), nn.Linear(4, 4), c(nn.Sequential(c(nn.ReLU()))))
    run = c(m)
    out = [run(X)]
    inner.inner = nn.Linear(4, 4)
    out.append(run(X))
    m[0].inner.bias.fill_(3)
    return out, run(X), c(run)(X)


@suite
def compiled_forward_and_compile_in_place(c):
    a, b = Doubled(), Doubled()
    a.forward = c(a.forward)
    b.inner.forward = c(b.inner.forward)
    m = nn.Sequential(a, b)
    return m(X), c(m)(X), m(X)


@suite
def copies_with_hooks_and_swapped_parts(c):
    m = nn.Sequential(Doubled(), nn.ReLU())
    m[0].register_forward_hook(lambda mod, args, out: out + mod.inner.bias)
    run = c(m)
    twin = copy.deepcopy(m)
    twin[0].inner.bias.fill_(2.0)
    other = c(twin)
    out = [run(X), other(X)]
    m[0], twin[0] = twin[0], m[0]
    return out, run(X), other(X)


@suite
def properties_and_descriptors(c):
    class Lazy:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, obj, owner=None):
            if obj is None:
                return self
            if self.name not in obj.__dict__:
                obj.__dict__[self.name] = torch.arange(4.0)
            return obj.__dict__[self.name]

    class Props(nn.Module):
        table = Lazy()
        scale = 3

        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))
            self._k = 1

        @property
        def doubled(self):
            return self.w * 2

        @property
        def k(self):
            return self._k

        @k.setter
        def k(self, value):
            self._k = value + 1

        @functools.cached_property
        def slow(self):
            return self.w.sum() + 1

        @staticmethod
        def half(x):
            return x / 2

        @classmethod
        def name(cls):
            return cls.__name__

        def forward(self, x):
            self.k = self.k + 1
            return self.half(x) * self.doubled + self.table + self.slow, self.k, self.name(), self.scale

    m = Props()
    run = c(m)
    out = [run(X), run(X)]
    m.scale = 9
    return out, run(X), m.k, m.slow, sorted(vars(m).keys() - vars(nn.Module()).keys())


@suite
def slots_generics_and_multiple_inheritance(c):
    class Mixin:
        def extra(self, x):
            return x + self.offset

    class Base(nn.Module):
        offset = 1

        def forward(self, x):
            return self.body(x)

    class Derived(Mixin, Base):
        def __init__(self, *args, **kwargs):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def body(self, x):
            return self.extra(self.lin(x))

        def forward(self, x):
            return super().forward(x) * 2, super().extra(x)

    m = Derived()
    run = c(m)
    out = [run(X)]
    Derived.offset = 5
    return out, run(X)


@suite
def apply_and_modes_inside_forward(c):
    class Inits(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9))

        def forward(self, x):
            names = []
            self.part.apply(lambda m: names.append(type(m).__name__))
            return self.part.eval()(x), names, self.part.training, self.training

    m = Inits()
    run = c(m)
    return run(X), run(X), m.part[1].training


@suite
def modules_as_arguments_and_results(c):
    def step(m, x, others=()):
        for o in others:
            x = o(x)
        return m(x), m, [type(o).__name__ for o in others]

    run = c(step)
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    y, same, names = run(a, X)
    z, other, more = run(b, X, (nn.ReLU(), nn.Tanh()))
    return y, same is a, names, z, other is b, more


@suite(graphs=1)
def one_variant_serves_modules_alike(c):
    run = c(lambda m, x: m(x))
    return [run(nn.Linear(4, 4), X) for _ in range(3)]


@suite(graphs=1)
def what_was_not_read_is_not_guarded(c):
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    run = c(m)
    out = [run(X)]
    m.note = "unread"
    m[0].other = 3
    m[0].register_buffer("unused", torch.ones(1))
    m.extra = 1
    out.append(run(X))
    return out


class Shared(nn.Module):
    act = nn.Tanh()
    scale = torch.tensor(3.0)
    calls: ClassVar[list] = []

    def forward(self, x):
        self.calls.append(len(self.calls))
        return self.act(x) * self.scale


@suite
def parts_of_the_class(c):
    Shared.calls.clear()
    Shared.act, Shared.scale = nn.Tanh(), torch.tensor(3.0)
    run, other = c(Shared()), c(Shared())
    out = [run(X), other(X)]
    Shared.act, Shared.scale = nn.ReLU(), torch.tensor(5.0)
    out.append(run(X))
    run.act = nn.Sigmoid()
    return out, run(X), other(X), Shared.calls[:]


@dataclasses.dataclass(eq=False)
class Declared(nn.Module):
    width: int = 4
    bias: bool = True
    log: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        super().__init__()
        self.lin = nn.Linear(self.width, self.width, bias=self.bias)

    def forward(self, x):
        self.log.append(self.width)
        return self.lin(x)


@suite
def declared_as_a_dataclass(c):
    m = Declared(bias=False)
    run = c(m)
    return run(X), run(X), m.log


MODEL: Any = None


@suite
def in_globals_and_closures(c):
    global MODEL
    MODEL = nn.Linear(4, 4)
    part = nn.ReLU()

    def step(x):
        return part(MODEL(x))

    run = c(step)
    out = [run(X)]
    MODEL = nn.Tanh()
    out.append(run(X))
    part = nn.Identity()
    return out, run(X)


@suite
def not_initialised(c):
    class Early(nn.Module):
        def forward(self, x):
            part = Half.__new__(Half)
            try:
                part.lin = nn.ReLU()
            except AttributeError as e:
                return x + 1, str(e)

    class Half(nn.Module):
        def __init__(self):
            self.lin = nn.ReLU()

    def make(x):
        try:
            Half()
        except AttributeError as e:
            return x, str(e), Early()(x)

    return c(make)(X)


@suite
def abstract_and_generic(c):
    T = TypeVar("T")

    class Base(nn.Module, abc.ABC, Generic[T]):
        __slots__ = ("slot",)

        @abc.abstractmethod
        def body(self, x): ...

        def forward(self, x):
            self.slot = x
            return self.body(self.slot)

    class Real(Base[int]):
        def body(self, x):
            return x * 2

    m = Real()
    return c(m)(X), m.slot


@suite
def forward_that_yields(c):
    class Yields(nn.Module):
        def forward(self, x):
            for k in range(3):
                yield x * k

    def total(m, x):
        return sum(m(x)), [y + 1 for y in m(x)]

    return c(total)(Yields(), X)


@suite
def empty_containers_are_false(c):
    class Maybe(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential()
            self.parts = nn.ModuleList()

        def forward(self, x):
            if self.down:
                x = self.down(x)
            return (x * 2, "none") if not self.parts else self.parts[0](x)

    m = Maybe()
    run = c(m)
    out = [run(X)]
    m.down.append(nn.ReLU())
    out.append(run(X))
    m.parts.append(nn.Tanh())
    return out, run(X)


@suite
def after_an_optimiser_step(c):
    m = nn.Linear(4, 4)
    run = c(m)
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    out = []
    for _ in range(3):
        out.append(run(X))
        with torch.enable_grad():
            opt.zero_grad()
            m(X).pow(2).sum().backward()
        opt.step()
    return out, run(X)


test_classes = suite.test()
