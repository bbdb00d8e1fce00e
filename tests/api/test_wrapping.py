"""A compiled module or function is what it was, but fast."""

import abc
import copy
import functools
import gc
import inspect
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
    Net().eval().other, lambda x: x * 3, functools.partial(torch.add, other=1), torch.relu, torch.Tensor.sigmoid,
    Callable(),
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


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        return self.line(x).relu()


class OneOnly(Line):
    made = None

    def __new__(cls):
        OneOnly.made = OneOnly.made or super().__new__(cls)
        return OneOnly.made


class Argued(Line):
    def __new__(cls, size):
        return super().__new__(cls)

    def __init__(self, size):
        super().__init__()


class Closed(Line):
    def __init_subclass__(cls):
        raise TypeError("no subclasses")


class Counted(type):
    made = 0

    def __new__(meta, *args):
        Counted.made += 1
        return super().__new__(meta, *args)


class Metered(Line, metaclass=Counted):
    pass


class Slotted(Line):
    __slots__ = ("scale",)

    def __init__(self):
        super().__init__()
        self.scale = 2.0

    def forward(self, x):
        return super().forward(x) * self.scale


@pytest.mark.parametrize("make", [
    OneOnly, lambda: Argued(3), Closed, Metered, Slotted, lambda: torch.fx.symbolic_trace(Line()),
], ids=["singleton", "arguments", "no subclasses", "metaclass", "slots", "GraphModule"])
def test_no_code_of_the_program_makes_the_view(make):
    net, made = make(), Counted.made
    counter = CompileCounter()
    fast = framesmith.compile(net, backend=counter, fullgraph=True)
    assert_close(fast(X), net(X))
    assert counter.frame_count == 1 and Counted.made == made and isinstance(fast, type(net)) and fast._orig_mod is net
    assert list(fast.state_dict()) == list(net.state_dict())


def test_slots_are_shared():
    net = Slotted()
    fast = framesmith.compile(net)
    fast.scale = 3.0
    assert net.scale == fast.scale == 3.0
    del net.scale
    assert not hasattr(fast, "scale")


def test_the_view_of_an_abstract_class():
    class Abstract(Line, abc.ABC):
        @abc.abstractmethod
        def encode(self, x): ...

    class Encoder(Abstract):
        def encode(self, x):
            return self(x)

    net = Encoder()
    fast = framesmith.compile(net)
    assert isinstance(fast, Abstract) and not isinstance(net, type(fast)) and isinstance(Encoder(), Encoder)


class Stepper(Line):
    def training_step(self, batch, number):
        """A step."""
        self.last = number
        return self(batch).sum()

    @torch.no_grad()
    def generate(self, x):
        return self.forward(x) + 1

    @classmethod
    def made(cls, x):
        return cls.doubled(x) + 1

    @staticmethod
    def doubled(x):
        return x * 2

    def me(self, x):
        return x.sin(), self

    @property
    def size(self):
        return self.line.weight.shape


def test_methods_of_a_compiled_module_are_compiled():
    net, counter = Stepper(), CompileCounter()
    fast = framesmith.compile(net, backend=counter, fullgraph=True)
    for number, name in enumerate(("forward", "generate", "made", "doubled", "training_step")):
        args = (X, 5) if name == "training_step" else (X,)
        assert_close(getattr(fast, name)(*args), getattr(net, name)(*args))
        getattr(fast, name)(*args)
        assert counter.frame_count == number + 1, name
    assert net.last == fast.last == 5 and fast.me(X)[1] is net and fast.size == net.size
    step = fast.training_step
    assert (inspect.signature(step) == inspect.signature(net.training_step) and step.__doc__ == "A step."
            and step == fast.training_step)
    assert step.__self__ is net and type(fast).training_step is Stepper.training_step


def test_a_method_that_changes_later():
    net = Stepper()
    fast = framesmith.compile(net)
    fast.doubled(X)
    net.me = lambda x: (x.cos(), 0)
    assert_close(fast.me(X)[0], X.cos())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "generate", lambda self, x: x - 1)
        assert_close(fast.generate(X), X - 1)


def test_methods_of_a_compiled_module_within_captured_code():
    fast = framesmith.compile(Stepper())
    counter = CompileCounter()
    outer = framesmith.compile(lambda m, x: m.generate(x) + m.forward(x) + m(x), backend=counter, fullgraph=True)
    assert_close(outer(fast, X), fast._orig_mod(X) * 3 + 1)
    assert counter.frame_count == 1


def test_a_shallow_copy_has_attributes_of_its_own():
    fast = framesmith.compile(Line())
    twin = copy.copy(fast)
    twin.calls = 7
    assert fast.calls == 0 and twin.line is fast.line


@pytest.mark.filterwarnings("ignore:framesmith")
def test_a_method_that_grows_leaves_forward_compiled():
    class Keeping(Line):
        def step(self, kept, x):
            return torch.cat([kept, self(x)])

    counter, kept = CompileCounter(), X
    fast = framesmith.compile(Keeping(), backend=counter)
    for _ in range(12):
        kept = fast.step(kept, X)
    assert counter.frame_count == 8 + 1
