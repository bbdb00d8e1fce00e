"""Pointwise decompositions against eager, over dtypes and promotions."""

from __future__ import annotations

import math

import pytest
import torch

from framesmith.fake import Recorder
from framesmith.fake.tensor import new_fake
from framesmith.prims.decompose import decompose
from tests.prims.harness import check

aten = torch.ops.aten
F32 = [torch.float32, torch.float64, torch.bfloat16]


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def edge(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor([-math.inf, -3.0, -2.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, 3.0, 7.0, math.inf, math.nan],
                        dtype=dtype)


def ints(*shape: int, low: int = -5, high: int = 6, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(low, high, shape, dtype=dtype)


UNARY = """abs neg sign sgn relu floor ceil trunc round reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin
cos tan asin
acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma sigmoid square isnan isinf isfinite signbit
logical_not
isposinf isneginf sinc deg2rad rad2deg special_entr positive absolute"""


@pytest.mark.parametrize("name", UNARY.split())
@pytest.mark.parametrize("dtype", F32)
def test_unary(name: str, dtype: torch.dtype) -> None:
    check(getattr(aten, name).default, edge(dtype))


ON_INTEGERS = """abs neg sign relu floor ceil trunc round exp sqrt sigmoid isnan isinf isfinite signbit logical_not
square"""


@pytest.mark.parametrize("name", ON_INTEGERS.split())
def test_unary_on_integers(name: str) -> None:
    check(getattr(aten, name).default, ints(7, low=0))


ACTIVATIONS = """silu mish gelu hardsigmoid hardswish leaky_relu elu selu celu softplus softshrink hardshrink
log_sigmoid relu6
hardtanh"""


@pytest.mark.parametrize("name", ACTIVATIONS.split())
@pytest.mark.parametrize("dtype", F32)
def test_activation(name: str, dtype: torch.dtype) -> None:
    check(getattr(aten, name).default, floats(4, 9, dtype=dtype) * 3)


def test_activation_arguments() -> None:
    x = floats(5, 6) * 3
    check(aten.gelu.default, x, approximate="tanh")
    check(aten.elu.default, x, 0.7, 1.1, 1.3)
    check(aten.softplus.default, x, 2, 1.5)
    check(aten.hardtanh.default, x, -0.3, 0.4)
    check(aten.leaky_relu.default, x, 0.2)
    check(aten.celu.default, x, 0.7)
    check(aten.threshold.default, x, 0.1, 20)
    check(aten.prelu.default, x, torch.rand(6))
    check(aten.prelu.default, x, torch.rand(1))
    check(aten.glu.default, x, 1)
    check(aten.logit.default, torch.rand(9), 0.1)
    check(aten.logit.default, torch.rand(9))
    check(aten.nan_to_num.default, edge())
    check(aten.nan_to_num.default, edge(), 1.0, 2.0, -2.0)
    check(aten.round.decimals, x, decimals=2)
    check(aten.rrelu.default, x)
    check(aten.dropout.default, x, 0.3, False)
    check(aten.native_dropout.default, x, 0.3, False)
    check(aten.log_sigmoid_forward.default, x)
    check(aten.ldexp.Tensor, x, torch.arange(6))


BINARY = """add.Tensor sub.Tensor mul.Tensor div.Tensor maximum minimum eq.Tensor ne.Tensor lt.Tensor le.Tensor
gt.Tensor ge.Tensor
logical_and logical_or logical_xor floor_divide remainder.Tensor fmod.Tensor fmax fmin copysign.Tensor rsub.Tensor"""
PAIRS = [
    (torch.float32, torch.float32), (torch.int64, torch.float32), (torch.int32, torch.int64),
    (torch.bfloat16, torch.float32),
    (torch.uint8, torch.int8), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.bfloat16),
]  # fmt: skip


@pytest.mark.parametrize("name", BINARY.split())
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_binary(name: str, pair: tuple[torch.dtype, torch.dtype]) -> None:
    packet, _, overload = name.partition(".")
    x, y = (torch.randint(1, 9, shape).to(dtype) for shape, dtype in zip([(3, 1, 5), (4, 1)], pair))
    check(getattr(getattr(aten, packet), overload or "default"), x, y)


@pytest.mark.parametrize(
    "name", ["add.Tensor", "mul.Tensor", "logical_and", "bitwise_and.Tensor", "bitwise_xor.Tensor", "maximum",
             "eq.Tensor"]
)
def test_binary_on_bool(name: str) -> None:
    packet, _, overload = name.partition(".")
    check(getattr(getattr(aten, packet), overload or "default"), torch.rand(4, 5) > 0.5, torch.rand(5) > 0.5)


SCALAR = ("add.Tensor sub.Tensor mul.Tensor div.Tensor eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar "
          "rsub.Scalar")


@pytest.mark.parametrize("name", [*SCALAR.split(), "remainder.Scalar", "fmod.Scalar", "floor_divide"])
@pytest.mark.parametrize("number", [2, 2.5, -3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool])
def test_scalars(name: str, number: float, dtype: torch.dtype) -> None:
    packet, _, overload = name.partition(".")
    x = torch.randint(0, 2, (7,)).to(dtype) if dtype is torch.bool else torch.randint(-9, 9, (7,)).to(dtype)
    op = getattr(getattr(aten, packet), overload or "default")
    try:
        op(x, number)
    except RuntimeError:
        return  # eager refuses subtraction of bool
    check(op, x, number)


def test_zero_dim_tensors_rank_below_sized_ones() -> None:
    check(aten.add.Tensor, floats(4, dtype=torch.bfloat16), torch.tensor(2.0))
    check(aten.add.Tensor, ints(4), torch.tensor(2.5))
    check(aten.mul.Tensor, ints(4, dtype=torch.int32), torch.tensor(7))
    check(aten.where.self, torch.rand(4) > 0.5, torch.tensor(2.5), ints(4))


def test_arithmetic_arguments() -> None:
    x, y = floats(4, 5), floats(5)
    check(aten.add.Tensor, x, y, alpha=2.5)
    check(aten.sub.Tensor, ints(4), ints(4), alpha=3)
    for mode in ("floor", "trunc", None):
        check(aten.div.Tensor_mode, x, y, rounding_mode=mode)
        check(aten.div.Tensor_mode, ints(6), ints(6, low=1), rounding_mode=mode)
    for exponent in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.7, 4):
        check(aten.pow.Tensor_Scalar, x.abs() + 0.1, exponent)
    check(aten.pow.Tensor_Scalar, ints(5), 2)
    check(aten.pow.Tensor_Scalar, ints(5), 2.0)
    check(aten.pow.Tensor_Tensor, x.abs(), y)
    check(aten.pow.Scalar, 10000.0, y)
    check(aten.lerp.Scalar, x, y, 0.3)
    check(aten.lerp.Scalar, x, y, 0.7)
    check(aten.lerp.Tensor, x, y.expand(4, 5), torch.rand(4, 5))
    check(aten.addcmul.default, x, y, y, value=0.3)
    check(aten.addcdiv.default, x, y, y.abs() + 1, value=0.3)
    check(aten.xlogy.Tensor, torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 3.0, math.nan]))
    check(aten.logaddexp.default, edge(), edge())
    check(aten.logaddexp2.default, edge(), edge())
    check(aten.heaviside.default, edge(), edge())
    check(aten.atan2.default, x, y)
    check(aten.hypot.default, x, y)
    check(aten.bitwise_left_shift.Tensor, ints(5, low=0), ints(5, low=0))
    check(aten.bitwise_right_shift.Tensor_Scalar, ints(5), 2)


