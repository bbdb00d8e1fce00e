"""The closed set of scalar operations that a kernel body may hold: one row an op.

A row gives the number of operands and the rule for the result's type:

- ``same``: every operand and the result share one type;
- ``bool``: operands share one type, the result is bool (comparisons, tests);
- ``where``: ``where(cond: bool, a: T, b: T) -> T``.

Types are *compute* types: float32, float64, int8, int16, int32, int64, uint8 (uint16, uint32, uint64) and bool.
bfloat16 and float16 never appear as the type of an operation: a load of such a buffer yields float32 and a store rounds
to nearest even. Integer arithmetic wraps. Floating operations follow IEEE 754 (NaN propagates, no trapping); exact
meaning where names are not enough:

- ``div`` true division of floats; ``floordiv`` rounds the quotient towards minus infinity (int and float), ``truncdiv``
  towards zero;
- ``mod`` the remainder with the divisor's sign (Python's %), ``fmod`` with the dividend's (C's);
  an integer division by zero must not trap (eager raises: the result is free, the kernel must go on);
- ``maximum``/``minimum`` return NaN when either operand is NaN; ``fmax``/``fmin`` return the other operand;
- ``sign`` is 0 at 0 (and NaN at NaN); ``round`` is to nearest even; ``relu`` is max(x, 0) and keeps NaN;
- ``sigmoid`` is 1/(1+exp(-x)), ``silu``, ``gelu``... are not here: decompositions spell them out;
- ``logical_*`` take and give bool; ``bitwise_*`` take ints or bool; shifts take ints;
- ``pow`` is C's pow on floats; on ints, repeated multiplication (exponent >= 0);
- ``fma(a, b, c)`` = a*b + c, fused or not as is faster;
- ``random_bits(seed, offset, vector, threads, place)`` is a word of Philox, of int64 (see ``prims.philox``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """``arity`` operands; ``result`` one of "same", "bool", "where"; ``cost`` in units of one vector add."""

    name: str
    arity: int
    result: str
    cost: int


SCALAR_OPS: dict[str, ScalarOp] = {}


def _rows(arity: int, result: str, cost: int, names: str) -> None:
    for name in names.split():
        SCALAR_OPS[name] = ScalarOp(name, arity, result, cost)


_rows(1, "same", 1, "neg abs sign relu square bitwise_not")
_rows(1, "same", 2, "ceil floor round trunc frac")
_rows(1, "same", 4, "sqrt rsqrt reciprocal")
_rows(1, "same", 8, "exp exp2 log log2 sigmoid tanh")
_rows(1, "same", 12, "expm1 log10 log1p sin cos erf")
_rows(1, "same", 30, "tan asin acos atan sinh cosh asinh acosh atanh erfc erfinv lgamma digamma")
_rows(1, "bool", 1, "isnan isinf isfinite signbit")
_rows(1, "bool", 1, "logical_not")
_rows(2, "same", 1, "add sub mul maximum minimum fmax fmin copysign bitwise_and bitwise_or bitwise_xor lshift rshift")
_rows(2, "same", 4, "div floordiv truncdiv mod fmod")
_rows(2, "same", 30, "pow atan2 hypot nextafter")
_rows(2, "bool", 1, "eq ne lt le gt ge logical_and logical_or logical_xor")
_rows(3, "same", 1, "fma")
_rows(3, "where", 1, "where")
_rows(5, "same", 40, "random_bits")
