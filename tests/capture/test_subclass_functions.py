"""Tensors of classes with a `__torch_function__` of their own: it is followed, called as eager calls it."""

import copy
import functools
import operator
import warnings
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

import framesmith
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.ledger import Ledger
from framesmith.testing import CompileCounter
from framesmith.wrapping import wrap_function
from tests.capture.agree import Fresh, differences, graded, observed


class Logged(torch.Tensor):
    seen = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append((func.__name__, len(args), sorted(kwargs or {}), [t.__name__ for t in types]))
        return super().__torch_function__(func, types, args, kwargs or {})


class Loud(Logged):
    pass


class Other(torch.Tensor):
    """Of no relation."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Logged.seen.append(("other", func.__name__))
        if func in (torch.Tensor.mul, torch.sub):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Plain(torch.Tensor):
    pass


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Logged.seen.append(("refuses", func.__name__))
        if func is torch.cos:
            raise TypeError("no cosine")
        return NotImplemented


class Silent(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


def of(cls, grad=False, shape=(3, 4)):
    count = shape[0] * shape[1]
    data = torch.linspace(-1, 2, 12)[:count].reshape(shape)
    return Fresh(lambda: torch.Tensor._make_subclass(cls, data.clone(), grad))


P = of(torch.Tensor)


def check(fn, *args, breaks=False, grad=None, calls=2):
    """The compiled function does what the plain one does: values, classes, memory, gradients, and what it logs."""
    def logged(fn):
        @functools.wraps(fn)
        def run(*args):
            Logged.seen.clear()
            return fn(*args), list(Logged.seen)

        return run

    ledger = Ledger()
    config = Config(backend="eager", fullgraph=not breaks, suppress_errors=False)
    compiled = wrap_function(fn, FrameCompiler(config, ledger))
    for mode in (False, True) if grad is None else (grad,):
        for _ in range(calls):
            want, got = (observed(logged(f), args, 7, mode) for f in (fn, compiled))
            assert differences(want, got) == [], (got["error"], differences(want, got))
    assert ledger.records or want["error"] or breaks, "nothing was captured"
    if want["error"] is None:
        graded_want, got = (graded(logged(f), args) for f in (fn, compiled))
        assert differences(graded_want, got) == [], differences(graded_want, got)
    return want


ONE = [
    lambda x: x * 2 + 1,
    lambda x: (2 - x, 2 / x, x ** 2, 2 ** x, x @ x.T, -x, abs(x), x % 2, x > 0, operator.lt(0, x), x == x, x != 1),
    lambda x: (x.T, x.mT, x.shape, x.dtype, x.ndim, x.requires_grad, x.is_leaf, x.device, x.itemsize, x.real),
    lambda x: (x.size(), x.size(0), x.dim(), x.numel(), x.stride(), x.is_contiguous(), len(x), x.is_floating_point()),
    lambda x: (F.relu(x), F.gelu(x), F.softmax(x, -1), F.dropout(x, 0.5, training=False), F.layer_norm(x, (4,))),
    lambda x: (torch.sin(x), torch.stack([x, x]), torch.cat((x, torch.ones(3, 4))), torch.add(x, 1, alpha=2)),
    lambda x: (F.pad(x, (1, 1)), torch.zeros_like(x)),
    lambda x: torch.einsum("ij,kj->ik", x, x),
    lambda x: (torch.add(torch.ones(3, 4), other=x), torch.where(x > 0, x, 0), torch.clamp(x, min=0)),
    lambda x: [row * 2 for row in x],
    lambda x: (*x, x[0], x[:, 1:], x[..., 0], x[None], x[[0, 1]], x[0, 1]),
    lambda x: (x.max(1), x.sort(0), x.topk(2), x.std(), x.max(1).values),
    lambda x: (x.split(2, 1), x.chunk(2), x.unbind(0)),
    lambda x: (x.detach(), x.clone(), x.contiguous(), x.double(), x.to(torch.float64), x.view(-1), x.reshape(4, 3)),
    lambda x: (x.new_ones(2), x.new_zeros((2, 2)), torch.ones_like(x, dtype=torch.float64)),
    lambda x: (x.as_subclass(torch.Tensor), x.as_subclass(Plain), torch.Tensor.add(x, 1), torch.Tensor.T.__get__(x)),
    lambda x: (isinstance(x * 2, Logged), type(x + 1) is Logged, isinstance(x.sum(), torch.Tensor)),
    lambda x: (x == None, x.grad, x.grad_fn is None),  # noqa: E711
    lambda x: torch.ops.aten.mul.Tensor(x, 2) + torch.ops.aten.mul(x, 2),
    lambda x: (torch.is_tensor(x), torch.is_floating_point(x), torch.numel(x), torch.result_type(x, 1)),
    lambda x: (x.__getitem__(0), torch.Tensor.__getitem__(x, 1), torch.Tensor.shape.__get__(x)),
    lambda x: (torch.ones(3, 4) * x, torch.ones(3, 4).add(x), torch.ones(3, 4)[x.bool().long()[0, :2]]),
    lambda x: torch.no_grad()(lambda y: y * 2)(x),
    lambda x: (x.unflatten(1, (2, 2)), x.norm(), x.rsqrt().nan_to_num(), x.index_select(0, torch.tensor([0, 2]))),
    lambda x: F.multi_head_attention_forward(
        x[:, None], x[:, None], x[:, None], 4, 2, torch.ones(12, 4), None, None, None, False, 0.0, torch.ones(4, 4),
        None, training=False)[0],
    lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2])) + F.mse_loss(x, torch.zeros(3, 4)),
    lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", ONE)
def test_functions_and_methods(fn, grad):
    check(fn, of(Logged, grad))


@pytest.mark.parametrize("fn", [
    lambda x, y: x + y,
    lambda x, y: y + x,
    lambda x, y: (x * y, torch.add(y, x), torch.cat([x, y]), F.linear(x, y), F.linear(y, x)),
    lambda x, y: F.mse_loss(x, y),
    lambda x, y: torch.where(x > 0, x, y),
    lambda x, y: x.add(y, alpha=2),
    lambda x, y: torch.addcmul(torch.ones(3, 4), x, y),
])
@pytest.mark.parametrize("second", [Logged, Loud, Plain, Other, Silent, torch.Tensor, nn.Parameter])
def test_classes_among_each_other(fn, second):
    """Subclasses are asked before their bases, others in order; NotImplemented asks the next."""
    check(fn, of(Logged), of(second))


@pytest.mark.parametrize("fn", [
    lambda x: torch.sin(x),
    lambda x: x * 2,
    lambda x: F.relu(x),
    lambda x: x.T,
    lambda x: torch.cos(x),
    lambda x: [x, torch.ones(2).sin()],
])
def test_errors(fn):
    want = check(fn, of(Refusing), grad=False, breaks=True)
    assert want["error"] is not None or len(want["result"]) == 2


def test_a_caught_error():
    def fn(x, y):
        try:
            return torch.cos(x)
        except TypeError as e:
            return y * 2, str(e)

    check(fn, of(Refusing), P)


@pytest.mark.parametrize("fn", [
    lambda x: (x.add_(1), x.mul_(x), x),
    lambda x: [x.__setitem__(0, 1), x],
    lambda x: (torch.add(torch.ones(3, 4), 1, out=x), x),
    lambda x: (torch.ones(3, 4).add_(x), F.relu(x, inplace=True)),
    lambda x: (x[0].fill_(7), x.zero_()[0]),
    lambda x: x.T.add_(1),
])
def test_writes(fn):
    check(fn, of(Logged), grad=False)


def test_operators_in_place():
    def fn(x, y):
        x += 1
        x *= y
        y -= x
        x[1:] = 3
        x[0] += 5
        return x, y

    check(fn, of(Logged), P, grad=False)
    check(fn, P, of(Logged), grad=False)


def test_attributes_are_set():
    def fn(x):
        before = x.grad
        x.grad = torch.ones(3, 4)
        x.mark = "seen"
        between = x.grad * 2
        x.grad = None
        x.grad = between
        return before, between, x.mark

    check(fn, of(Logged), grad=False)

    def deleting(x):
        x.grad = torch.ones(3, 4)
        del x.grad
        return x.grad

    check(deleting, of(Logged), grad=False)


def test_gradients_that_stand():
    def make():
        x = torch.Tensor._make_subclass(Logged, torch.ones(3), True)
        with torch._C.DisableTorchFunctionSubclass():
            x.grad = torch.full((3,), 2.0)
        return x

    check(lambda x: x.grad * 3, Fresh(make), grad=False)


class Masked(torch.Tensor):
    """Holds a tensor beside its own, and hands it on."""

    @staticmethod
    def __new__(cls, data, mask):
        return data.as_subclass(cls)

    def __init__(self, data, mask):
        self.mask = mask

    @property
    def filled(self):
        return torch.where(self.mask, self.as_subclass(torch.Tensor), torch.zeros(()))

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        masks = [a.mask for a in args if isinstance(a, cls)]
        plain = [a.as_subclass(torch.Tensor) if isinstance(a, cls) else a for a in args]
        out = func(*plain, **(kwargs or {}))
        if not isinstance(out, torch.Tensor) or not masks or out.shape != masks[0].shape:
            return out
        return cls(out, functools.reduce(torch.logical_and, masks))


def masked(grad=False):
    mask = torch.arange(12).reshape(3, 4) % 3 > 0
    return Fresh(lambda: Masked(torch.linspace(-1, 2, 12).reshape(3, 4).requires_grad_(grad), mask))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [
    lambda x: x * 2 + 1,
    lambda x: (x.sin() * x).filled,
    lambda x: (torch.exp(x), x.sum(), x.shape, (x * x).mask),
    lambda x: Masked(torch.ones(3, 4), x.mask) + x,
    lambda x: F.softmax(x * 2, -1).filled.sum(),
    lambda x: (x + torch.ones(3, 4), torch.ones(3, 4) - x),
])
def test_a_masked_tensor(fn, grad):
    check(fn, masked(grad))


class Metres(torch.Tensor):
    """Tracks a unit: powers of it, by the function."""

    unit = 1

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        rule = RULES.get(func)
        if rule is None:
            return super().__torch_function__(func, types, args, kwargs or {})
        units = [getattr(a, "unit", 0) if isinstance(a, cls) else 0 for a in args]
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        unit = rule(units)
        if unit is None:
            raise TypeError(f"units {units} in {func.__name__}")
        if not unit:
            return out.as_subclass(torch.Tensor)
        out = out.as_subclass(cls)
        out.unit = unit
        return out


RULES = {
    torch.Tensor.mul: sum, torch.mul: sum, torch.matmul: sum,
    torch.Tensor.add: lambda units: units[0] if len(set(units)) == 1 else None,
    torch.Tensor.div: lambda units: units[0] - units[1],
    torch.sqrt: lambda units: units[0] // 2,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [
    lambda x, y: (x * y, (x * y).unit, x / y, (x * y / y + x).unit),
    lambda x, y: torch.sqrt(x * x),
    lambda x, y: torch.matmul(x, y.T) + torch.mul(x, 1).sum(),
    lambda x, y: x + x * y,
    lambda x, y: x * 2 + y,
])
def test_a_tensor_with_units(fn, grad):
    check(fn, of(Metres, grad), of(Metres), breaks=True)


class Seen(torch.Tensor):
    """As torchvision's tensors: results are plain, but of a few functions; some attributes ask no function."""

    calls = 0

    @classmethod
    def _wrap(cls, out):
        return tree_map(lambda x: x.as_subclass(cls) if isinstance(x, torch.Tensor) else x, out)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if not all(issubclass(cls, t) for t in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **kwargs or {})
        if func in (torch.Tensor.clone, torch.Tensor.to, torch.Tensor.detach) and isinstance(args[0], cls):
            return cls._wrap(out)
        return out.as_subclass(torch.Tensor) if isinstance(out, cls) else out

    @property
    def shape(self):
        with torch._C.DisableTorchFunctionSubclass():
            return super().shape

    @property
    def ndim(self):
        with torch._C.DisableTorchFunctionSubclass():
            return super().ndim


