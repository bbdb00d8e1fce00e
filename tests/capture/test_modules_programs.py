"""What programs do to modules inside forward: they walk, name, change, count and compare them."""

from __future__ import annotations

import copy
import functools
import itertools
import weakref
from typing import Any

import torch
from torch import nn

from tests.capture.scenarios import check
from tests.programs import Programs

suite = Programs(check)
X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Net(nn.Module):
    """Three layers, a norm and a counter; forward is `body(self, x)`."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.layer0 = nn.Linear(4, 4)
        self.layer1 = nn.Linear(4, 4, bias=False)
        self.deep = nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"act": nn.ReLU()}))
        self.norm = nn.BatchNorm1d(4)
        self.count = 0
        self.body = body
        self.eval()

    def forward(self, x):
        return self.body(self, x)


def program(body: Any = None, *, broken: bool = False, calls: int = 2) -> Any:
    """A scenario: `body` is forward; called `calls` times, then the module's state is compared."""
    if body is None:
        return functools.partial(program, broken=broken, calls=calls)

    def run(c: Any) -> Any:
        m = Net(body)
        compiled = c(m)
        out = []
        for k in range(calls):
            try:
                out.append(compiled(X + k))
            except Exception as e:
                out.append((type(e), str(e)))
        plain = {k: v for k, v in vars(m).items() if k not in ("_modules", "_parameters", "_buffers", "body", "hidden",
                                                               "secret")}
        return out, list(m.state_dict().items()), [(n, type(p).__name__) for n,
                                                   p in m.named_modules()], sorted(plain.items())

    run.__name__ = body.__name__
    return suite(run, whole=not broken)


@program
def by_formatted_names(self, x):
    for i in range(2):
        x = getattr(self, f"layer{i}")(x)
    return x, hasattr(self, "layer2"), getattr(self, "layer9", None)


@program
def functional_style(self, x):
    parts = [self.layer0, self.layer1]
    x = functools.reduce(lambda a, f: f(a), parts, x)
    x = sum(m(x) for m in parts) + sum(map(self.layer0, [x, x]))
    return self.layer1(x), list(itertools.chain(parts))[0] is self.layer0


@program
def dicts_of_named_parts(self, x):
    named = dict(self.named_modules())
    params = dict(self.named_parameters())
    first = next(self.parameters())
    total = sum(p.numel() for p in self.parameters())
    return named["deep.1.act"](named["deep.0"](x)) @ params["layer1.weight"], first.dtype, first.device, total, sorted(
        named)


@program
def forward_called_without_hooks(self, x):
    f = self.layer0.forward
    return f(x) + nn.Linear.forward(self.layer1, x) + self.layer0.__call__(x)


@program
def walks_with_recursion(self, x):
    def walk(m, depth=0):
        yield depth, m._get_name()
        for child in m.children():
            yield from walk(child, depth + 1)

    return x + 1, list(walk(self)), [n for n, _ in self.deep.named_children()], len(list(self.deep.modules()))


@program
def counts_and_flags(self, x):
    self.count += 1
    self.training = not self.training
    if self.training:
        return self.layer0(x), self.count
    return self.layer1(x)


@program
def instance_dict_in_use(self, x):
    self.__dict__["count"] = self.__dict__["count"] + 5
    vars(self).update(extra=[1, 2])
    self.__dict__.setdefault("more", {"k": 1})
    return x * self.count, "extra" in vars(self), self.__dict__.get("nothing", 3), "layer0" in self.__dict__


@program
def parts_deleted_and_replaced(self, x):
    if hasattr(self, "layer1"):
        x = self.layer1(x)
        del self.layer1
    else:
        self.layer1 = nn.Identity()
    self._modules["deep"] = self.layer0
    return x, list(self._modules)


@program
def parts_added_by_name(self, x):
    self.add_module(f"act{self.count}", nn.ReLU())
    setattr(self, f"other{self.count}", nn.Tanh())
    self.count += 1
    return self.act0(self.other0(x)), len(list(self.children()))


@program
def buffers_registered_twice(self, x):
    self.register_buffer("b", x.sum(0))
    self.register_buffer("c", None)
    self.b = self.b * 2
    y = self.b
    self.register_buffer("b", torch.ones(4), persistent=False)
    return y + self.b, self.c


@program
def parameters_written_under_no_grad(self, x):
    with torch.no_grad():
        self.layer0.weight.mul_(0.5)
        self.layer1.weight.copy_(torch.eye(4))
        self.layer0.bias.zero_()
    return self.layer0(x) + self.layer1(x)


@program(broken=True)
def parameter_data_replaced(self, x):
    self.layer0.weight.data = torch.eye(4)
    self.layer1.weight.data.fill_(0.25)
    return self.layer0(x) + self.layer1(x)


@program
def gradients_looked_at(self, x):
    self.zero_grad()
    return self.layer0(x), self.layer0.weight.grad is None, self.layer0.weight.requires_grad


@program(broken=True)
def dtype_changed_inside(self, x):
    self.double()
    y = self.layer0(x.double())
    self.float()
    return y.float()


@program(broken=True)
def copies_made_inside(self, x):
    twin = copy.deepcopy(self.layer0)
    twin.weight.zero_()
    shallow = copy.copy(self.layer1)
    return twin(x) + shallow(x), twin is self.layer0, shallow.weight is self.layer1.weight


@program
def initialised_inside(self, x):
    if not self.count:
        nn.init.constant_(self.layer0.weight, 0.5)
        nn.init.zeros_(self.layer0.bias)
        self.layer1.apply(lambda m: m.weight.fill_(2.0))
        self.count = 1
    return self.layer0(x) + self.layer1(x)


