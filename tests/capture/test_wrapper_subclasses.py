"""Tensors of classes that are made of other tensors by PyTorch's protocol (`__tensor_flatten__`,
`__tensor_unflatten__`, `__torch_dispatch__`), of the program's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map

import framesmith
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.ledger import Ledger
from framesmith.wrapping import wrap_function

aten = torch.ops.aten


class Wrapper(torch.Tensor):
    """What the classes below have in common: parts are attributes."""

    parts = ()
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __tensor_flatten__(self):
        return list(self.parts), None

    @classmethod
    def __tensor_unflatten__(cls, parts, context, size, stride):
        return cls(*[parts[name] for name in cls.parts])

    def __repr__(self):
        return type(self).__name__


framesmith.allow_in_graph(Wrapper)


class Pair(Wrapper):
    """Two tensors, which go the same way."""

    parts = ("a", "b")
    base = 10

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype)

    def __init__(self, a, b):
        self.a, self.b = a, b

    def total(self):
        return self.a * self.base + self.b

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def side(name):
            return tree_map(lambda x: getattr(x, name) if isinstance(x, Pair) else x, (args, kwargs or {}))

        (args_a, named_a), (args_b, named_b) = side("a"), side("b")
        a, b = func(*args_a, **named_a), func(*args_b, **named_b)
        return cls(a, b) if isinstance(a, torch.Tensor) else a


class Quantised(Wrapper):
    """A weight as int8 numbers and a scale for each row."""

    parts = ("numbers", "scale")

    @staticmethod
    def __new__(cls, numbers, scale):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype)

    def __init__(self, numbers, scale):
        self.numbers, self.scale = numbers, scale

    @classmethod
    def of(cls, x):
        scale = x.abs().amax(1, keepdim=True) / 127
        return cls((x / scale).round().to(torch.int8), scale)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.detach.default:
            return cls(args[0].numbers.detach(), args[0].scale.detach())
        plain = [x.numbers * x.scale if isinstance(x, cls) else x for x in args]
        return func(*plain, **kwargs or {})


class Rounding(Wrapper):
    """Its numbers are rounded by each operator: autograd does not see it."""

    parts = ("a",)

    @staticmethod
    def __new__(cls, a):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)

    def __init__(self, a):
        self.a = a

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda x: x.a.round() if isinstance(x, cls) else x, (args, kwargs or {}))
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, func(*args, **kwargs))


def same(want, got):
    assert type(got) is type(want)
    if isinstance(want, (tuple, list)):
        assert len(want) == len(got)
        for x, y in zip(want, got, strict=True):
            same(x, y)
    elif isinstance(want, Wrapper):
        assert got.shape == want.shape and got.dtype is want.dtype and got.requires_grad is want.requires_grad
        for name in want.parts:
            same(getattr(want, name), getattr(got, name))
    elif isinstance(want, torch.Tensor):
        assert got.requires_grad is want.requires_grad
        torch.testing.assert_close(got, want)
    else:
        assert want == got


def compiled(fn, **how):
    ledger = Ledger()
    how = {"fullgraph": True, "suppress_errors": False, **how}
    return wrap_function(fn, FrameCompiler(Config(**how), ledger)), ledger


def pair(*shape):
    return Pair(torch.randn(shape), torch.randn(shape))


FUNCTIONS = [
    lambda x: x * 2 + 1,
    lambda x: (x + x).relu().sum(0),
    lambda x: (x.a, x.b * 2, x, x.total()),
    lambda x: [x.T @ x, torch.cat([x, x]), x.reshape(-1)],
    lambda x: x + 1 if isinstance(x * 2, Pair) and type(x) is Pair and x.shape[1] == 4 else x,
    lambda x: (F.softmax(x, -1), F.layer_norm(x, (4,)), x.size(0), x.dtype, x.ndim),
]


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("grad", [False, True])
def test_one_graph_for_all_sizes(fn, grad):
    fast, ledger = compiled(fn)
    with torch.set_grad_enabled(grad):
        for rows in (3, 5, 8, 2):
            x = pair(rows, 4)
            same(fn(x), fast(x))
    assert len(ledger.records) <= 2


def test_made_in_captured_code():
    fast, _ = compiled(lambda x: (Pair(x + 1, x) * 3).total(), fullgraph=False)
    x = torch.randn(3)
    same((Pair(x + 1, x) * 3).total(), fast(x))


def test_the_class_may_change():
    fast, _ = compiled(lambda x: x.total())
    x = pair(2, 2)
    same(x.total(), fast(x))
    Pair.base = 100
    try:
        same(x.total(), fast(x))
    finally:
        Pair.base = 10


@pytest.mark.parametrize("frozen", [True, False])
def test_a_quantised_weight(frozen):
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight = nn.Parameter(Quantised.of(layer.weight), requires_grad=False)
            layer.bias.requires_grad_(not frozen)
    fast = framesmith.compile(model, fullgraph=True)
    for _ in range(3):
        x = torch.randn(5, 6, requires_grad=not frozen)
        with torch.set_grad_enabled(not frozen):
            want, got = model(x), fast(x)
        torch.testing.assert_close(got, want)
    model[0].weight.numbers.add_(1)
    torch.testing.assert_close(fast(x), model(x))


def test_a_quantised_weight_is_computed_once_until_a_part_changes():
    def parameter():  # with it sums are exact, in whatever order
        numbers = torch.randint(-8, 9, (64, 64), dtype=torch.int8)
        return nn.Parameter(Quantised(numbers, 2.0 ** torch.randint(-3, 1, (64, 1))), requires_grad=False)

    layer = nn.Linear(64, 64, bias=False)
    layer.weight = parameter()
    fast, ledger = compiled(layer.forward)
    x = torch.randint(-4, 5, (5, 64)).float()
    changes = (lambda w: None, lambda w: w.numbers.add_(1), lambda w: w.scale.mul_(2),
               lambda w: setattr(w, "scale", w.scale * 0.25), lambda w: setattr(layer, "weight", parameter()))
    with torch.no_grad():
        for change in changes:
            for _ in range(3):
                change(layer.weight)
                for _ in range(2):
                    assert torch.equal(fast(x), layer(x))
    (record,) = ledger.records
    assert record.report.constants


PROGRAMS = {
    "once": lambda w, x: w * x,
    "twice": lambda w, x: (w * x) * x + w,
    "summed": lambda w, x: (w * x * 2).sum(),
    "branching": lambda w, x: [(y := w * x.sin()) * 2, y.cos() + x],
    "without": lambda w, x: (w.detach() * x, (w * x).detach(), w + 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("leaf", [False, True])
@pytest.mark.parametrize("backend", ["native", "eager"])
def test_derivatives_are_those_of_the_operator_not_of_its_parts(name, leaf, backend):
    """The class rounds, which autograd does not see."""
    def graded(fn):
        w, x = Rounding(torch.tensor([1.4, 2.6])), Rounding(torch.tensor([1.0, 2.3])).requires_grad_()
        w.requires_grad_(leaf)
        out = fn(w, x)
        ends = [y for y in (out if isinstance(out, (list, tuple)) else [out]) if y.requires_grad]
        return out, torch.autograd.grad(ends, (w, x) if leaf else (x,), [torch.ones_like(y) for y in ends])

    fast, _ = compiled(PROGRAMS[name], backend=backend)
    for _ in range(2):
        same(graded(PROGRAMS[name]), graded(fast))


def test_a_gradient_of_another_class_than_its_tensor_is_left_to_eager():
    fast, ledger = compiled(lambda w, x: w * x, fullgraph=False)
    for fn in (lambda w, x: w * x, fast):
        w, x = Rounding(torch.tensor([1.4, 2.6])), torch.tensor([1.0, 2.3], requires_grad=True)
        fn(w, x).backward(torch.ones(2))
        same(Rounding(torch.tensor([1.0, 3.0])), x.grad)


def test_a_class_that_is_not_declared_is_asked_in_each_call():
    """Its `__torch_dispatch__` may have side effects, and read what no guard holds."""
    asked = []

    class Counting(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

        @staticmethod
        def __new__(cls, a):
            return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)

        def __init__(self, a):
            self.a = a

        def __tensor_flatten__(self):
            return ["a"], None

        @classmethod
        def __tensor_unflatten__(cls, parts, context, size, stride):
            return cls(parts["a"])

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            asked.append(func)
            out = func(*tree_map(lambda x: x.a if isinstance(x, Counting) else x, args), **(kwargs or {}))
            return cls(out) if isinstance(out, torch.Tensor) else out

    compiled, x = framesmith.compile(lambda x: (x * 2).sin()), Counting(torch.randn(3))
    with pytest.warns(UserWarning, match="tensor subclass Counting"):
        results = [compiled(x) for _ in range(3)]
    assert asked == [aten.mul.Tensor, aten.sin.default] * 3
    for out in results:  # what the class does to the parts may be compiled
        torch.testing.assert_close(out.a, (x.a * 2).sin())
