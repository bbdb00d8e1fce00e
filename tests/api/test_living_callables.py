"""`framesmith.compile` on every kind of callable."""

import asyncio
import functools
import inspect
import pickle
from copy import deepcopy

import pytest
import torch
from torch import nn

import framesmith
from framesmith.testing import CompileCounter
from tests.api.nets import Net, assert_close
from tests.api.nets import X as WIDE

X = torch.randn(3, 4)


class Thing:
    def __init__(self, by):
        self.by = by

    def method(self, x):
        return x * self.by

    @classmethod
    def made(cls, x):
        return cls(2).method(x) + 1

    @staticmethod
    def static(x, plus=1):
        return x + plus

    def __call__(self, x):
        return x - self.by

    @framesmith.compile(backend="eager")
    def decorated(self, x):
        return x * self.by + 1

    @classmethod
    @framesmith.compile(backend="eager")
    def decorated_class(cls, x):
        return x + len(cls.__name__)

    @staticmethod
    @framesmith.compile(backend="eager")
    def decorated_static(x):
        return x + 5


def scale(x, by):
    """Multiplies."""
    return x * by


def counted(fn, *args, frames=1):
    """The compiled `fn` gives what `fn` gives, from so many graphs."""
    counter = CompileCounter()
    compiled = framesmith.compile(fn, backend=counter)
    for _ in range(2):
        assert torch.equal(compiled(*args), fn(*args))
    assert counter.frame_count == frames
    return compiled


def test_bound_methods_share_code_but_not_objects():
    one, two = Thing(2), Thing(3)
    compiled = counted(one.method, X)
    assert torch.equal(framesmith.compile(two.method, backend="eager")(X), X * 3)
    assert torch.equal(compiled(X), X * 2)
    one.by = 7
    assert torch.equal(compiled(X), X * 7)


def test_class_static_lambda_partial_and_callable_object():
    counted(Thing.made, X)
    counted(Thing.static, X)
    counted(lambda x: x + 1, X)
    counted(functools.partial(scale, by=3), X)
    counted(functools.partial(functools.partial(scale), by=3), X)
    counted(Thing(4), X)
    counted(Thing(4).static, X)


def test_decorated_methods():
    thing = Thing(3)
    assert torch.equal(thing.decorated(X), X * 3 + 1)
    assert torch.equal(Thing.decorated(thing, X), X * 3 + 1)
    assert torch.equal(Thing.decorated_class(X), X + 5)
    assert torch.equal(thing.decorated_class(X), X + 5)
    assert torch.equal(thing.decorated_static(X), X + 5)


def test_a_modules_forward_and_a_method_of_it():
    net = Net().eval()
    compiled = framesmith.compile(net.forward)
    assert_close(compiled(WIDE), net(WIDE))
    net.forward = framesmith.compile(net.forward)
    assert_close(net(WIDE), type(net).forward(net, WIDE))


def test_twice_is_once():
    counter = CompileCounter()
    once = framesmith.compile(lambda x: x + 1, backend="eager")
    twice = framesmith.compile(once, backend=counter)
    assert torch.equal(twice(X), X + 1) and counter.frame_count == 1
    net = nn.Linear(4, 4)
    module = framesmith.compile(framesmith.compile(net, backend="eager"), backend=counter)
    assert torch.equal(module(X), net(X)) and counter.frame_count == 2
    assert isinstance(module, nn.Linear) and list(module.state_dict()) == list(net.state_dict())


def test_a_compiled_function_within_another():
    inner = framesmith.compile(lambda x: x * 2, backend="eager")
    counted(lambda x: inner(x) + 1, X)


def test_builtins_and_classes_pass_through():
    assert framesmith.compile(max) is max
    assert framesmith.compile(torch.add) is torch.add or torch.equal(framesmith.compile(torch.add)(X, X), X + X)
    assert framesmith.compile(Thing) is Thing
    with pytest.raises(TypeError, match="not int"):
        framesmith.compile(3)


def generate(x, n):
    for i in range(n):
        got = yield x * i
        if got is not None:
            x = got
    return "done"


def test_generator_functions():
    compiled = framesmith.compile(generate, backend="eager")
    assert [t.tolist() for t in compiled(X, 3)] == [t.tolist() for t in generate(X, 3)]
    g = compiled(X, 2)
    next(g)
    assert torch.equal(g.send(X + 1), X + 1)
    with pytest.raises(StopIteration, match="done"):
        next(g)
    assert inspect.isgenerator(g)
    counted(lambda x: sum(generate(x, 3)), X)


async def wait(x):
    await asyncio.sleep(0)
    return double(x) + 1


def double(x):
    return x * 2


async def produce(x):
    for i in range(3):
        await asyncio.sleep(0)
        yield x * i


def test_coroutines_and_tasks():
    compiled = framesmith.compile(wait, backend="eager")
    inner = framesmith.compile(double, backend="eager")

    async def main():
        one = await compiled(X)
        many = await asyncio.gather(*(compiled(X * i) for i in range(5)))

        async def task(i):
            out = []
            for j in range(5):
                out.append(inner(X + i + j))
                await asyncio.sleep(0)
            return out

        tasks = await asyncio.gather(*(asyncio.create_task(task(i)) for i in range(4)))
        made = [t async for t in framesmith.compile(produce, backend="eager")(X)]
        return one, many, tasks, made

    one, many, tasks, made = asyncio.run(main())
    assert torch.equal(one, X * 2 + 1)
    assert all(torch.equal(m, X * i * 2 + 1) for i, m in enumerate(many))
    assert all(torch.equal(t, (X + i + j) * 2) for i, row in enumerate(tasks) for j, t in enumerate(row))
    assert all(torch.equal(m, X * i) for i, m in enumerate(made))


def test_face_of_a_compiled_function():
    compiled = framesmith.compile(scale)
    assert compiled.__name__ == "scale" and compiled.__doc__ == "Multiplies." and compiled.__wrapped__ is scale
    assert str(inspect.signature(compiled)) == "(x, by)"


@pytest.mark.parametrize("called", [False, True])
def test_pickle_and_deepcopy_of_a_module(called):
    net = Net().eval()
    compiled = framesmith.compile(net)
    if called:
        compiled(WIDE)
    for copied in (deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert type(copied).__name__ == "Net" and copied is not compiled
        assert_close(copied(WIDE), net(WIDE))
        with torch.no_grad():
            copied.a.weight.add_(1)
        assert not torch.allclose(copied(WIDE), net(WIDE))
    assert_close(compiled(WIDE), net(WIDE))


@pytest.mark.parametrize("called", [False, True])
def test_pickle_and_deepcopy_of_a_function(called):
    compiled = framesmith.compile(double, backend="eager")
    if called:
        compiled(X)
    for copied in (deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert torch.equal(copied(X), X * 2)