@pytest.mark.parametrize("fn", [
    lambda x: (x + 1, x.clone(), x.to(torch.float64), x.shape, x.ndim, x.detach()),
    lambda x: (x.add_(1), x),
    lambda x: F.interpolate(x[None, None], (6, 8)),
    lambda x: x.reshape(x.shape[0], -1) if x.ndim == 2 else x,
])
def test_a_tensor_as_of_torchvision(fn):
    check(fn, of(Seen))


def test_a_module_with_parameters_of_the_class():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.Tensor._make_subclass(Logged, torch.linspace(-1, 1, 12).reshape(4, 3)))
            self.linear = nn.Linear(3, 2)
            self.norm = nn.LayerNorm(3)

        def forward(self, x):
            return self.linear(self.norm(x @ self.weight)).relu()

    torch.manual_seed(0)
    layer = Layer()
    x = torch.linspace(-1, 2, 12).reshape(3, 4)
    for backend in ("native", "eager"):
        compiled = framesmith.compile(layer, fullgraph=True, backend=backend)
        for _ in range(3):
            got = []
            for fn in (layer, compiled):
                layer.zero_grad()
                Logged.seen.clear()
                out = fn(x)
                seen = list(Logged.seen)
                with torch._C.DisableTorchFunctionSubclass():
                    out.square().sum().backward()
                    grads = [p.grad for p in layer.parameters()]
                    got.append([type(out), seen, out.detach().as_subclass(torch.Tensor), *grads])
                    layer.weight.data += 0.1 * (fn is compiled)
            assert got[0][:2] == got[1][:2]
            assert [type(g) for g in got[0]] == [type(g) for g in got[1]]
            torch.testing.assert_close(got[0][2:], got[1][2:])


