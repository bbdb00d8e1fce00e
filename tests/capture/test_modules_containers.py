"""Containers of modules and parameters, captured whole."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from tests.capture.scenarios import check
from tests.programs import Programs

suite = Programs(check)
X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Net(nn.Module):
    """A module whose forward is `body(self, x)`."""

    def __init__(self, body: Any, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.body = body

    def forward(self, x):
        return self.body(self, x)


def layers(n: int = 3) -> list[nn.Module]:
    return [nn.Linear(4, 4) for _ in range(n)]


@suite(graphs=1)
def list_is_indexed_sliced_and_walked(c):
    def body(self, x):
        for layer in self.parts:
            x = layer(x)
        for i, layer in enumerate(self.parts[1:]):
            x = layer(x) + i
        x = self.parts[-1](self.parts[0](x))
        for layer in reversed(self.parts[:2]):
            x = layer(x)
        last = self.parts[len(self.parts) - 1]
        return x, len(self.parts), last in self.parts, nn.Identity() in self.parts, bool(self.parts), len(
            self.parts[::2])

    return c(Net(body, parts=nn.ModuleList(layers())))(X)


@suite
def list_slice_shares_its_modules(c):
    def body(self, x):
        part = self.parts[1:]
        return part[0](x), part[0] is self.parts[1], type(part) is nn.ModuleList, [
            n for n, _ in part.named_children()], list(part._modules)

    return c(Net(body, parts=nn.ModuleList(layers())))(X)


@suite
def list_index_errors(c):
    def body(self, x):
        try:
            return self.parts[7](x)
        except IndexError as e:
            return x + 1, str(e)

    return c(Net(body, parts=nn.ModuleList(layers())))(X)


@suite
def list_of_lists_and_zip(c):
    def body(self, x):
        for row in self.rows:
            for layer, norm in zip(row, self.norms):
                x = norm(layer(x))
        return x

    rows = nn.ModuleList([nn.ModuleList(layers(2)) for _ in range(2)])
    return c(Net(body, rows=rows, norms=nn.ModuleList([nn.LayerNorm(4), nn.ReLU()])))(X)


@suite
def list_grows_after_compilation(c):
    def body(self, x):
        for layer in self.parts:
            x = layer(x)
        return x, len(self.parts)

    net = Net(body, parts=nn.ModuleList(layers(1)))
    run = c(net)
    out = [run(X)]
    net.parts.append(nn.Linear(4, 4))
    out.append(run(X))
    net.parts.extend(layers(2))
    out.append(run(X))
    del net.parts[0]
    out.append(run(X))
    net.parts.insert(0, nn.ReLU())
    out.append(run(X))
    net.parts[1] = nn.Tanh()
    out.append(run(X))
    net.parts.pop(0)
    out.append(run(X))
    return out


@suite
def list_is_appended_to_in_forward(c):
    def body(self, x):
        if len(self.parts) < 3:
            self.parts.append(nn.ReLU())
        for layer in self.parts:
            x = layer(x)
        return x, len(self.parts)

    net = Net(body, parts=nn.ModuleList([nn.Linear(4, 4)]))
    run = c(net)
    return [run(X) for _ in range(4)], [type(m).__name__
                                        for m in net.parts], list(net.parts._modules), [
                                            n for n, _ in net.named_modules()]


@suite
def list_made_and_added_in_forward(c):
    def body(self, x):
        both = nn.ModuleList([*self.a, *self.b])
        for layer in both:
            x = layer(x)
        total = self.a + self.b
        for layer in total:
            x = layer(x)
        return x, len(both), len(total)

    return c(Net(body, a=nn.ModuleList(layers(1)), b=nn.ModuleList(layers(2))))(X)


@suite(graphs=1)
def dict_is_read_in_all_ways(c):
    def body(self, x):
        for name, layer in self.parts.items():
            x = layer(x) + len(name)
        for name in self.parts:
            x = self.parts[name](x)
        for layer in self.parts.values():
            x = layer(x)
        keys = list(self.parts.keys())
        return x, keys, "a" in self.parts, "z" in self.parts, len(self.parts), bool(self.parts)

    return c(Net(body, parts=nn.ModuleDict({"a": nn.Linear(4, 4), "bb": nn.ReLU(),
                                            "relu.6".replace(".", "_"): nn.ReLU6()})))(X)


@suite
def dict_missing_key(c):
    def body(self, x):
        try:
            return self.parts["zz"](x)
        except KeyError as e:
            return x + 2, str(e), e.args

    return c(Net(body, parts=nn.ModuleDict({"a": nn.ReLU()})))(X)


@suite
def dict_is_chosen_by_an_argument_and_changed(c):
    class Pick(nn.Module):
        def __init__(self):
            super().__init__()
            self.acts = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})

        def forward(self, x, which="relu"):
            return self.acts[which](x)

    net = Pick()
    run = c(net)
    out = [run(X), run(X, "tanh"), run(X, which="relu")]
    net.acts["relu"] = nn.Sigmoid()
    out.append(run(X))
    net.acts.update({"gelu": nn.GELU()})
    out.append(run(X, "gelu"))
    net.acts.pop("tanh")
    try:
        run(X, "tanh")
    except KeyError as e:
        out.append(str(e))
    net.acts.clear()
    return out, len(net.acts)


@suite(graphs=1)
def sequential_is_called_indexed_and_sliced(c):
    def body(self, x):
        x = self.seq(x)
        x = self.seq[0](x)
        x = self.seq[1:](x)
        x = self.seq[-1](x)
        for layer in self.seq:
            x = layer(x)
        x = self.seq.first(x)
        return x, len(self.seq), [name for name, _ in self.seq.named_children()], type(self.seq[:1]) is nn.Sequential

    seq = nn.Sequential(OrderedDict(first=nn.Linear(4, 4), act=nn.ReLU(), last=nn.Linear(4, 4)))
    return c(Net(body, seq=seq))(X)


@suite
def sequential_changes_after_compilation(c):
    seq = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    run = c(seq)
    out = [run(X)]
    seq.append(nn.Linear(4, 2))
    out.append(run(X))
    seq[1] = nn.Tanh()
    out.append(run(X))
    del seq[-1]
    out.append(run(X))
    seq.add_module("more", nn.Sigmoid())
    out.append(run(X))
    return out


@suite
def sequential_subclasses(c):
    class Skip(nn.Sequential):
        def forward(self, x):
            return x + super().forward(x)

    class Named(nn.Sequential):
        def forward(self, x, *, stop=None):
            for name, layer in self._modules.items():
                x = layer(x)
                if name == stop:
                    break
            return x

    run = c(nn.Sequential(Skip(*layers(2)), Named(*layers(2))))
    other = c(Named(*layers(3)))
    return run(X), other(X), other(X, stop="0")


@suite(graphs=1)
def sequential_concatenated_in_forward(c):
    def body(self, x):
        return (self.a + self.b)(x), (self.a * 2)(x)

    return c(Net(body, a=nn.Sequential(*layers(1)), b=nn.Sequential(nn.ReLU(), nn.Tanh())))(X)


@suite(graphs=1)
def parameter_list(c):
    def body(self, x):
        for i, w in enumerate(self.ws):
            x = x @ w + i
        x = x @ self.ws[0] + self.ws[-1].sum()
        for w in self.ws[1:]:
            x = x * w.mean()
        return x, len(self.ws)

    return c(Net(body, ws=nn.ParameterList([torch.eye(4) * k for k in (1, 2, 3)])))(X)


@suite
def parameter_list_changes(c):
    def body(self, x):
        for w in self.ws:
            x = x @ w
        return x, len(self.ws)

    net = Net(body, ws=nn.ParameterList([torch.eye(4)]))
    run = c(net)
    out = [run(X)]
    net.ws.append(torch.eye(4) * 2)
    out.append(run(X))
    net.ws[0] = nn.Parameter(torch.ones(4, 4))
    out.append(run(X))
    net.ws[0].data = torch.ones(4, 4) * 3
    out.append(run(X))
    return out


@suite(graphs=1)
def parameter_dict(c):
    def body(self, x):
        for name, w in self.ws.items():
            x = x * w + len(name)
        for w in self.ws.values():
            x = x + w
        for name in self.ws:
            x = x - self.ws[name]
        return x * self.ws["b"] + self.ws.scale, "b" in self.ws, "c" in self.ws, list(self.ws.keys()), len(
            self.ws), self.ws.get("zz")

    return c(Net(body, ws=nn.ParameterDict({"scale": torch.tensor(2.0), "b": torch.ones(4)})))(X)


@suite
def parameter_dict_holds_other_things(c):
    def body(self, x):
        return x * self.ws["n"] + self.ws["w"]

    net = Net(body, ws=nn.ParameterDict({"n": 3, "w": torch.ones(4)}))
    run = c(net)
    out = [run(X)]
    net.ws["n"] = 4
    out.append(run(X))
    return out


@suite(graphs=1)
def plain_containers_of_modules(c):
    def body(self, x):
        for layer in self.plain:
            x = layer(x)
        return self.table["a"](x) + self.pair[1](x)

    hidden = layers(3)
    return c(Net(body, plain=hidden[:2], table={"a": hidden[2]}, pair=(hidden[0], nn.ReLU())))(X)


@suite(graphs=1)
def walks_over_submodules(c):
    def body(self, x):
        names = []
        for name, m in self.named_modules():
            names.append(name)
            if isinstance(m, nn.Linear):
                x = m(x)
        children = [type(m).__name__ for m in self.children()]
        shapes = [(n, tuple(p.shape)) for n, p in self.named_parameters()]
        buffers = [n for n, _ in self.named_buffers()]
        for p in self.parameters():
            x = x + p.sum()
        return x, names, children, shapes, buffers, len(list(self.modules()))

    net = Net(body, a=nn.Sequential(*layers(2)), b=nn.BatchNorm1d(4), c=nn.ModuleDict({"k": nn.Linear(4, 4)}))
    return c(net.eval())(X)


@suite(graphs=1)
def submodules_by_path(c):
    def body(self, x):
        m = self.get_submodule("a.1")
        w = self.get_parameter("a.0.weight")
        b = self.get_buffer("bn.running_mean")
        return m(x) @ w + b + getattr(self.a, "0").bias

    return c(Net(body, a=nn.Sequential(*layers(2)), bn=nn.BatchNorm1d(4)).eval())(X)


@suite
def tied_weights(c):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(5, 4)
            self.out = nn.Linear(4, 5, bias=False)
            self.out.weight = self.emb.weight

        def forward(self, i):
            return self.out(self.emb(i)), self.out.weight is self.emb.weight, len(list(self.parameters()))

    net = Tied()
    run = c(net)
    ids = torch.tensor([1, 3])
    out = [run(ids)]
    net.out.weight = nn.Parameter(torch.ones(5, 4))
    out.append(run(ids))
    net.emb.weight = net.out.weight
    out.append(run(ids))
    return out


@suite
def shared_and_swapped_submodules(c):
    def body(self, x):
        return self.b(self.a(x)), self.a is self.b

    shared = nn.Linear(4, 4)
    net = Net(body, a=shared, b=shared)
    run = c(net)
    out = [run(X)]
    net.b = nn.Linear(4, 4)
    out.append(run(X))
    net.b = nn.ReLU()
    out.append(run(X))
    net.a, net.b = net.b, net.a
    out.append(run(X))
    return out


test_containers = suite.test()
