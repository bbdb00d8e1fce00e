"""What runs once in eager runs once: a graph that raises has changed nothing by then, or eager does not run in its
place."""

import functools
import signal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith


@torch.library.custom_op("framesmith_tests::refuse", mutates_args=())
def refuse(x: torch.Tensor, limit: float) -> torch.Tensor:
    if float(x.sum()) > limit:
        raise LookupError("too much")
    return x.clone()


@refuse.register_fake
def _(x, limit):
    return torch.empty_like(x)


def _state(values):
    return [v.detach().clone() if isinstance(v, torch.Tensor) else _state(v) if isinstance(v, list) else v
            for v in values]


def outcome(fn, args, model=None):
    """What a call gives or raises, and all that it leaves."""
    torch.manual_seed(3)
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    written = [a._version for a in tensors]
    try:
        result = fn(*args)
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    buffers = [*model.state_dict().values()] if model is not None else []
    versions = [a._version > before for a, before in zip(tensors, written)]
    return result, _state(args), _state(buffers), versions, torch.rand(2)


def same(a, b):
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.allclose(a, b, 1e-5, 1e-6,
                          equal_nan=True) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b


def agree(make, good, bad, model=False, after=True):
    """Calls with good and bad arguments (given anew by `good()` and `bad()`) leave what eager's do. `make()` gives what
    is called."""
    torch.manual_seed(0)
    eager = make()
    torch.manual_seed(0)
    own = make()
    compiled = framesmith.compile(own)
    for arguments in (good, bad, bad, good) if after else (bad,):
        torch.manual_seed(1)
        theirs = outcome(eager, arguments(), eager if model else None)
        torch.manual_seed(1)
        ours = outcome(compiled, arguments(), own if model else None)
        assert same(ours, theirs), (ours, theirs)


def number(*numbers):
    return torch.tensor(numbers)


def x():
    return torch.arange(12.0).reshape(4, 3)


def taken(x, i):
    x.add_(1)
    return x[i]


def taken_first(x, i):
    y = x[i]
    x.mul_(2)
    return y


def put(x, i):
    x.add_(1)
    x[i] = 5
    return x.sum()


def added(x, i):
    x.mul_(3).index_add_(0, i, torch.ones(len(i), 3))
    return x + 1


def scattered(x, i):
    x.scatter_add_(0, i.unsqueeze(1).expand(-1, 3), torch.ones(len(i), 3))
    return x * 2


def looked_up(x, i):
    x.add_(1)
    return F.embedding(i, x) * 2


def gathered(x, i):
    x.sub_(1)
    return x.gather(0, i.unsqueeze(1)).sigmoid()


def selected(x, i):
    y = x.index_select(0, i).cumsum(0)
    x.copy_(x.flip(0))
    return y


def of_what_is_written(x, i):
    """The index comes of what is written."""
    x.add_(1)
    return x[(x[0, 0] + i.sum()).long()]


def twice(x, i):
    x[i] = x[0] * 2
    x.add_(1)
    return x[i.flip(0)] + x.index_select(0, i)


def drawn(x, i):
    y = F.dropout(x, 0.5, True)
    return y[i] + torch.rand(3)


def drawn_and_written(x, i):
    x.add_(torch.rand(3))
    return F.embedding(i, torch.rand_like(x))


def broken(x, i):
    x.add_(1)
    framesmith.graph_break()
    x.mul_(2)
    return x[i]


def losses(x, i):
    x.add_(1)
    return F.cross_entropy(x, torch.cat([i, i]))


INDEXED = (taken, taken_first, put, added, scattered, looked_up, gathered, selected, of_what_is_written, twice, drawn,
           drawn_and_written,
           broken, losses)  # fmt: skip