Pair = namedtuple("Pair", "first second")


class Unbound(torch.Tensor):
    """Calls what C++ has for classes that want no part in it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Logged.seen.append(func.__name__)
        return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})


def of_the_program(x, y):
    if torch.overrides.has_torch_function((x, y)):
        return torch.overrides.handle_torch_function(of_the_program, (x, y), x, y)
    return x * y + torch.sin(x)


def disabled(x):
    with torch._C.DisableTorchFunctionSubclass():
        y = x + 1
        told = y.T, x.shape, torch._C._is_torch_function_enabled()
    return y, told, x * 2, torch._C._is_torch_function_enabled()


def on_a_device(x):
    with torch.device("cpu"):
        return x * torch.ones(3, 4), F.relu(x)


def writes_to_results(x):
    y = x * 2
    y.add_(1)
    z = y[0]
    z.mul_(3)
    return y, z


def one_result_twice(x):
    y = x + 1
    y.tag = "kept"
    return [y, y], {"key": y}, Pair(y, x)


def in_a_loop(x):
    for i in range(3):
        x = x * i + 1
    return x


def hashed(x):
    table = {x: 1}
    return table[x], x in table, {x} == {x}


torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.GELU(), nn.Linear(4, 2))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [
    lambda x: of_the_program(x, torch.ones(3, 4)),
    disabled, on_a_device, writes_to_results, one_result_twice, in_a_loop, hashed,
    lambda x: NET(x),
    lambda x: torch.Tensor.__torch_function__(torch.Tensor.sin, (torch.Tensor,), (x,)),
    lambda x: Logged.__torch_function__(torch.Tensor.sin, (torch.Tensor,), (torch.ones(2),)),
    lambda x: torch.inference_mode()(lambda y: y * 2)(x.detach()),
    lambda x: torch.autocast("cpu")(lambda y: y @ y.T)(x),
    lambda x: (list(x), tuple(x), sum(x), list(zip(x, x)), list(map(torch.sin, [x, x]))),
    lambda x: (reversed(x), x.__reversed__()),
    lambda x: (hasattr(x, "nothing"), hasattr(x, "T"), getattr(x, "nothing", 3)),
    lambda x: (Logged(x), Logged(2, 3).shape, Logged([1, 2.5]), torch.Tensor._make_subclass(Logged, x)),
    lambda x: torch.sin(x.detach(), out=torch.empty(3, 4)),
    lambda x: (F.embedding(torch.tensor([0, 1]), x), x.permute(1, 0).flatten().unsqueeze(-1).squeeze()),
    lambda x: (x.add)(1) + functools.partial(torch.add, x)(1) + functools.reduce(torch.add, [x, x, x]),
    lambda x: (operator.mul(x, 2), operator.getitem(x, 0), operator.neg(x), round(x), abs(x)),
    lambda x: (torch._foreach_add([x, x], 1), tree_map(lambda y: y * 2, {"a": [x]})),
    lambda x: (torch.rand_like(x), F.dropout(x, 0.5)),
    lambda x: torch.zeros(x.shape) + torch.zeros(x.size(0), 1),
    lambda x: [x := x.sin() for _ in range(2)][-1],
])
def test_programs(fn, grad):
    check(fn, of(Logged, grad))


def test_sequences_from_outside():
    """The first that is read of them are the tensors in them."""
    kept = [of(Logged).make(), torch.ones(3, 4)]
    check(lambda: (torch.stack(kept), torch.cat(tuple(kept)), torch.einsum("ij,ij->i", kept)))
    given = Fresh(lambda: [of(Logged).make(), P.make()])
    check(lambda x, kept: torch.hstack(kept) + torch.column_stack([x, kept[1]]).sum(), P, given)


def test_a_function_that_asks_nobody():
    check(lambda x: (x * 2, F.relu(x), x.T, x.shape, torch.cat([x, x])), of(Unbound))
    check(lambda x: (x * 2, F.relu(x), x.T, torch.cat([x, x]), x.add_(1)), of(Silent), grad=False)


class Endless(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Watching(torch.Tensor):
    """Looks at the data."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if any(float(a.detach().sum()) > 5 for a in args if isinstance(a, torch.Tensor)):
                Logged.seen.append("large")
        return super().__torch_function__(func, types, args, kwargs or {})


