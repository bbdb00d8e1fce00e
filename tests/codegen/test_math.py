"""The header's vector functions against float64: at most 2 ulp (3 for three of them) over every binade of their
domain."""

import math

import pytest
import torch

from tests.codegen.compiled import call, compile_text
from tests.codegen.kernels import FLAGS_OF, WIDTHS

TEMPLATE = """
#define MAP(name) \\
  extern "C" void map_##name(const float* x, float* y, i64 n) { \\
    for (i64 i = 0; i < n; i += W) store(y + i, name(load(x + i, full)), full); \\
  } \\
  extern "C" void one_##name(const float* x, float* y, i64 n) { for (i64 i = 0; i < n; i++) y[i] = name(x[i]); }
"""
INF = math.inf
RANGES = {  # of arguments over which the error is measured
    "exp": (-110, 95), "exp2": (-155, 135), "expm1": (-110, 95), "sigmoid": (-85, 50), "tanh": (-20, 20),
            "erf": (-6, 6),
    "log": (0, INF), "log2": (0, INF), "log10": (0, INF), "log1p": (-0.9999999, INF), "sin": (-1e5, 1e5),
            "cos": (-1e5, 1e5),
    "tan": (-100, 100), "asinh": (-INF, INF), "acosh": (1, INF), "erfc": (-4, 9), "sqrt": (0, INF), "rsqrt": (0, INF),
    "floor": (-INF, INF), "round": (-INF, INF), "erfinv": (-1, 1), "digamma": (0.5, 1e6), "lgamma": (3, 1e6),
            "sign": (-INF, INF),
}  # fmt: skip


def samples(low: float, high: float) -> torch.Tensor:
    """Random bit patterns (every binade, signs, subnormals) and a uniform part, within [low, high]; a multiple of 64 of
    them."""
    generator = torch.Generator().manual_seed(7)
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=generator).to(torch.int32).view(torch.float32)
    wide = bits[(bits >= low) & (bits <= high)]
    even = torch.rand(60_000, generator=generator) * (min(high, 50) - max(low, -50)) + max(low, -50)
    x = torch.cat([wide, even.clamp(max(low, -3e38), min(high, 3e38))])
    return x[: x.numel() // 64 * 64].contiguous()


def ulps(got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Distance from the float64 value in units of the last place of float32."""
    spacing = torch.maximum(
        torch.ldexp(torch.ones_like(exact), torch.frexp(exact).exponent - 24),
        torch.tensor(2.0**-149, dtype=torch.float64)
    )
    return torch.where(got.double() == exact.float().double(), 0.0, (got.double() - exact).abs() / spacing)


@pytest.fixture(scope="module", params=WIDTHS)
def library(request):
    return compile_text(TEMPLATE + "\n".join(f"MAP({name})" for name in RANGES), ("-O2", *FLAGS_OF[request.param]))


@pytest.mark.parametrize("name", RANGES)
def test_ulps(library, name):
    low, high = RANGES[name]
    x = samples(low, high)
    y = torch.empty_like(x)
    call(library[f"map_{name}"], x, y, x.numel())
    error = ulps(y, getattr(torch, name)(x.double()))
    worst = error.argmax()
    assert error[worst] <= {"tanh": 3.0, "erf": 3.0, "sigmoid": 3.0}.get(name, 2.0), (x[worst].item(), y[worst].item(),
                                                                                      error[worst].item())


@pytest.mark.parametrize("name", RANGES)
def test_edges_and_scalar_form(library, name):
    inf, nan = math.inf, math.nan
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e-45, -1e-45, 3.4e38, -3.4e38, 88.72284, 88.73, -103.9,
                      -104.5, 0.5])
    vector, scalar, want = torch.empty_like(x), torch.empty_like(x), getattr(torch, name)(x.double()).float()
    call(library[f"map_{name}"], x, vector, 16)
    call(library[f"one_{name}"], x, scalar, 16)
    torch.testing.assert_close(vector, want, equal_nan=True, rtol=1e-6, atol=1e-44)
    torch.testing.assert_close(scalar, want, equal_nan=True, rtol=1e-6, atol=1e-44)
