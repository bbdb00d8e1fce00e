"""Modules that change themselves in forward: lazy ones, hooks that come and go, state dicts, settings of the
process."""

import inspect

import pytest
import torch
from torch import nn

import framesmith
from framesmith.capture.entry import convert_frame

X = torch.arange(12.0).view(4, 3)


class ComingAndGoing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.seen = 0

    def forward(self, x):
        def hook(module, given, out):
            self.seen += 1
            return out * 2

        handle = self.inner.register_forward_hook(hook)
        y = self.inner(x)
        handle.remove()
        return y + self.inner(x), self.seen


class Staying(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        self.inner.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
        return self.inner(x)


class Stated(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        state = self.state_dict()
        state._metadata["mark"] = 1
        return x + state["inner.bias"], list(state), state


class Loading(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        self.other.load_state_dict(self.one.state_dict())
        return self.other(x)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return type(a) is type(b) and vars(a) == vars(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return a == b


@pytest.mark.parametrize("make", [ComingAndGoing, Staying, Stated, Loading])
def test_as_in_plain_python(make):
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        module = make()
        fn = framesmith.compile(module, fullgraph=True, backend="eager") if compiled else module
        with torch.no_grad():
            results.append(([fn(X) for _ in range(2)], module.state_dict(),
                            [len(m._forward_pre_hooks) for m in module.modules()]))
    assert same(*results)


def test_a_lazy_module_is_captured_once_it_is_set_up():
    torch.manual_seed(0)
    module = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyBatchNorm1d()).eval()
    fast = framesmith.compile(module, fullgraph=True, backend="eager")
    with torch.no_grad():
        first = fast(X)
        assert torch.equal(first, module(X)) and torch.equal(fast(X), first)


def test_settings_that_the_program_changes():
    def within(x):
        with torch.backends.cudnn.flags(enabled=False):
            inside = torch.backends.cudnn.enabled
            y = x + 1
        return y, inside, torch.backends.cudnn.enabled

    def beyond(x):
        torch.backends.cudnn.benchmark = True
        return x + 1, torch.backends.cudnn.benchmark

    fast = framesmith.compile(within, fullgraph=True, backend="eager")
    assert fast(X)[1:] == (False, True) and torch.backends.cudnn.enabled
    before = torch.backends.cudnn.benchmark
    try:
        assert framesmith.compile(beyond, backend="eager")(X)[1] is True and torch.backends.cudnn.benchmark
    finally:
        torch.backends.cudnn.benchmark = before


def test_parameters_of_a_signature_are_counted():
    def program(x, fn):
        parameters = inspect.signature(fn).parameters
        return x + len(parameters), list(parameters), [p.kind for p in parameters.values()]

    def called(a, *, b=1):
        pass

    assert framesmith.compile(program, fullgraph=True, backend="eager")(X, called)[1:] == program(X, called)[1:]


def test_a_signature_that_each_layer_reads_is_one_guard():
    def program(x, fns):
        return x + sum([len(inspect.signature(fn).parameters) for fn in fns])

    def called(a, *, b=1):
        pass

    def other(a):
        pass

    fns = [called] * 5 + [other, called]
    guards = convert_frame(program.__code__, {"x": X, "fns": fns}, globals()).guards
    assert sum(type(guard.value).__name__ == "SameAnnotations" for guard in guards) == 2
    fast = framesmith.compile(program, fullgraph=True, backend="eager")
    assert fast(X, fns).equal(program(X, fns))
    called.__annotations__["a"] = int
    assert fast(X, fns).equal(program(X, fns))