def broken_where_disabled(x):
    with torch._C.DisableTorchFunctionSubclass():
        y = x + 1
        if y.sum() > 0:
            y = y * 2
        z = y * x
    return y, z, x * 2


def a_branch(x):
    y = x * 2
    return y + 1 if y.sum() > 0 else y - 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("fn, cls", [
    (lambda x: x * 2, Endless), (lambda x: (x * 2, F.relu(x)), Watching),
    (broken_where_disabled, Logged), (a_branch, Logged),
    (lambda x: (f"{x}", repr(x), str(x + 1), x * 2), Logged),
    (lambda x: checkpoint(lambda y: y.sin() * 2, x, use_reentrant=False), Logged),
    (lambda x: torch.vmap(lambda y: y.sin() * 2)(x), Logged),
    (lambda x: torch.func.grad(lambda y: (y.sin() * 2).sum())(x), Logged),
    (lambda x: Doubled.apply(x) + 1, Logged),
    (lambda x: (copy.copy(x) * 2, copy.deepcopy(x.detach()) * 2), Logged),
    (lambda x: (x.tolist(), x.detach().numpy().sum()), Logged),
    (lambda x: (bool((x > -5).all()), float(x.sum()), int(x.sum()), x.sum().item(), 2.0 in x), Logged),
    (lambda x: (torch.where(x > 0), x.nonzero(), x[x > 0]), Logged),
    (lambda x: (torch.as_tensor(x), torch.tensor([x[0, 0].item(), 1.0])), Logged),
    (lambda x: (x._version, x * 2), Logged),
])
def test_what_breaks(fn, cls):
    """What is not captured runs in eager, with its answer."""
    check(fn, of(cls), breaks=True)
    check(fn, of(cls, True), breaks=True, grad=True)


