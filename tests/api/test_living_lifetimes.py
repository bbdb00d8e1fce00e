"""What is compiled keeps nothing of the user's alive: neither models nor functions, with the cycle collector off."""

import contextlib
import functools
import gc
import weakref

import pytest
import torch
from torch import nn

import framesmith
from framesmith import _C, exc

X = torch.randn(2, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.rest = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return self.rest(self.a(x)).relu()


class Broken(Net):
    def forward(self, x):
        y = self.a(x)
        framesmith.graph_break()
        if y.sum() > 1e6:
            return y
        return self.rest(y)


class Raising(Net):
    def forward(self, x):
        y = self.a(x)
        try:
            self.fail(KeyError)
        except KeyError:
            y = y + 1
        self.fail(ValueError)

    def fail(self, kind):
        raise kind("no")


class Refused(Net):
    def forward(self, x):
        return torch.from_numpy(self.a(x).detach().numpy())


@pytest.fixture(autouse=True)
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive_after(cls, grad=False, **options):
    """Names of what outlives a compiled model that was called twice."""
    model = cls().eval()
    compiled = framesmith.compile(model, **options)
    refs = {"model": weakref.ref(model), "layer": weakref.ref(model.a), "weight": weakref.ref(model.a.weight),
            "compiled": weakref.ref(compiled)}
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            with contextlib.suppress(ValueError, exc.Unsupported):
                compiled(X)
    del model, compiled
    return [name for name, ref in refs.items() if ref() is not None]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("cls", [Net, Broken, Raising, Refused])
@pytest.mark.filterwarnings("ignore:framesmith")
def test_no_cycle_keeps_a_model_alive(cls, backend):
    assert alive_after(cls, backend=backend) == []


@pytest.mark.filterwarnings("ignore:framesmith")
def test_training_and_refusals_let_go_too():
    assert alive_after(Net, grad=True) == []
    assert alive_after(Refused, fullgraph=True, backend="eager") == []
    gc.collect()
    assert alive_after(Broken, fullgraph=True, backend="eager") == []


@pytest.mark.parametrize("broken", [False])
def test_functions_and_what_they_close_over_die(broken):
    net = Net().eval()
    space = {"net": net, "graph_break": framesmith.graph_break}
    text = f"def f(x):\n    y = net(x)\n    {'graph_break()' if broken else 'pass'}\n    return y * 2"
    exec(text, space)
    f = space.pop("f")
    compiled = framesmith.compile(f, backend="eager")
    compiled(X)
    compiled(torch.randn(3, 4))
    refs = [weakref.ref(o) for o in (net, f, f.__code__, compiled)]
    del net, f, compiled, space
    assert [ref() is None for ref in refs] == [True] * 4


def test_variants_of_a_dead_module_are_dropped():
    def run(net, x):
        return net.forward(x)

    first, second = Net().eval(), Net().eval()
    second.rest = nn.Sequential(nn.Linear(4, 4))
    compiled = framesmith.compile(run, backend="eager")
    compiled(first, X)
    assert [entry.info() is first for entry in _C.entries(run)] == [True]
    del first
    compiled(second, X)
    assert [entry.info() is second for entry in _C.entries(run)] == [True]


def test_wrapped_functions_are_the_users():
    """A function that took over the name of torch's is followed, not taken for torch's own."""
    scale = 2

    @functools.wraps(torch.nn.functional.relu)
    def mine(x):
        return x.relu() * scale

    compiled = framesmith.compile(lambda x: mine(x) + 1, backend="eager")
    assert torch.equal(compiled(X), mine(X) + 1)
    scale = 3
    assert torch.equal(compiled(X), mine(X) + 1)