def test_bounds_and_choice() -> None:
    x, y = edge(), torch.randn(14)
    check(aten.clamp.default, x, -1, 2.5)
    check(aten.clamp.default, x, None, 1.0)
    check(aten.clamp.default, ints(5), 0.5, 2)
    check(aten.clamp.Tensor, x, y)
    check(aten.clamp_min.default, x, 0)
    check(aten.clamp_max.default, x, 0)
    check(aten.where.self, y > 0, x, y)
    check(aten.where.ScalarOther, y > 0, x, -1.5)
    check(aten.where.Scalar, y > 0, 1.0, 0.0)
    check(aten.masked_fill.Scalar, x, y > 0, -math.inf)
    check(aten.masked_fill.Tensor, x, y > 0, torch.tensor(3))
    check(aten.fill.Scalar, x, 3)
    check(aten.max.other, x, y)
    check(aten.min.other, x, y)


def test_types() -> None:
    x = floats(4, 5) * 10
    for dtype in (torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.float64):
        check(aten._to_copy.default, x.abs(), dtype=dtype)
    check(aten._to_copy.default, x)
    check(aten.to.dtype, x, torch.float16)
    check(aten.view.dtype, x, torch.int32)
    check(aten.clone.default, x.t(), memory_format=torch.contiguous_format)
    check(aten.detach.default, x)


@pytest.mark.parametrize("device, rounded", [("cpu", True), ("cuda:0", False)])
def test_numbers_among_16_bit_terms(device: str, rounded: bool) -> None:
    """Eager rounds them to the tensors' dtype on the CPU alone."""
    recorder = Recorder()
    x = recorder.input_like(new_fake((3,), (1,), torch.bfloat16, torch.device(device)), "x")
    with recorder:
        out = x + 0.7
    graph = decompose(recorder.finish([out]), strict=True)
    numbers = [a for n in graph.nodes for a in n.args if isinstance(a, float)]
    assert numbers == [torch.tensor(0.7, dtype=torch.bfloat16).item() if rounded else 0.7]
