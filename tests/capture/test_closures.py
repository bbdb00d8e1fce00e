"""Functions that the program makes anew for each call: their code, defaults and cells are guarded, not their
identity."""

from __future__ import annotations

import functools
import gc
import types
import weakref

import pytest
import torch
from torch import nn

import framesmith
from framesmith.util import events
from tests.capture.driver import Compiled, same

X = torch.arange(3.0)


def scaled(n, bias=1.0):
    def scale(x, bias=bias, *, power=1):
        return x**power * n + bias

    return scale


def run(fn, *calls):
    """The number of captures of `fn` in these calls, whose results are eager's."""
    compiled = Compiled(fn)
    for arguments in calls:
        want = fn(*[a() if isinstance(a, Fresh) else a for a in arguments])
        got = compiled(*[a() if isinstance(a, Fresh) else a for a in arguments])
        assert same(got, want), (got, want)
    return len(compiled.captures)


class Fresh:
    """An argument that is made for each call."""

    def __init__(self, make, *args):
        self.make, self.args = make, args

    def __call__(self):
        return self.make(*self.args)


def apply(fn, x):
    return fn(x) + 1


def test_one_capture_for_all_of_one_code():
    assert run(apply, *[(Fresh(scaled, 2), X)] * 4) == 1


def test_contents_of_cells():
    assert run(apply, (scaled(2), X), (scaled(3), X), (scaled(2), X)) == 3  # the driver keeps one variant
    assert run(apply, (scaled(torch.ones(3)), X), (scaled(torch.ones(3) * 2), X)) == 1, "a tensor is an input"


def test_defaults():
    assert run(apply, (scaled(2, 1.0), X), (scaled(2, 1.0), X), (scaled(2, 5.0), X)) == 2
    assert run(apply, (scaled(2, 0), X), (scaled(2, 0.0), X)) == 2

    def changed(fn, x):
        return fn(x)

    fn = scaled(2)
    compiled = Compiled(changed)
    assert same(compiled(fn, X), fn(X))
    fn.__kwdefaults__ = {"power": 2}
    assert same(compiled(fn, X), fn(X))
    fn.__defaults__ = (7.0,)
    assert same(compiled(fn, X), fn(X))
    fn.__code__ = (lambda n: lambda x, bias=0, *, power=1: x - n + bias + power)(1).__code__
    assert same(compiled(fn, X), fn(X))
    assert len(compiled.captures) == 4


def test_a_written_cell_is_written_in_each():
    def counting():
        calls = 0

        def count(x):
            nonlocal calls
            calls += 1
            return x + calls

        return count, lambda: calls

    compiled = Compiled(lambda fn, x: fn(x) + fn(x))
    for _ in range(3):
        fn, calls = counting()
        assert same(compiled(fn, X), 2 * X + 3) and calls() == 2
    assert len(compiled.captures) == 1


def two(shared):
    """Functions over one cell, or over two."""
    def pair():
        n = 0

        def up(x):
            nonlocal n
            n += 1
            return x + n

        def read(x):
            return x * n

        return up, read

    first = pair()
    return first if shared else (first[0], pair()[1])


@pytest.mark.parametrize("first", [True, False])
def test_cells_that_two_functions_share_or_not(first):
    def both(up, read, x):
        return up(x) + read(x)

    compiled = Compiled(both)
    for shared in (first, not first, first, not first):
        assert same(compiled(*two(shared), X), both(*two(shared), X))


def test_a_cell_that_the_frame_itself_has():
    def outer(n, other):
        def inner(x):
            return x * n

        def written(x):
            nonlocal n
            n += 1
            return inner(x) + other(x) + n

        return written

    for share in (True, False):
        f = outer(1, lambda x: x)
        compiled = Compiled(f)
        assert same(compiled(X), outer(1, lambda x: x)(X)), share


def test_identity_is_guarded_where_it_matters():
    def keyed(fn, table, x):
        return x + table.get(fn, 0)

    one, other = scaled(1), scaled(1)
    compiled = Compiled(keyed)
    for fn in (one, other, one):
        assert same(compiled(fn, {one: 5}, X), keyed(fn, {one: 5}, X))

    compiled = Compiled(lambda a, b, x: x + (a is b) + 2 * (a == b))
    for pair in ((one, other), (one, one), (other, one), (other, other)):
        assert same(compiled(*pair, X), X + 3 * (pair[0] is pair[1]))

    class Holder:
        method = staticmethod(one)

    compiled = Compiled(lambda fn, x: x + (fn is Holder.method))
    for fn in (one, other, one):
        assert same(compiled(fn, X), X + (fn is one))


def test_a_function_or_none():
    def maybe(fn, x):
        return x if fn is None else fn(x)

    assert run(maybe, (Fresh(scaled, 2), X), (Fresh(scaled, 2), X), (None, X)) == 2


