"""Small programs of all kinds that kernels are made of: name -> (function, a function that makes its inputs)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F

HALF, BF16 = torch.float16, torch.bfloat16
GRAPHS: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {}
DYNAMIC: dict[str, set[tuple[int, int]]] = {}  # of graphs with size symbols: pairs (input, dim)
EXACT = {"ties and NaN", "floor, remainder", "integer division", "shifts and bits", "casts", "casts of integers",
         "rounding", "comparisons"}


def graph(
    name: str, make: Callable[[], list[Any]], dynamic: Collection[tuple[int, int]] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Note the decorated function under `name`."""

    def note(fn: Callable[..., Any]) -> Callable[..., Any]:
        GRAPHS[name] = fn, make
        DYNAMIC[name] = set(dynamic)
        return fn

    return note


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + 31 * len(shape))
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0 if not dtype.is_signed else -20, 21, shape, generator=generator).to(dtype)


def odd(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers with zeros of both signs, infinities, a NaN, huge and tiny ones among them."""
    t = x(*shape, dtype=dtype)
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e30, -1e-30, 1.0, -1.0, 0.5, 2.5, -1.5, 3.5]
    t.view(-1)[: len(special)] = torch.tensor(special, dtype=dtype)[: t.numel()]
    return t


def at(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high + sum(shape)))


# ------------------------------------------------------------------------------------------------------------ pointwise


@graph("chain", lambda: [x(37, 50), x(37, 50)])
def _(a, b):
    return torch.sigmoid(torch.relu(a * 2 + b) - 1), a - b


@graph("broadcast", lambda: [x(13, 1, 7), x(5, 1), x(7)])
def _(a, b, c):
    return a * b + c


@graph("one element", lambda: [x(), x(1), x(1, 1)])
def _(a, b, c):
    return a + b * c


@graph("no element", lambda: [x(0, 3), x(3)])
def _(a, b):
    return a + b, (a * 2).sum(0), a.sum(1)


@graph("transposed", lambda: [x(40, 33), x(33, 40)])
def _(a, b):
    return a + b.t()


@graph("to channels last", lambda: [x(2, 20, 9, 9), x(20)])
def _(a, b):
    return (a + b.view(1, -1, 1, 1)).contiguous(memory_format=torch.channels_last)


@graph("strided and flipped", lambda: [x(12, 30)])
def _(a):
    return a[::2, 1::3] * 2, torch.flip(a, (0, 1)) + 1, torch.roll(a, (2, -1), (0, 1))


@graph("cat, pad, split", lambda: [x(3, 40, 5), x(3, 20, 5)])
def _(a, b):
    return torch.cat((a, b * 2, a - 1), 1), F.pad(a, (1, 2, 3, 0), value=1.5), [p + 1 for p in a.split(8, 1)]


@graph("rotary", lambda: [x(2, 3, 8, 16), x(8, 16), x(8, 16)])
def _(q, cos, sin):
    a, b = q.chunk(2, -1)
    return q * cos + torch.cat((-b, a), -1) * sin


@graph("triangle", lambda: [x(17, 17)])
def _(a):
    return torch.tril(a, 1) * 2, torch.where(a > 0, a, -a).masked_fill(a > 1, float("-inf"))


@graph("bfloat16", lambda: [x(33, 40, dtype=BF16), x(40, dtype=BF16)])
def _(a, b):
    return F.gelu(a) * b + a, a.float() * 2


@graph("functions of halves", lambda: [odd(33, 40, dtype=BF16), x(33, 40, dtype=HALF)])
def _(a, b):
    c = a / b.bfloat16()
    return c, F.silu(a) * a, F.softmax(b, 1), F.gelu(b, approximate="tanh"), torch.sqrt(
        b.abs()), c.reciprocal(), torch.exp(b) - 1


@graph("numbers of rows and of channels", lambda: [x(9, 5, 120, dtype=BF16), x(120), x(5, 1), x(9, 1, 1)])
def _(a, b, c, d):
    return F.relu((a - b) * torch.rsqrt(b * b + 1)), (a + c).tanh() * d


@graph("float16", lambda: [x(33, 40, dtype=HALF), x(33, 40)])
def _(a, b):
    return torch.tanh(a) + 1, a * b


@graph("float64", lambda: [x(50, dtype=torch.float64), x(50)])
def _(a, b):
    return torch.exp(a) / 3.3 + 1e-300, torch.sqrt(a.abs()) * b, torch.round(a) // 0.7


@graph("functions", lambda: [x(100).clamp(-0.95, 0.95)])
def _(a):
    p = a.abs() + 0.1
    return (
        [f(a) for f in (torch.sin, torch.cos, torch.tan, torch.asin, torch.acos, torch.atan, torch.sinh, torch.cosh,
                        torch.asinh)],
        [f(a) for f in (torch.atanh, torch.erf, torch.erfc, torch.erfinv, torch.expm1, torch.exp2, torch.exp,
                        torch.tanh)],
        [f(p) for f in (torch.log, torch.log2, torch.log10, torch.log1p, torch.lgamma, torch.digamma, torch.rsqrt,
                        torch.sqrt)],
        torch.acosh(p + 1), torch.pow(p, a), torch.atan2(a, p), torch.hypot(a, p), torch.copysign(p, a),
        torch.nextafter(a, p),
        torch.digamma(a),
    )  # fmt: skip


@graph("ties and NaN", lambda: [odd(41), odd(41).flip(0)])
def _(a, b):
    return (
        torch.maximum(a, b), torch.minimum(a, b), torch.fmax(a, b), torch.fmin(a, b), torch.relu(a),
        torch.clamp(a, -1, 1), torch.sign(a),
        a.isnan(), a.isinf(), a.isfinite(), torch.signbit(a), a.abs(), -a, torch.where(a > b, a, b), a.nan_to_num(),
    )  # fmt: skip


@graph("comparisons", lambda: [odd(41), odd(41).flip(0), x(41, dtype=torch.bool), x(41, dtype=torch.bool).flip(0)])
def _(a, b, p, q):
    of_numbers = a < b, a <= b, a > b, a >= b, a == b, a != b
    return *of_numbers, p & q, p | q, p ^ q, ~p, p < q, p <= q, p > q, p >= q, p == q, p.logical_not()


@graph("floor, remainder", lambda: [odd(41), odd(41).flip(0)])
def _(a, b):
    return torch.floor_divide(a, b), torch.remainder(a, b), torch.fmod(a, b), torch.div(
        a, b, rounding_mode="trunc"), a / b, 1 / a


@graph("rounding", lambda: [odd(41)])
def _(a):
    return torch.floor(a), torch.ceil(a), torch.round(a), torch.trunc(a), torch.frac(a.clamp(-9, 9))


@graph("integer division", lambda: [x(61, dtype=torch.int64), x(61, dtype=torch.int32), x(61, dtype=torch.uint8)])
def _(a, b, c):
    d = torch.where(b == 0, 3, b)
    return (
        a // d, a % d, torch.fmod(a, d), torch.div(a, d, rounding_mode="trunc"), b // 4, b % 8, b * b - a, a.abs(), -b,
        a**3,
        torch.maximum(a, b), torch.minimum(b, d), c + c, c * 20, c // 7, c % 5, torch.sign(a), torch.clamp(b, -3, 3),
    )  # fmt: skip


@graph("shifts and bits", lambda: [x(61, dtype=torch.int32), x(61, dtype=torch.int64), at(70, 61)])
def _(a, b, n):
    return a & 7, a | 8, a ^ 3, ~a, a << 2, a >> 1, b << n, b >> n, a << n.to(torch.int32)


@graph("casts", lambda: [x(61) * 9, x(61, dtype=BF16)])
def _(a, b):
    kinds = (torch.float64, torch.float16, BF16, torch.int64, torch.int32, torch.int16, torch.int8, torch.bool)
    return [a.to(t) for t in kinds], [b.to(t) for t in kinds], a.abs().to(torch.uint8)


@graph("casts of integers", lambda: [x(61, dtype=torch.int64) * 50, x(61, dtype=torch.bool), x(61, dtype=torch.uint8)])
def _(a, b, c):
    kinds = (torch.float32, torch.float64, BF16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
             torch.bool)
    return [a.to(t) for t in kinds], [b.to(t) for t in kinds], [c.to(t) for t in kinds]


@graph("positions", lambda: [x(9, 20)])
def _(a):
    return torch.arange(20) * 2 + a, torch.arange(9, dtype=torch.float32).view(-1, 1) * a, torch.full(
        (3, 4), 7), torch.eye(5) + 1


@graph("bits", lambda: [x(50)])
def _(a):
    return a.view(torch.int32) + 1


# ----------------------------------------------------------------------------------------------------------- reductions


@graph("sums", lambda: [x(9, 50, 7)])
def _(a):
    return a.sum(0), a.sum(1), a.sum(2), a.sum((0, 2)), a.sum()


@graph("reductions", lambda: [x(9, 50)])
def _(a):
    return a.amax(1), a.amin(0), a.prod(1), a.mean(0), (a > 2).any(1), (a > -9).all(0), torch.logsumexp(a, 1), a.norm()


@graph("reductions of integers",
       lambda: [x(9, 50, dtype=torch.int64), x(9, 50, dtype=torch.int32), x(9, 50, dtype=torch.uint8)])
def _(a, b, c):
    return a.sum(1), b.sum(0), a.amax(0), b.amin(1), c.amax(1), c.sum(), (a % 3 + 1).prod(1), b.argmax(1)


@graph("reductions with NaN", lambda: [odd(6, 50)])
def _(a):
    return a.amax(1), a.amin(1), a.argmax(1), a.argmin(1), a.amax(0), a.sum(0)


@graph("positions of extremes", lambda: [x(9, 50, 6), torch.zeros(4, 20)])
def _(a, b):
    return a.argmax(0), a.argmin(1), a.argmax(2), b.argmax(1), a.argmax()


@graph("one of each row", lambda: [x(9, 1), x(1, 1)])
def _(a, b):
    return a.sum(1), a.argmax(1), F.softmax(b, 1), a.var(0)


@graph("ragged rows: sums and softmax", lambda: [x(5, 3001), odd(4, 2053), x(3, 2999, dtype=BF16)])
def _(a, b, c):
    return F.softmax(a, 1), a.sum(1), a.argmax(1), b.argmin(1), b.amax(1), F.log_softmax(c, 1), c.argmax(
        1), torch.zeros(2, 2051).argmax(1)


@graph("ragged rows: norms", lambda: [x(4, 2999), x(2999), x(3, 2048 + 4)])
def _(a, w, b):
    return F.layer_norm(a, (2999,), w), F.layer_norm(b, (2052,)), torch.full((3, 2053), -torch.inf).argmax(1) + a.var()


@graph("rows that begin anywhere, several in a tile", lambda: [x(1200, 50), odd(1100, 13), x(1200, 29, dtype=BF16)])
def _(a, b, c):
    return F.softmax(a, 1), a.argmax(1), b.amax(1), b + b.sum(1, keepdim=True), F.layer_norm(c, (29,)), c.copy_(
        c - c.mean(1, keepdim=True))


@graph("ragged rows of any length", lambda: [x(7, 3), x(6, 2501), x(3, 2050, dtype=BF16)],
       {(0, 0), (0, 1), (1, 1), (2, 1)})
def _(a, b, c):
    return F.softmax(a, 1), a.argmax(1), F.log_softmax(b, 1), b.sum(1), b.argmin(1), F.layer_norm(
        c.float(), c.shape[1:]), c.var(1)


@graph("ragged lengths", lambda: [x(9001), x(3, 7001, dtype=BF16), at(50, 5003), x(50)], {(0, 0)})
def _(a, b, i, w):
    return torch.relu(a * 2) + 1, (b + 1, b * 3), w[i] * 2


@graph("half sums", lambda: [x(9, 70, dtype=BF16), x(9, 70, dtype=HALF)])
def _(a, b):
    return a.sum(1), b.sum(0), a.mean(), F.softmax(b, 1), a.amax(0)


@graph("double sums", lambda: [x(9, 70, dtype=torch.float64)])
def _(a):
    return a.sum(1), a.var(1), F.log_softmax(a, 0), a.argmin(0), a.amax()


@graph("softmax", lambda: [x(33, 70)])
def _(a):
    return F.softmax(a, 1), F.softmax(a, 0), F.log_softmax(a, 1)


@graph("masked softmax", lambda: [x(2, 3, 9, 9), x(2, 1, 1, 9, dtype=torch.bool)])
def _(a, m):
    return F.softmax((a / 3).masked_fill(m, -1e9), -1)


@graph("cross entropy", lambda: [x(33, 70), at(70, 33)])
def _(a, t):
    return F.cross_entropy(a, t), F.nll_loss(F.log_softmax(a, 1), t, reduction="sum")


@graph("layer norm", lambda: [x(33, 70), x(33, 70), x(70), x(70)])
def _(a, r, w, b):
    h = a + r
    return F.layer_norm(h, (70,), w, b), h


@graph("rms norm in bfloat16", lambda: [x(33, 72, dtype=BF16), x(72, dtype=BF16)])
def _(a, w):
    f = a.float()
    return (w * (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)).to(a.dtype)) * 2


@graph("group norm", lambda: [x(2, 8, 6, 5), x(8), x(8)])
def _(a, w, b):
    return F.group_norm(a, 4, w, b)


@graph("batch norm in training", lambda: [x(4, 6, 5, 5), x(6), x(6), torch.zeros(6), torch.ones(6)])
def _(a, w, b, m, v):
    return F.relu(F.batch_norm(a, m, v, w, b, training=True))


@graph("whole mean", lambda: [x(300, 41)])
def _(a):
    return (a - a.mean()) / a.std()


@graph("var_mean of long rows", lambda: [x(2, 70_000)])
def _(a):
    return torch.var_mean(torch.stack((a, a + 1)), (0, 2)), torch.var_mean(a, 1)


@graph("pooling", lambda: [x(2, 5, 8, 8)])
def _(a):
    return F.avg_pool2d(a, 2), F.adaptive_avg_pool2d(a, 1), F.max_pool2d(a, 2)


@graph("layer norm backward", lambda: [x(33, 70), x(33, 70), x(70)])
def _(g, a, w):
    mean, var = a.mean(1, keepdim=True), a.var(1, keepdim=True, correction=0)
    r = torch.rsqrt(var + 1e-5)
    n, gw = (a - mean) * r, g * w
    return r * (gw - gw.mean(1, keepdim=True) - n * (gw * n).mean(1, keepdim=True)), (g * n).sum(0), g.sum(0)


SPECIAL = torch.tensor([float("-inf"), float("inf"), float("nan"), 3.0])


@graph("softmax of infinities", lambda: [SPECIAL.repeat_interleave(40).view(4, 40), odd(4, 40)])
def _(a, b):
    half = torch.where(torch.arange(40) < 20, a, 1.0)
    return F.softmax(a, 1), F.softmax(b, 1), F.softmax(half, 1), F.log_softmax(half, 1), torch.logsumexp(half, 1)


# --------------------------------------------------------------------------------------------------- indices and writes


@graph("embedding", lambda: [x(50, 16), at(50, 3, 7), x(7, 16)])
def _(w, i, p):
    return F.embedding(i, w) + p


@graph("gathers", lambda: [x(9, 20), at(20, 9, 4), at(20, 6) - 10])
def _(a, i, j):
    return torch.gather(a, 1, i), a[:, j] + 1, a.index_select(1, j.abs()), torch.take_along_dim(a, i, 1)


@graph("scatters", lambda: [x(9, 20), at(20, 9, 4), x(9, 4)])
def _(a, i, s):
    return a.scatter_add(1, i, s), torch.slice_scatter(a, s, 1, 1, 9, 2), a.select_scatter(s[:, 0], 1, 3)


@graph("embedding backward", lambda: [x(3, 7, 16), at(50, 3, 7)])
def _(g, i):
    return torch.zeros(50, 16).index_put((i,), g, accumulate=True)


@graph("scatters in half",
       lambda: [x(9, 20, dtype=HALF), at(9, 30), x(30, 20, dtype=HALF), x(9, dtype=BF16), x(30, dtype=BF16)])
def _(a, i, s, b, t):
    return a.index_add(0, i, s), b.index_add(0, i, t)


@graph("scatters of integers", lambda: [at(9, 30), x(30, dtype=torch.int64), x(30, dtype=torch.float64)])
def _(i, s, t):
    return torch.zeros(9, dtype=torch.int64).index_add(0, i, s), torch.zeros(9, dtype=torch.float64).scatter_add(
        0, i, t)


@graph("writes into inputs", lambda: [x(14, 14), x(14, 14)])
def _(a, b):
    a.mul_(2).add_(b)
    b.copy_(a.t())
    return a.sum()


@graph("softmax in place", lambda: [x(14, 30)])
def _(a):
    a.copy_(F.softmax(a, 1))
    return a.amax(1)


@graph("updates of many parameters",
       lambda: [x(5, 7), x(33), x(200, 30), x(1), x(5, 7), x(33), x(200, 30), x(1), torch.tensor(0.1)])
def _(a, b, c, d, e, f, g, h, rate):
    for p, m in zip((a, b, c, d), (e, f, g, h)):
        m.mul_(0.9).add_(p * 0.1)
        p.sub_(rate * m / (m.abs().sqrt() + 1e-8))
    return ()


@graph("counters", lambda: [x(), x(1), x(2)])
def _(a, b, c):
    return a + 1, b + 1, c + 1


# --------------------------------------------------------------------------------------- long reductions to few results


@graph("long column sums", lambda: [x(4096, 64), x(3000, 50)])
def _(a, b):
    return a.sum(0), (b > 4).any(0), (b > -9).all()


@graph("long positions of extremes", lambda: [x(3, 50_000), x(300, 500)])
def _(a, b):
    return a.argmax(1), b.argmin(), b.amax()


@graph("long batch norm in training", lambda: [x(16, 8, 64, 64), x(8), x(8), torch.zeros(8), torch.ones(8)])
def _(a, w, b, m, v):
    return F.relu(F.batch_norm(a, m, v, w, b, training=True)), torch.var_mean(a, (0, 2, 3))


@graph("long softmax", lambda: [x(2, 60_000)])
def _(a):
    return F.softmax(a, -1), a.to(torch.int32).sum()


# ------------------------------------------------------------------------------------------------------- symbolic sizes


@graph("sizes of a chain", lambda: [x(5, 7, 9), x(9), x(7, 1)], {(0, 0), (0, 1)})
def _(a, b, c):
    return torch.relu(a + b) * 2, a.sum(-1)


@graph("sizes of rows", lambda: [x(5, 70)], {(0, 0), (0, 1)})
def _(a):
    return F.softmax(a * 2, -1), a.mean(), a.sum(0), a.argmax(1)


@graph("sizes of a batch", lambda: [x(33, 70), x(70), x(70)], {(0, 0)})
def _(a, w, b):
    return F.layer_norm(a, (70,), w, b), a.t().contiguous()


@graph("sizes beside channels", lambda: [x(5, 9, 120), x(120), x(9, 120)], {(0, 0), (0, 1), (2, 0)})
def _(a, b, c):
    return torch.relu(a * b) + c


@graph("sizes of indices", lambda: [x(50, 30), at(50, 17)], {(0, 0), (1, 0)})
def _(a, i):
    return a[i] + 1, torch.zeros_like(a).index_add(0, i, a[i]), torch.cat((a, a * 2), 0), torch.arange(a.shape[0]) * 2
