"""A compiled module or function is what it was, but fast."""

import copy
import functools
import gc
import io
import pickle
import threading
import weakref

import pytest
import torch
from torch import nn

import framesmith
from framesmith.testing import CompileCounter
from tests.api.nets import Net, X, assert_close, assert_same, compiled_net


def double(x):
    """Twice."""
    return x * 2 + 1


def test_a_compiled_module_is_its_module():
    net, fast = compiled_net()
    assert isinstance(fast, Net) and type(fast).__name__ == "Net" and repr(fast) == repr(net)
    assert list(fast.state_dict()) == list(net.state_dict())
    assert [n for n, _ in fast.named_modules()] == [n for n, _ in net.named_modules()]
    assert fast.a is net.a and fast.note == "hi" and fast.a.weight is net.a.weight and set(dir(net)) <= set(dir(fast))
    assert_close(fast.other(X), net.other(X))
    assert_close(fast.forward(X), net(X))


def test_attributes_are_shared_both_ways():
    net, fast = compiled_net()
    fast.note = "there"
    assert net.note == "there"
    net.note = "back"
    assert fast.note == "back"
    fast.b = nn.Linear(8, 2)
    assert net.b is fast.b
    assert_same(net, fast)
    del fast.note
    assert not hasattr(net, "note")


def by_pickle(fast):
    return pickle.loads(pickle.dumps(fast))


def by_save(fast):
    file = io.BytesIO()
    torch.save(fast, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [by_pickle, by_save, copy.deepcopy, copy.copy], ids=lambda f: f.__name__)
@pytest.mark.parametrize("calls", [0, 1])
def test_copies(copied, calls):
    net = Net().eval()
    fast = framesmith.compile(net)
    for _ in range(calls):
        fast(X)
    twin = copied(fast)
    assert isinstance(twin, Net) and twin._framesmith_call.callback is not None
    assert_close(twin(X), net(X))
    if copied is not copy.copy:
        net.a.weight.mul_(2)
        assert not torch.allclose(twin(X), net(X))


def test_compiling_twice():
    net, fast = compiled_net()
    again = framesmith.compile(fast)
    assert type(again) is type(fast)
    assert_same(net, again)
    assert_close(framesmith.compile(framesmith.compile(double))(X), double(X))


def test_decorators():
    @framesmith.compile
    def plain(x):
        """Documented."""
        return double(x)

    @framesmith.compile(fullgraph=True)
    def arguments(x):
        return double(x)

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(4, 4)

        @framesmith.compile
        def forward(self, x):
            return self.line(x).relu()

    assert plain.__name__ == "plain" and plain.__doc__ == "Documented." and arguments.__name__ == "arguments"
    assert_close(plain(X), double(X))
    assert_close(arguments(X), double(X))
    net = Scale()
    assert_close(net(X), net.line(X).relu())


class Callable:
    def __call__(self, x):
        return double(x)


@pytest.mark.parametrize("fn", [
    Net().eval().other, lambda x: x * 3, functools.partial(torch.add, other=1), torch.relu, torch.Tensor.sigmoid, Callable(),
    Net().eval().forward, functools.lru_cache(double), nn.functional.gelu,
], ids=["bound method", "lambda", "partial", "builtin", "method", "object", "forward", "cached", "functional"])
def test_callables_of_every_kind(fn):
    fast = framesmith.compile(fn)
    for _ in range(2):
        assert_close(fast(X), fn(X))


def test_generator_functions_pass_through():
    def steps(x):
        yield x + 1
        yield x + 2

    first, second = framesmith.compile(steps)(X)
    assert_close(first, X + 1)
    assert_close(second, X + 2)


def test_not_a_callable():
    with pytest.raises(TypeError, match="takes a module or a callable, not int"):
        framesmith.compile(3)


def test_disable_argument():
    assert framesmith.compile(double, disable=True) is double


def test_a_forward_compiled_in_place_and_a_compiled_child():
    net = Net().eval()
    want = net(X)
    net.a = framesmith.compile(net.a)
    assert list(net.state_dict()) == list(Net().state_dict())
    assert_close(net(X), want)
    counter = CompileCounter()
    assert_close(framesmith.compile(net, backend=counter, fullgraph=True)(X), want)
    assert counter.frame_count == 1
    other = Net().eval()
    want = other(X)
    other.forward = framesmith.compile(other.forward)
    assert_close(other(X), want)


def test_threads():
    net = Net().eval()
    fast, wrong = framesmith.compile(net), []

    def work(rows):
        x = X[:rows]
        with torch.no_grad():
            want = net(x)
            wrong.extend(1 for _ in range(30) if not torch.allclose(fast(x), want, atol=1e-6))

    threads = [threading.Thread(target=work, args=(2 + i % 3,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def compiled_module():
    net, fast = compiled_net()
    return net, fast


def compiled_closure():
    net = Net().eval()
    fast = framesmith.compile(lambda x: net(x))
    fast(X)
    return net, fast


def never_called():
    net = Net().eval()
    return net, framesmith.compile(net)


def broken_up():
    net = Net().eval()

    def f(x):
        y = net(x)
        return y + 1 if y.sum() > 0 else y

    fast = framesmith.compile(f)
    fast(X)
    return net, fast


@pytest.mark.parametrize("make", [compiled_module, compiled_closure, never_called, broken_up], ids=lambda f: f.__name__)
def test_nothing_keeps_a_model_alive(make):
    gc.collect()
    gc.disable()
    try:
        net, fast = make()
        watched = weakref.ref(net), weakref.ref(net.a.weight), weakref.ref(fast)
        del net, fast
        assert [w() is None for w in watched] == [True] * 3
    finally:
        gc.enable()


def test_reset_forgets():
    counter = CompileCounter()
    fast = framesmith.compile(double, backend=counter)
    fast(X), fast(X)
    assert counter.frame_count == 1
    framesmith.reset()
    fast(X), fast(X)
    assert counter.frame_count == 2
    assert counter.op_count == 4
