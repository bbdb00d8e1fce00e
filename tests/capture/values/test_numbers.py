"""Numbers: arithmetic, conversions, math, decimals and fractions, NumPy's scalars."""

from __future__ import annotations

import cmath
import decimal
import fractions
import math
import numbers
import operator
from functools import partial

import numpy as np

from tests.capture.values.harness import agree
from tests.programs import Programs

taken = Programs(agree)
broken = partial(taken, whole=False)


@taken(make=lambda: (7, 2.5),
       others=[lambda: (8, 2.5), lambda: (7, -0.0), lambda: (True, 2.5), lambda: (7, float("inf")),
    lambda: (-7, 1)])
def varying(x, n, f):
    return x * n + f, n // 2, n % 3, n ** 2, n << 1, n | 8, n ^ 1, ~(n + 0), -n, +n, abs(n), n / 2, divmod(
        n, 3), f * 2, f == 0, n > 3, \
        round(f, 1) if f < 1e9 else f, \
        int(n), float(n), bool(n), str(f), n.bit_length(), n & 1, not n, type(n), isinstance(n, bool), complex(n, f)


@taken(make=lambda: (0,), others=[lambda n=n: (n,) for n in (1, 2, 3, 0, 1, 2, 3, 1)])
def varying_index(x, n):
    return x[n % 2], x[:, n % 3:], x[[n % 2, 0]], x[-1:n]


@taken
def methods(x):
    n = x.shape[1]
    return x + 1, n.bit_length(), n.bit_count(), n.conjugate(), n.real, n.imag, n.numerator, (2.5).is_integer(), (
        2.5).as_integer_ratio(), \
        (2.5).hex(), \
        float.fromhex("0x1p3"), int.from_bytes(b"a", "little"), int.__add__(n, 1), n.__mul__(2), (
            1 + 2j).conjugate(), abs(3 + 4j), \
        (1j) ** 2, pow(n, 2, 5), pow(2, -1)


@taken
def rounding(x):
    return x + 1, round(2.5), round(-1.567, 2), round(1234, -2), divmod(-7, 2), divmod(
        7.5, 2), -7 // 2, -7 % 3, 7 % -3, 1e308 * 10, \
        int(-2.7), 0.1 + 0.2, 1 / 3, \
        math.floor(-2.5), math.ceil(2.1), math.trunc(-2.7), bin(10), oct(8), hex(255), 10**20, 2**0.5


@taken
def math_functions(x):
    n = x.shape[0]
    names = ["sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tanh", "atan", "gamma", "erf", "floor", "ceil",
             "fabs", "isnan",
        "isinf", "degrees", "expm1",
             "log1p", "cbrt", "exp2", "lgamma", "ulp", "isfinite", "trunc", "isqrt", "factorial", "frexp", "modf"]
    return x * math.pi, [getattr(math, m)(n)
                         for m in names], math.gcd(12, 18), math.lcm(4, 6), math.hypot(3, 4), math.atan2(1, 2), \
        math.copysign(1, -0.0), \
        math.comb(5, 2), math.perm(5), math.prod([1, 2, n]), math.fsum([0.1] * 10), math.dist([1, 2], [3, 4]), \
        math.isclose(1, 1 + 1e-12), math.fmod(7, 3), \
        math.remainder(7, 3), math.ldexp(1, 3), math.nextafter(1, 2), math.inf, math.nan != math.nan, cmath.sqrt(-1), \
        math.prod((2, 3), start=4)


@taken
def products_of_tensors(x):
    return math.prod([x, x + 1]), sum([x, x]), sum((x for _ in range(2)),
                                                   x), math.prod(x.shape), max(x.shape), sum(x.shape, 1)


@taken
def sized(x):
    h, w = x.shape
    scale = 1 / math.sqrt(w)
    return x * scale, h * w, w ** -0.5, int(w * 1.5), float(h), h / w, (h + w) // 2, x.shape[-1] % 2 == 0, \
        x.numel() == math.prod(x.shape), operator.mul(h, w), \
        operator.index(h), range(h), slice(h, w), x[..., : w // 2]


@taken
def errors(x):
    out = []
    for make in (lambda: 1 / 0, lambda: 1 // 0, lambda: 5 % 0, lambda: int("a"), lambda: math.sqrt(-1),
                 lambda: float("z"),
        lambda: 1 << -1, lambda: [] + 1,
                 lambda: 1 + "a", lambda: -"a", lambda: 1 < "a", lambda: 2 ** "a", lambda: {} < {}, lambda: math.log(0),
                 lambda: 10.0 ** 400, lambda: None + 1):
        try:
            out.append(make())
        except Exception as e:
            out.append((type(e), str(e)))
    return x + 1, out


@taken
def fractional(x):
    a = fractions.Fraction(1, 3) + fractions.Fraction(1, 6)
    return x * float(a), a.numerator, a == fractions.Fraction(1, 2), str(a), a


@broken
def decimals(x):
    d = decimal.Decimal("1.10") + decimal.Decimal(2)
    return x + 1, d, str(d), float(d), d > 3, int(d)


@broken(make=lambda: (decimal.Decimal("1.5"), fractions.Fraction(1, 2)),
    others=[lambda: (decimal.Decimal("2.5"), fractions.Fraction(1, 3))])
def decimal_arguments(x, d, f):
    return x * float(d) + float(f), d * 2, f + 1


@taken
def abstract(x):
    return x + 1, isinstance(1, numbers.Number), isinstance(1.5, numbers.Integral), isinstance(True, numbers.Real), \
        isinstance(x, numbers.Number), issubclass(int, numbers.Rational)


@taken(make=lambda: (np.float32(1.5), np.int64(3)),
    others=[lambda: (np.float32(2.5), np.int64(3)), lambda: (np.float64(1.5), np.int64(4))])
def numpy_scalars(x, f, n):
    return x * float(f), x + int(n), x * f, n + 1, f * 2, n.item(), isinstance(n, np.integer), f.dtype, int(
        n) // 2, n > 2, [n, f]


@taken
def numpy_functions(x):
    return x * np.sqrt(2.0), x + np.pi, np.log(x.shape[1]), np.prod(x.shape), np.float32(0.1), np.int32(
        7) // 2, np.ceil(1.5), \
        np.mean([1, 2]), np.clip(5, 0, 3)


@taken
def walrus_and_chains(x):
    if (n := x.shape[0]) > 1:
        x = x * n
    return x + 1, 0 < n < 5 != 3, n if n else -n, (n and "a") or "b", [m := n + 1, m * 2], 1 if n > 5 else 2


class Meters(int):
    """An int with a unit."""

    def __new__(cls, value, unit="m"):
        self = super().__new__(cls, value)
        self.unit = unit
        return self

    def __add__(self, other):
        return Meters(int(self) + int(other), self.unit)


@taken(make=lambda: (Meters(3, "km"),), others=[lambda: (Meters(3, "cm"),), lambda: (Meters(4, "cm"),)])
def int_subclass(x, m):
    n = m + 2
    return x * m, n, n.unit, m * 2, m == 3, [10, 20, 30, 40][m], f"{m:03d}", -m, m.unit, range(m), isinstance(
        n, Meters), 5 - m, \
        hash(m) == hash(3), {3: "a"}[m]


test_program = taken.test()
