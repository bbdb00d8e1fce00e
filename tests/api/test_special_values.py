"""Special values through compiled code: many functions in a graph, each with eager's results and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import framesmith

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
Functions = dict[str, Callable[[torch.Tensor], Any]]


def floats(dtype: torch.dtype) -> torch.Tensor:
    """Special values. There are 64 of each: eager's kernels take NaN otherwise where they have no full vector."""
    info = torch.finfo(dtype)
    kinks = [k * s for k in (0.0, 0.1, 0.5, 1.0, 1.5, 2.5, 3.0, 6.0, 20.0, 100.0, info.eps, info.tiny, info.max,
                             math.inf) for s in (1, -1)]
    return torch.tensor([*kinks, math.nan], dtype=torch.float64).to(dtype).repeat_interleave(64)


def integers(dtype: torch.dtype) -> torch.Tensor:
    """All but the least: where that is divided by -1, eager ends the process."""
    info = torch.iinfo(dtype)
    numbers = {k for k in (*range(-9, 10), 31, 63, 64, info.min + 1, info.max - 1, info.max) if k > info.min or k == 0}
    return torch.tensor(sorted(numbers), dtype=dtype)


@torch.enable_grad()
def differing(functions: Functions, x: torch.Tensor, grad: bool = False, tol: float = 16.0) -> dict[str, Any]:
    """What compiled code gives otherwise than eager: by the function's name, (found, expected)."""
    def outcome(call: Callable[..., Any]) -> dict[str, Any]:
        leaf = x.clone().requires_grad_(grad)
        out = call(leaf)
        grads = {name: torch.autograd.grad(y, leaf, torch.ones_like(y), retain_graph=True)[0] for name,
                 y in out.items() if y.requires_grad}
        return {name: (y.detach(), grads.get(name)) for name, y in out.items()}

    def every(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: function(x) for name, function in functions.items()}

    want, got = outcome(every), outcome(framesmith.compile(every, fullgraph=True))
    return {name: (got[name], want[name])
            for name in want if not all(map(lambda a, b: same(a, b, tol), got[name], want[name]))}


def same(a: Any, b: Any, tol: float) -> bool:
    if a is None or b is None:
        return a is b
    if a.dtype is not b.dtype or a.shape != b.shape or a.stride() != b.stride():
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    info = torch.finfo(a.dtype)
    return torch.allclose(a.double(), b.double(), rtol=tol * info.eps, atol=tol * info.eps * 0.01, equal_nan=True)


def _with_numbers() -> Functions:
    found: Functions = {}
    for k in (1, 3, -1, -3, -7, 200, 300, -129, -200, 40000, -(2**31), 2**31 - 1):
        for name in ("add", "mul", "eq", "lt", "ge", "clamp_min", "clamp_max", "bitwise_xor", "floor_divide",
                     "remainder", "fmod"):
            found[f"{name} {k}"] = lambda x, name=name, k=k: getattr(torch, name)(x, k)
        found[f"trunc {k}"] = lambda x, k=k: torch.div(x, k, rounding_mode="trunc")
        found[f"rsub {k}"] = lambda x, k=k: k - x
        found[f"choice {k}"] = lambda x, k=k: torch.where(x > 2, x, k)
        found[f"tensor {k}"] = lambda x, k=k: torch.fmax(x, torch.tensor(k))
        found[f"logical {k}"] = lambda x, k=k: torch.logical_and(x, torch.tensor(k * 256))
    return found


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_with_numbers_out_of_range(dtype: torch.dtype) -> None:
    x = integers(dtype)
    functions = {name: f for name, f in _with_numbers().items() if _accepted(f, x)}
    assert len(functions) > 100
    assert not differing(functions, x)


def _accepted(function: Callable[..., Any], x: torch.Tensor) -> bool:
    try:
        function(x)
    except (RuntimeError, ZeroDivisionError):
        return False
    return True


def test_constants_are_converted_as_eager_does() -> None:
    def constants(y: torch.Tensor) -> list[torch.Tensor]:
        made = [torch.full((3,), k).to(dtype) for k in (math.nan, math.inf, -3.7, 300.7)
                for dtype in (*INTEGERS[2:], torch.uint8)]
        made += [torch.arange(*k, dtype=dtype) for k in ((-7.9, -4.0), (-0.5, 3.5), (5.5, 0.1, -1.9))
                 for dtype in INTEGERS]
        truths = [getattr(one, name)(dtype=torch.bool) for one in (y, y > 0, y * 0) for name in ("sum", "prod")]
        return [*made, *truths, y * torch.tensor(0.1), torch.atan2(torch.tensor(-0.0), y)]

    y = torch.linspace(-1, 1, 32, dtype=torch.float64)
    for got, want in zip(framesmith.compile(constants, fullgraph=True)(y), constants(y), strict=True):
        assert got.dtype is want.dtype and torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_next_number_is_one_of_the_dtype(dtype: torch.dtype) -> None:
    towards = {f"{k}": lambda x, k=k: torch.nextafter(x, torch.full_like(x, k)) for k in (math.inf, -math.inf, 0.0)}
    assert not differing(towards, floats(dtype), tol=0.0)