def test_the_function_itself_leaves():
    def stored(box, fn, x):
        box.last = fn
        return fn, x + 1

    compiled, box = Compiled(stored), types.SimpleNamespace(last=None)
    for _ in range(3):
        fn = scaled(2)
        found, value = compiled(box, fn, X)
        assert found is fn and box.last is fn and same(value, X + 1)
    assert len(compiled.captures) == 1


def test_a_break_within():
    def breaking(n):
        def add(x):
            y = x * n
            framesmith.graph_break()
            return y + n

        return add

    compiled = Compiled(apply)
    for n in (2, 2, 3):
        assert same(compiled(breaking(n), X), X * n + n + 1)


def test_names_and_attributes():
    def named(fn, x):
        return x + len(fn.__name__) + getattr(fn, "weight", 0)

    compiled = Compiled(named)
    for name, weight in (("a", None), ("a", None), ("bcd", None), ("bcd", 2), ("bcd", 3), ("bcd", None)):
        fn = scaled(1)
        fn.__name__ = name
        if weight is not None:
            fn.weight = weight
        assert same(compiled(fn, X), named(fn, X))


def test_a_disabled_one():
    compiled = Compiled(apply)
    plain, disabled = scaled(2), scaled(2)
    disabled._torchdynamo_disable = True
    for fn in (plain, disabled, plain):
        assert same(compiled(fn, X), apply(fn, X))
    assert compiled.breaks


def test_wrapped_partial_bound_and_callable_objects():
    def decorated(n):
        inner = scaled(n)

        @functools.wraps(inner)
        def wrapper(*args, **kwargs):
            return inner(*args, **kwargs) * 2

        return wrapper

    class Call:
        def __init__(self, n):
            self.n = n

        def __call__(self, x):
            return x * self.n

    def partial(n):
        return functools.partial(scaled(n), bias=n)

    def bound(n):
        return types.MethodType(lambda self, x: x * self, n)

    for make in (decorated, Call, partial, bound, lambda n: functools.partial(Call(n))):
        assert run(apply, (make(2), X), (make(2), X)) == 1, make
        assert run(apply, (make(2), X), (make(3), X)) == 2, make


def test_a_generator_and_one_that_calls_itself():
    def generating(n):
        def numbers(x):
            for i in range(n):
                yield x * i

        return lambda x: sum(numbers(x))

    def recursive(n):
        def down(x, k=n):
            return x if k == 0 else down(x + k, k - 1)

        return down

    for make in (generating, recursive):
        assert run(apply, (make(2), X), (make(2), X)) == 1, make
        assert run(apply, (make(2), X), (make(3), X)) == 2, make


def test_an_empty_cell():
    def late(fill):
        def use(x):
            try:
                return x * n
            except NameError:
                return x

        if fill:
            n = 3
        return use

    compiled = Compiled(apply)
    for fill in (False, False, True, False):
        assert same(compiled(late(fill), X), X * (3 if fill else 1) + 1)


def test_gradients_reach_cells():
    weight = nn.Parameter(torch.ones(3))
    compiled = framesmith.compile(lambda fn, x: fn(x).sum(), backend="aot_eager")
    for k in range(1, 4):
        compiled(scaled(weight, 0.0), X).backward()
        assert same(weight.grad, X * k)


def test_functions_of_other_globals():
    space = {"__name__": __name__, "n": 2}
    exec("def make():\n    m = 1\n    def f(x):\n        return x * n + m\n    return f", space)
    first = space["make"]()
    second = types.FunctionType(first.__code__, {"n": 3, "__name__": __name__}, "f", None, first.__closure__)
    compiled = Compiled(apply)
    for fn in (first, second, space["make"]()):
        assert same(compiled(fn, X), apply(fn, X))


def test_nothing_is_kept_alive():
    class Big:
        n = 2

    def make(big):
        def use(x):
            return x * big.n

        return use

    compiled, big = Compiled(apply), Big()
    fn = make(big)
    compiled(fn, X)
    seen = weakref.ref(big), weakref.ref(fn)
    del big, fn
    compiled.captures.clear()  # the driver's own
    gc.collect()
    assert [ref() for ref in seen] == [None, None]


def test_a_forward_that_is_replaced_in_each_step():
    """What Lightning does under DistributedDataParallel."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            raise AssertionError

        def step(self, x):
            return self.layer(x).sum()

    net = Net()
    net.forward = net.step
    compiled, seen = framesmith.compile(net, backend="aot_eager"), []
    with events.on_event(seen.append):
        for _ in range(5):
            original = net.forward

            def redirected(x, original=original):
                net.forward = original
                return net.step(x)

            net.forward = redirected
            assert same(compiled(X), net.step(X))
    assert net.forward == original
    assert sum(isinstance(e, events.Captured) for e in seen) == 1
    assert not any(isinstance(e, events.Recompile) for e in seen)