@pytest.mark.parametrize("fn", INDEXED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("bad", [4, -9])
def test_an_index_out_of_range(fn, bad):
    agree(lambda: fn, lambda: (x(), number(1, 2)), lambda: (x(), number(0, bad)))


def test_several_inputs_are_written_after_an_index_is_checked():
    def f(caches, values, place):
        out = 0
        for cache in caches:
            cache.index_copy_(0, place, values)
            out = out + cache.sum(0)
        return out

    def arguments(place):
        return [x(), x() + 1, x() + 2], torch.ones(1, 3), number(place)

    agree(lambda: f, lambda: arguments(2), lambda: arguments(4))


@pytest.mark.parametrize("factor", [1, 2])
def test_inputs_that_exchange_their_values(factor):
    def f(a, b):
        before = a.clone()
        a.copy_(b)
        b.copy_(before * factor)
        return a.sum()

    given, expected = [x(), x() + 1], [x(), x() + 1]
    assert torch.equal(framesmith.compile(f)(*given), f(*expected))
    assert all(map(torch.equal, given, expected))


def test_a_custom_operator():
    def f(x, limit):
        x.add_(1)
        y = F.dropout(x, 0.5, True)
        return refuse(y, limit) + x

    agree(lambda: f, lambda: (x(), 1e9), lambda: (x(), 0.0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 6)
        self.norm = nn.BatchNorm1d(6)
        self.layer = nn.Linear(6, 6)
        self.last = nn.BatchNorm1d(6)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x, i):
        x = self.norm(x)
        self.seen += x.sum(0).detach()
        x = F.dropout(self.last(self.layer(x)), 0.3, self.training)
        return (x + self.table(i)).sum()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_statistics_and_draws_of_a_model(training, grad):
    def make():
        return Net().train(training)

    with torch.set_grad_enabled(grad):
        torch.manual_seed(5)
        given = torch.randn(3, 6)
        agree(make, lambda: (given, number(1, 2, 4)), lambda: (given, number(1, 5, 2)), model=True)


def test_an_assertion():
    def f(x, most):
        x.add_(1)
        torch._assert(bool((x < most).all()), "too much")
        return x * 2

    agree(lambda: f, lambda: (x(), 100.0), lambda: (x(), 1.0))


def test_python_state():
    def make():
        said, box = [], nn.Module()

        def f(x, i):
            said.append(len(said))
            box.count = getattr(box, "count", 0) + 1
            x.add_(1)
            y = x[i]
            said.append("behind")
            return y, tuple(said), box.count

        return f

    agree(make, lambda: (x(), number(1, 2)), lambda: (x(), number(0, 7)))


def test_what_a_signal_handler_raises_is_no_reason_to_run_again():
    """In an operator of the program's, within a graph, and behind the graph."""
    calls = []

    @torch.library.custom_op("framesmith_tests::wait", mutates_args=())
    def wait(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 1:
            signal.raise_signal(signal.SIGUSR1)
        return x.clone()

    wait.register_fake(torch.empty_like)

    def handler(number, frame, more):
        raise TimeoutError(more)

    before = signal.signal(signal.SIGUSR1, functools.partial(handler, more="late"))
    try:
        f = framesmith.compile(lambda x: wait(x) + 1)
        f(x())
        with pytest.raises(TimeoutError, match="late"):
            f(x())
        assert len(calls) == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


class Box:
    pass


@pytest.mark.parametrize("make, put, get", [
    (dict, lambda box, v: box.__setitem__("value", v), lambda box: box["value"]),
    (Box, lambda box, v: setattr(box, "value", v), lambda box: box.value),
    (lambda: [None], lambda box, v: box.__setitem__(0, v), lambda box: box[0]),
], ids=["dict", "object", "list"])
def test_a_write_of_the_present_value_is_one_where_it_has_changed(make, put, get):
    """A write that changes nothing when it is captured may only be left out with a guard on the old value."""

    def blind(box, x):
        put(box, 1)
        return x + 1

    def reading(box, x):
        before = get(box)
        put(box, 1)
        return x + before

    for program in (blind, reading):
        box, compiled = make(), framesmith.compile(program, options={"compiler_flags": "-O0"})
        for value in (1, 7, 1, 5, True, 3, 1.0, 9, 4, 2, 1, 8):
            put(box, value)
            result = compiled(box, torch.ones(2))
            assert result.tolist() == [1.0 + (1 if program is blind else value)] * 2
            assert get(box) == 1 and type(get(box)) is int
