"""Calls of modules that are like one before them: the capture is the one that interpreting every call gives."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn

import framesmith
from framesmith.capture.replay import Replays
from framesmith.graph.digest import digest_text
from tests.capture.driver import Compiled, same

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Block(nn.Module):
    """A layer with what layers of models have: submodules, a buffer, an attribute, views, writes."""

    def __init__(self, of: Any = None) -> None:
        super().__init__()
        self.of = of
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.norm, self.drop, self.act = nn.LayerNorm(4), nn.Dropout(0.5), nn.GELU()
        self.register_buffer("shift", torch.full((4,), 0.5))
        self.scale = 2.0
        self.sizes = [4, 2]

    def forward(self, x: torch.Tensor, pair: Any = (1.0, None), *, extra: torch.Tensor | None = None) -> torch.Tensor:
        rows = x.shape[:-1]
        seen = [x.view(*rows, *self.sizes[1:], -1).transpose(0, 1).reshape(*rows, -1)]
        seen.append(self.second(self.act(self.first(self.norm(x)))))
        y = self.drop(sum(seen)) * self.scale + self.shift
        y.mul_(pair[0])
        if extra is not None:
            y = y + extra
        return y if self.of is None else y * self.of.factor


class Shared:
    factor = 3

    def __init__(self) -> None:
        self.calls = 0


class Stack(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.shared = Shared()

    def forward(self, x: torch.Tensor) -> Any:
        kept = []
        for layer in self.layers:
            x = layer(x)
            kept.append(x)
        return x, kept


class Arguments(Stack):
    def forward(self, x: torch.Tensor) -> Any:
        first = x
        for n, layer in enumerate(self.layers):
            x = layer(x, (2.0, None), extra=first if n != 3 else None)
        return x


class Counting(Stack):
    """Changes an object that each layer reads, between calls."""

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            self.shared.factor = self.shared.factor + 1
            x = layer(x)
        return x


class Setting(Stack):
    """Changes one layer, and a part of another, before all calls."""

    def forward(self, x: torch.Tensor) -> Any:
        self.layers[3].scale, self.layers[4].norm.eps = 9.0, 0.5  # type: ignore[union-attr]
        for layer in self.layers:
            x = layer(x)
        self.layers[3].scale, self.layers[4].norm.eps = 2.0, 1e-5  # type: ignore[union-attr]
        return x


class Written(Stack):
    """Changes an object that each layer reads, before all calls."""

    def forward(self, x: torch.Tensor) -> Any:
        before, self.shared.factor = self.shared.factor, 5
        for layer in self.layers:
            x = layer(x)
        self.shared.factor = before
        return x


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.line = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.norm(self.line(x)).relu()
        return y, y.sum()


class Norming(Stack):
    def forward(self, x: torch.Tensor) -> Any:
        total = x.new_zeros(())
        for layer in self.layers:
            x, part = layer(x)
            total = total + part
        return x, total


class Chain(Stack):
    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class Counted(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x) * self.calls


class Loud(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if self.scale == 7.0:
            framesmith.graph_break()
        return super().forward(x)


class OnData(Block):
    """Asks about the elements of a tensor, which is a constant for one layer alone."""

    def forward(self, x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x) if flag.sum().item() > 1 else x - 1


class Flagged(Stack):
    def forward(self, x: torch.Tensor) -> Any:
        for n, layer in enumerate(self.layers):
            x = layer(x, torch.full((3,), float(n)))
        return x


class NoGrad(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        with torch.no_grad():
            y = super().forward(x)
        return x + y


def changed(net: Stack, n: int, **values: Any) -> Stack:
    for name, value in values.items():
        setattr(net.layers[n], name, value)
    return net


def hooked(net: Stack) -> Stack:
    net.layers[3].first.register_forward_hook(lambda module, args, out: out + 1)  # type: ignore[union-attr, operator]
    return net


def tied(net: Stack) -> Stack:
    net.layers[4].first.weight = net.layers[2].first.weight  # type: ignore[union-attr]
    return net


def with_one_activation(net: Stack) -> Stack:
    act = nn.GELU()
    for layer in net.layers:
        layer.act = act
    return net


def reading_shared(kind: type[Stack]) -> Stack:
    net = kind([Block() for _ in range(6)])
    for layer in net.layers:
        layer.of = net.shared
    return net


def blocks(kind: type[nn.Module] = Block, count: int = 6) -> list[nn.Module]:
    return [kind() for _ in range(count)]


NETS = {
    "equal": (lambda: Stack(blocks()), 5),
    "arguments": (lambda: Arguments(blocks()), 3),
    "one module": (lambda: Stack([Block()] * 6), 5),
    "another attribute": (lambda: changed(Stack(blocks()), 3, scale=5.0), 4),
    "another class": (lambda: changed(Stack(blocks()), 3, act=nn.ReLU()), 4),
    "another size": (lambda: changed(Stack(blocks()), 3, first=nn.Linear(4, 9), second=nn.Linear(9, 4)), 4),
    "a hook": (lambda: hooked(Stack(blocks())), 4),
    "an attribute of its own": (lambda: changed(Stack(blocks()), 3, forward=lambda x: x + 1), 4),
    "tied weights": (lambda: tied(Stack(blocks())), 4),
    "one activation": (lambda: with_one_activation(Stack(blocks())), 4),
    "an object that changes": (lambda: reading_shared(Counting), 0),
    "an object that was changed": (lambda: reading_shared(Written), 5),
    "layers that were changed": (lambda: Setting(blocks()), 3),
    "modules that change": (lambda: Stack(blocks(Counted)), 0),
    "running statistics": (lambda: Norming(blocks(Norms)), 5),
    "a break in one": (lambda: changed(Stack(blocks(Loud)), 3, scale=7.0), 2),
    "questions about data": (lambda: Flagged(blocks(OnData)), 0),
    "grad mode": (lambda: Stack(blocks(NoGrad)), 0),
    "stages": (lambda: Stack([Chain(blocks(Block, 3)) for _ in range(3)]), 3),
}


def capture(net: Any, x: torch.Tensor) -> tuple[Any, list[Any]]:
    """Return what a compiled call gives, and all that its captures say."""
    run = Compiled(net.forward)
    out = run(x)
    return out, [
        [[(re.sub("0x[0-9a-f]+", "", str(g)), g.stack) for g in c.guards], list(map(str, c.input_sources)), c.text,
         c.breaks, c.stats,
         None if c.graph is None else (digest_text(c.graph), [
             {k: v for k, v in n.meta.items() if k in ("stack", "grad", "param", "turn", "no_grad", "source")}
             for n in c.graph.nodes])] for c in run.captures]


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", NETS)
def test_a_capture_is_that_of_interpreting_every_call(name: str, grad: bool, monkeypatch: Any) -> None:
    torch.manual_seed(0)
    make, least = NETS[name]
    net = make().train(grad)
    other, replayed = copy.deepcopy(net), []
    replay = Replays._replay

    def counted(self: Any, tracer: Any, kept: Any, *rest: Any) -> Any:
        replayed.append(kept.source)
        return replay(self, tracer, kept, *rest)

    monkeypatch.setattr(Replays, "_replay", counted)
    with torch.set_grad_enabled(grad):
        torch.manual_seed(1)
        found, said = capture(net, X)
        monkeypatch.setattr(Replays, "call", lambda self, tracer, module, args, kwargs, follow: follow())
        torch.manual_seed(1)
        expected, interpreted = capture(other, X)
    assert same(found, expected)
    assert len(replayed) >= least
    assert len(said) == len(interpreted)
    for one, two in zip(said, interpreted, strict=True):
        for a, b in zip(one, two, strict=True):
            assert a == b
