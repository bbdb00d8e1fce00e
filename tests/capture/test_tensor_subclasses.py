"""Tensors of classes of the program's: what torch functions give is of the class, as torch.Tensor's own
`__torch_function__` has it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith
from framesmith.testing import CompileCounter
from tests.capture.agree import Fresh, agree, one_graph


class Image(torch.Tensor):
    scale = 3

    def twice(self):
        return self * 2


class Photo(Image):
    pass


class Sound(torch.Tensor):
    pass


class Weight(nn.Parameter):
    pass


class Logged(torch.Tensor):
    seen = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def of(cls, grad=True, shape=(3, 4)):
    x = torch.linspace(-1, 2, 12)[:shape[0] * shape[1]].reshape(shape).as_subclass(cls).detach()
    return x.requires_grad_() if grad else x


def plain(grad=True):
    return of(torch.Tensor, grad)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [
    lambda x, y: x * 2 + 1,
    lambda x, y: x.twice() * x.scale,
    lambda x, y: (x + y, y.sin(), x.cos(), torch.ones(2)),
    lambda x, y: F.linear(x, y).relu(),
    lambda x, y: F.linear(y, x).relu(),
    lambda x, y: (torch.cat([y, x]), x.double().sum(), torch.zeros_like(x), y.new_ones(2)),
    lambda x, y: [row * 2 for row in x],
    lambda x, y: (x.max(1).values * 1, x.sort(0)[0], x.std(), x.shape, x.size()),
    lambda x, y: x + 1 if isinstance(x * 1, Image) and type(y * x) is Image else y,
])
def test_results_are_of_the_class(fn, grad):
    one_graph(fn, Fresh(lambda: of(Image, grad)), plain(grad))


@pytest.mark.parametrize("fn", [
    lambda x: (x[0], x.T, x.view(-1), x[:, 1:], x.detach(), x + 1),
    lambda x: x.split(2, 1) + x.unbind(0),
    lambda x: [y := x + 1, y, y is x, x],
    lambda x: torch.no_grad()(lambda y: y * 2)(x),
])
@pytest.mark.parametrize("grad", [False, True])
def test_views_and_identity(fn, grad):
    agree(fn, Fresh(lambda: of(Image, grad)), grad=True)


def test_writes():
    agree(lambda x, y: (x.add_(1), x.mul_(y), x[0]), Fresh(lambda: of(Image, False)), plain(False))


def test_classes_among_each_other():
    one_graph(lambda x, y: (x + y, y + x), Fresh(lambda: of(Image)), Fresh(lambda: of(Photo)))
    one_graph(lambda x, y: F.linear(x, y), plain(), Fresh(lambda: Weight(torch.ones(2, 4))))
    with pytest.raises(TypeError):
        framesmith.compile(lambda x, y: x + y)(of(Image), of(Sound))


def test_a_module_with_parameters_of_a_class():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(of(Image, False, (4, 3)))
            self.register_buffer("shift", torch.ones(3).as_subclass(Image))

        def forward(self, x):
            return x @ self.weight + self.shift

    layer, x = Layer(), plain()
    for backend in ("native", "eager"):
        compiled = framesmith.compile(layer, fullgraph=True, backend=backend)
        for _ in range(2):
            grads = []
            for fn in (layer, compiled):
                layer.zero_grad()
                out = fn(x)
                out.square().sum().backward()
                grads.append([type(out), type(layer.weight.grad), layer.weight.grad.clone()])
            assert grads[0][:2] == grads[1][:2]
            torch.testing.assert_close(grads[0][2], grads[1][2])
        with torch.no_grad():
            compiled(x)
            layer.weight.data[0] += 1
            torch.testing.assert_close(compiled(x), layer(x))


def test_a_function_of_the_programs_own_is_called():
    """A class with a `__torch_function__` is left to eager, and nothing else."""
    counter = CompileCounter()

    def fn(x, y):
        return torch.relu(y.sin() * 2), x * 2 + 1

    compiled = framesmith.compile(fn, backend=counter)
    with torch.no_grad():
        want, calls = fn(of(Logged), plain()), list(Logged.seen)
        for _ in range(2):
            Logged.seen.clear()
            got = compiled(of(Logged), plain())
            assert [type(x) for x in got] == [torch.Tensor, Logged] and Logged.seen == calls[-len(Logged.seen):]
            torch.testing.assert_close(got[0], want[0])
    assert counter.frame_count == 1


def test_the_class_may_change():
    class Changing(torch.Tensor):
        factor = 2

    def fn(x):
        return x * x.factor

    compiled = framesmith.compile(fn)
    for _ in range(2):
        assert torch.equal(compiled(of(Changing, False)), fn(of(Changing, False)))
    Changing.factor = 5
    assert torch.equal(compiled(of(Changing, False)), fn(of(Changing, False)))
    x = of(Changing, False)
    Changing.__torch_function__ = classmethod(lambda cls, func, types, args=(), kwargs=None: "mine")
    assert compiled(x) == "mine"