NAMES = """silu mish hardsigmoid hardswish leaky_relu elu selu celu softplus softshrink hardshrink logsigmoid relu6
hardtanh relu"""
ACTIVATIONS: Functions = {
    **{name: getattr(F, name) for name in NAMES.split()},
    "elu 0.7": lambda x: F.elu(x, 0.7),
    "celu 2": lambda x: F.celu(x, 2.0),
    "hardtanh 0.5": lambda x: F.hardtanh(x, -0.5, 0.5),
    "softshrink 0": lambda x: F.softshrink(x, 0.0),
    "logit": lambda x: torch.logit(x, 0.1),
    **{f"logit {k}": lambda x, k=k: torch.logit(x, k) for k in (math.nan, -1.0, 0.7, 1.0)},
    "threshold": lambda x: F.threshold(x, 0.5, 20.0),
    "clamp": lambda x: x.clamp(-0.5, 3.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_activations(dtype: torch.dtype) -> None:
    assert not differing(ACTIVATIONS, floats(dtype), grad=True, tol=64.0)


REDUCING: Functions = {
    "var": lambda x: torch.var(x, correction=math.nan), "std": lambda x: x.std(1, correction=math.nan),
    "huber": lambda x: F.huber_loss(x, x.detach() + 1, delta=math.inf),
    **{f"smoothing {k}": lambda x, k=k: F.cross_entropy(x, torch.arange(4), label_smoothing=k) for k in (math.nan, -1)},
    "smoothing of probabilities": lambda x: F.cross_entropy(x, x.detach().softmax(1), label_smoothing=-1.0),
}


@pytest.mark.parametrize("columns", [8, 3000])
def test_odd_numbers_of_reductions(columns: int) -> None:
    assert not differing(REDUCING, torch.linspace(-1, 1, 4 * columns).view(4, columns), grad=True, tol=64.0)


@pytest.mark.parametrize("product", [lambda x: x.prod(), lambda x: x.prod(-1), lambda x: x.prod(0, keepdim=True)])
@pytest.mark.parametrize("row", [
    (1, math.nan, 2), (1, math.inf, 2), (1, math.nan, 0), (0, math.nan, 0), (1e30, 1e30, 2), (1, 3, 0), (0, 3, 0),
    (1, 2, 3)
])  # fmt: skip
def test_gradients_of_products(product: Callable[[torch.Tensor], torch.Tensor], row: tuple[float, ...]) -> None:
    x = torch.tensor([row, (1.0, 2.0, 3.0)])
    assert not differing({"prod": product}, x, grad=True)


@pytest.mark.parametrize("zeros", [0, 1, 2])
@pytest.mark.parametrize("product", [lambda x: x.prod(), lambda x: x.prod(-1)])
@torch.enable_grad()
def test_second_derivatives_of_products(product: Callable[[torch.Tensor], torch.Tensor], zeros: int) -> None:
    def second(product: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        x = torch.linspace(0.5, 2.0, 6, dtype=torch.float64).reshape(2, 3)
        x.view(-1)[:zeros] = 0
        x.requires_grad_()
        (first,) = torch.autograd.grad(product(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    torch.testing.assert_close(second(framesmith.compile(product)), second(product))


@pytest.mark.parametrize("through", [
    lambda x: x.log2().sgn(), lambda x: (x * math.inf).sgn() * 2 + x.square(), lambda x: (x[1:] / 0).sgn()])
def test_zeros_of_a_gradient_stay_zeros(through: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Autograd gives the gradient of the sign of a real number no memory: it times infinity is zero."""
    assert differing({"gradient": through}, floats(torch.float32), grad=True) == {}


@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_attention_to_keys_that_a_mask_excludes(rows: int, number: float) -> None:
    key = torch.randn(1, 2, 32, 16)
    key[0, 0, 3] = number
    kept = torch.arange(32) != 3
    masks = (kept.expand(rows, 32), kept.view(1, 1, 1, 32), torch.where(kept, 0.0, -math.inf).expand(rows, 32))

    def attention(query: torch.Tensor, *masks: torch.Tensor) -> list[torch.Tensor]:
        return [F.scaled_dot_product_attention(query, key, key.nan_to_num(0, 0), mask) for mask in masks]

    query = torch.randn(1, 2, rows, 16)
    for got, want in zip(framesmith.compile(attention)(query, *masks), attention(query, *masks), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [1, 40])
def test_zeros_keep_their_sign_and_quotients_are_infinite(dtype: torch.dtype, count: int) -> None:
    def every(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bounded = torch.relu(x), x.clamp(min=0), x.clamp(max=0), x.clamp(0, 1), F.relu6(x), F.hardtanh(x, 0, 1)
        return *bounded, x // 0.25, x // -0.25, -x // 0.25, x // 0.0

    for number in (-0.0, 0.0, math.nan, torch.finfo(dtype).max, math.inf):
        x = torch.full((count,), number, dtype=dtype)
        for got, want in zip(framesmith.compile(every, fullgraph=True)(x), every(x), strict=True):
            assert torch.equal(got.nan_to_num(7), want.nan_to_num(7))
            assert want.isnan().all() or torch.equal(got.signbit(), want.signbit())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("count", [1, 40])
def test_functions_of_signed_zeros_and_infinities(dtype: torch.dtype, count: int) -> None:
    def every(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        powers = x ** 0.5, x ** -0.5, x ** 1.5, x ** -1, x ** 3
        far = x.asinh(), x.acosh()
        return *powers, *far, x.expm1(), x.log1p(), F.elu(x), F.selu(x), F.celu(x, 0.3), x.erf(), x.tanh()

    most = torch.finfo(dtype).max
    for number in (-0.0, 0.0, math.inf, -math.inf, most, -most):
        x = torch.full((count,), number, dtype=dtype)
        for got, want in zip(framesmith.compile(every, fullgraph=True)(x), every(x), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)
            assert want.isnan().all() or torch.equal(got.signbit(), want.signbit())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (40,)], ids=str)
def test_sums_begin_with_zero(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    def every(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = x.sum(dtype=torch.float64), x.mean(dtype=torch.float64)
        return x.sum(), x.sum(0), x.sum(-1, keepdim=True), x.mean(), x.mean(0), x.nansum(), x.prod(), *wide

    x = torch.full(shape, -0.0, dtype=dtype)
    for got, want in zip(framesmith.compile(every, fullgraph=True)(x), every(x), strict=True):
        assert torch.equal(got.signbit(), want.signbit())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("odd", [2.0, -0.1, math.nan])
def test_losses_of_what_is_no_probability(odd: float, reduction: str) -> None:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy(x, y, reduction=reduction) * 2

    compiled, fine, bad = framesmith.compile(loss, fullgraph=True), torch.rand(50), torch.rand(50)
    bad[37] = odd
    torch.testing.assert_close(compiled(fine, fine), loss(fine, fine))
    for pair, name in ((bad, fine), "input"), ((fine, bad), "target"):
        with pytest.raises(RuntimeError, match=f"elements of {name} should be between 0 and 1"):
            compiled(*pair)


@pytest.mark.parametrize("size", [1, 3])
def test_averages_of_one_element_begin_with_zero(size: int) -> None:
    def every(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.adaptive_avg_pool2d(x, size), F.adaptive_avg_pool1d(x[0], size)

    x = torch.full((2, 3, size, size), -0.0)
    for got, want in zip(framesmith.compile(every, fullgraph=True)(x), every(x), strict=True):
        assert torch.equal(got.signbit(), want.signbit())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("shape", "dims"), [((4, 20000), -1), ((3000, 4), 0), ((40000,), None)], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_long_sums_of_infinities(dtype: torch.dtype, shape: tuple[int, ...], dims: Any, dynamic: bool) -> None:
    """What rounding took from the sum of a block is no number once the sum is infinite."""
    def every(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 1.5).sum(dims), (x + 1).mean(dims)

    x = torch.ones(shape, dtype=dtype)
    for number in (math.inf, -math.inf, torch.finfo(dtype).max):
        x.view(-1)[5], x[..., -1] = number, number
        for got, want in zip(framesmith.compile(every, fullgraph=True, dynamic=dynamic)(x), every(x), strict=True):
            assert torch.equal(got, want)


DIVISIONS = {
    "remainder": torch.remainder, "floor": torch.floor_divide, "fmod": torch.fmod,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
}  # fmt: skip


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("divide", DIVISIONS.values(), ids=DIVISIONS)
def test_a_division_by_an_integer_zero_is_eagers_error(divide: Any, dtype: torch.dtype, writes: bool) -> None:
    def program(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        if writes:
            z.add_(1)
        return F.pad(divide(x, y), (1, 1)) + divide(y + 7, y).sum()

    x, y, z = torch.arange(40, dtype=dtype), torch.arange(1, 41, dtype=dtype), torch.zeros(3)
    compiled = framesmith.compile(program, fullgraph=True)
    assert torch.equal(compiled(x, y, z), program(x, y, z.clone()))
    y[17], before = 0, z.clone()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(x, y, z)
    assert torch.equal(z, before + writes)