@program(broken=True)
def state_inside(self, x):
    return self.layer0(x), list(self.state_dict())


@program
def texts_of_modules(self, x):
    return x + 1, self._get_name(), str(type(self.layer0)), self.layer0.extra_repr(), type(
        self).__qualname__, self.__class__.__module__


@program
def representation(self, x):
    return x + 1, repr(self.layer0), f"{self.deep}"


@program
def missing_attributes(self, x):
    try:
        self.nothing(x)
    except AttributeError as e:
        return x - 1, str(e)


@program
def errors_of_torch(self, x):
    out = []
    for change in (lambda: self.add_module("a.b", nn.ReLU()), lambda: self.register_buffer("count", x),
                   lambda: setattr(self, "layer0", x),
                   lambda: self.get_submodule("deep.7"), lambda: self.register_buffer("norm", None),
                   lambda: self.add_module("z", 3),
                   lambda: self.deep[9], lambda: self.register_parameter("q", x)):  # fmt: skip
        try:
            change()
        except (KeyError, TypeError, AttributeError, IndexError) as e:
            out.append((type(e).__name__, str(e)))
    return x * 2, out


@program
def identity_and_equality(self, x):
    same = [m for m in self.children() if m is self.norm or m == self.layer0]
    return x + 1, len(same), self.layer0 in [self.layer1,
                                             self.layer0], {self.layer0: 1}.get(self.layer1), len(
                                                 {self.norm, self.norm})


@program
def weak_parents(self, x):
    if not self.count:
        object.__setattr__(self.deep, "parent", weakref.ref(self))
        self.count = 1
    return self.deep.parent().layer0(x), self.deep.parent() is self


@program
def kept_outside_the_registry(self, x):
    if not self.count:
        self.count = 1
        object.__setattr__(self, "hidden", [nn.ReLU(), {"t": nn.Tanh()}])
        object.__setattr__(self, "secret", nn.Sigmoid())
    return self.secret(self.hidden[1]["t"](self.hidden[0](x))), len(list(self.modules()))


@program
def forward_of_other_kinds(self, x):
    part = nn.Module()
    part.forward = torch.relu
    other = nn.Identity()
    other.forward = self.layer0
    return part(x) + other(x)


@program
def generators_and_unpacking(self, x):
    first, *rest = self.children()
    a, b = self.deep
    (name, norm), = [(n, m) for n, m in self.named_children() if isinstance(m, nn.BatchNorm1d)]
    return norm(first(x)) + a(x), len(rest), name, type(b).__name__, max(
        self.deep, key=lambda m: len(list(m.parameters()))) is a


@program
def statistics_of_a_part_in_train_mode(self, x):
    self.norm.train()
    y = self.norm(x)
    self.norm.eval()
    return y, self.norm(x), self.norm.num_batches_tracked, self.norm.running_mean


class Shaped(nn.Module):
    """A module with a container's protocol."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(n))

    def __len__(self):
        return len(self.parts)

    def __iter__(self):
        return iter(self.parts)

    def __getitem__(self, i):
        return self.parts[i]

    def __contains__(self, other):
        return any(other is p for p in self.parts)

    def __bool__(self):
        return len(self) > 1

    def __enter__(self):
        self.entered = True
        return self.parts[0]

    def __exit__(self, *exc):
        self.entered = False

    def __add__(self, other):
        return Both(self, other)

    def forward(self, x):
        for part in self:
            x = part(x)
        with self as first:
            x = first(x)
        return (x, bool(self), self[0] in self, len(self)) if self else x


class Both(nn.Module):
    def __init__(self, *parts) -> None:
        super().__init__()
        self.a, self.b = parts

    def forward(self, x):
        return self.a(x), self.b(x)


@suite
def parts_that_come_later(c):
    def body(self, x):
        self.spare = x
        return (self.late(x) if hasattr(self, "late") else x + 1), getattr(self, "w", 5)

    m = Net(body)
    run = c(m)
    out = [run(X)]
    m.late = nn.ReLU()
    out.append(run(X))
    m.w = nn.Parameter(torch.ones(2))
    out.append(run(X))
    del m.late, m.spare
    m.register_buffer("spare", torch.zeros(1))
    out.append(run(X))
    return out, m.spare, "spare" in m.__dict__


@suite
def modules_with_protocols(c):
    one, two = Shaped(1), Shaped(2)
    run = c(one)
    out = [run(X), c(two)(X), c(one + two)(X)]
    one.parts.append(nn.Linear(4, 4))
    return out, run(X), one.entered


@suite
def recurrent_modules(c):
    m = nn.ModuleDict({"lstm": nn.LSTM(4, 3, batch_first=True), "gru": nn.GRUCell(4, 3), "rnn": nn.RNN(4, 3)})

    class Runs(nn.Module):
        def __init__(self):
            super().__init__()
            self.m = m

        def forward(self, x):
            out, (h, k) = self.m["lstm"](x[None])
            return out, h, k, self.m["gru"](x), self.m["rnn"](x[None])[0]

    return c(Runs().eval())(X)


@suite
def attention_and_transformer_layers(c):
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
    m = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    att = nn.MultiheadAttention(4, 2, batch_first=True)
    x = X[None]

    def run(x):
        return m(x), att(x, x, x), att(x, x, x, need_weights=False)[0]

    m.train()
    return c(run)(x)


test_programs = suite.test()