def undispatched(cls, func, types, args=(), kwargs=None):
    with torch._C._DisableTorchDispatch():
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("how", ["a_plain_method", "a_static_method", "__torch_dispatch__", "__getattr__"])
def test_refused_classes(how):
    Odd = type(f"Odd{how}", (torch.Tensor,), {})
    own = torch.Tensor.__torch_function__.__func__
    if how == "a_plain_method":
        Odd.__torch_function__ = lambda self, *asked: own(type(self), *asked)
    elif how == "a_static_method":
        Odd.__torch_function__ = staticmethod(lambda *asked: own(Odd, *asked))
    elif how == "__getattr__":
        Odd.__getattr__ = lambda self, name: 2
    else:
        Odd.__torch_dispatch__ = classmethod(undispatched)

    def fn(x):
        return x * 2 + 1

    framesmith.reset()
    compiled = framesmith.compile(fn, backend="eager")
    x = torch.Tensor._make_subclass(Odd, torch.ones(3))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(3):
            got, want = compiled(x), fn(x)
            assert type(got) is type(want) and torch.equal(got, want)
    assert sum(f"tensor subclass Odd{how}" in str(w.message) for w in found) == 1, [str(w.message) for w in found]
    with pytest.raises(framesmith.exc.Unsupported, match=f"tensor subclass Odd{how}"):
        framesmith.compile(fn, fullgraph=True)(x)


def test_a_constant_result():
    weight = of(Metres).make()

    @framesmith.assume_constant_result
    def unit():
        return (weight * weight).unit

    assert framesmith.compile(lambda x: x * unit(), fullgraph=True, backend="eager")(torch.ones(2)).tolist() == [2, 2]


def test_where_functions_are_disabled_around_the_call():
    def fn(x):
        return x * 2, F.relu(x), torch._C._is_torch_function_enabled()

    counter = CompileCounter()
    compiled = framesmith.compile(fn, fullgraph=True, backend=counter)
    x = of(Logged).make()
    for _ in range(2):
        Logged.seen.clear()
        assert [type(y) for y in compiled(x)] == [Logged, Logged, bool] and len(Logged.seen) == 2
        with torch._C.DisableTorchFunctionSubclass():
            assert [type(y) for y in compiled(x)] == [torch.Tensor, torch.Tensor, bool]
            assert compiled(x)[2] is False
        assert len(Logged.seen) == 2
    assert counter.frame_count == 2


def test_numbers_that_vary():
    counter = CompileCounter()
    compiled = framesmith.compile(lambda x, n: (x * n + torch.add(x, n), x.sum()), backend=counter)
    x = of(Logged).make()
    for k in range(8):
        with torch._C.DisableTorchFunctionSubclass():
            torch.testing.assert_close(compiled(x, k * 0.5)[0], x * (k * 0.5) + x + k * 0.5)
    for k in range(8):
        got = compiled(x, k * 0.5)[0]
        assert type(got) is Logged
        with torch._C.DisableTorchFunctionSubclass():
            want = x * (k * 0.5) + x + k * 0.5
            torch.testing.assert_close(got.as_subclass(torch.Tensor), want.as_subclass(torch.Tensor))
    assert counter.frame_count <= 6


def test_the_class_may_change():
    class Changing(torch.Tensor):
        factor = 2

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            out = super().__torch_function__(func, types, args, kwargs or {})
            with torch._C.DisableTorchFunctionSubclass():
                return out * cls.factor

    def fn(x):
        return x + 1

    compiled, x = framesmith.compile(fn, backend="eager"), of(Changing).make()

    def same():
        got, want = compiled(x), fn(x)
        with torch._C.DisableTorchFunctionSubclass():
            assert type(got) is type(want) and torch.equal(got, want)

    same()
    Changing.factor = 5
    same()
    Changing.__torch_function__ = classmethod(lambda cls, func, types, args=(), kwargs=None: torch.zeros(1))
    same()
    del Changing.__torch_function__
    same()


def test_the_functions_state_is_the_programs():
    """What it writes stands after each call: in lists, dicts and attributes of the class, and in globals."""
    class Noting(torch.Tensor):
        names, table, last = [], {}, None

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.names.append(func)
            cls.table[func.__name__] = cls.table.get(func.__name__, 0) + 1
            cls.last = func.__name__
            return super().__torch_function__(func, types, args, kwargs or {})

    def fn(x):
        return F.linear(x.sin(), x).T + x.shape[0]

    def run(fn):
        Noting.names.clear()
        Noting.table.clear()
        Noting.last = None
        with torch._C.DisableTorchFunctionSubclass():
            x = of(Noting).make()
        out = fn(x), fn(x)
        return type(out[0]), list(Noting.names), dict(Noting.table), Noting.last

    compiled = framesmith.compile(fn, fullgraph=True, backend="eager")
    assert run(compiled) == run(fn) == run(compiled)
