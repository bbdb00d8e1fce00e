"""Scalar operations as Triton text: one row an op, by the kind of its operands.

Functions without a prefix are those of `functions.tl`. Transcendental functions are those of CUDA's libdevice, which
eager calls too; but its `erf` has a branch for each element, in which a GELU behind a contraction would spend most of
its time.
"""

from __future__ import annotations

import torch

from framesmith.codegen.triton.types import type_row
from framesmith.util.errors import CompileError

_ANY = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "neg": "-{}",
    "abs": "tl.abs({})",
    "square": "{0} * {0}",
    "sign": "sign({})",
    "fma": "{} * {} + {}",
    "where": "tl.where({}, {}, {})",
    "eq": "{} == {}",
    "ne": "{} != {}",
    "lt": "{} < {}",
    "le": "{} <= {}",
    "gt": "{} > {}",
    "ge": "{} >= {}",
}
_BITS = {
    "bitwise_not": "~{}",
    "bitwise_and": "{} & {}",
    "bitwise_or": "{} | {}",
    "bitwise_xor": "{} ^ {}",
}
_BOOL = {
    **_BITS,
    "logical_not": "~{}",
    "logical_and": "{} & {}",
    "logical_or": "{} | {}",
    "logical_xor": "{} ^ {}",
    "mul": "{} & {}",
    "add": "{} | {}",
    "maximum": "{} | {}",
    "minimum": "{} & {}",
    "eq": "~({} ^ {})",
    "ne": "{} ^ {}",
    "lt": "~{} & {}",
    "le": "~{} | {}",
    "gt": "{} & ~{}",
    "ge": "{} | ~{}",
    "abs": "{}",
    "sign": "{}",
}
_INTEGER = {
    **_BITS,
    "floordiv": "floor_divide({}, {})",
    "truncdiv": "{} // {}",
    "mod": "remainder({}, {})",
    "fmod": "{} % {}",
    "pow": "integer_power({}, {})",
    "lshift": "shift_left({}, {})",
    "rshift": "shift_right({}, {})",
    "rshift_known": "{} >> {}",
    "random_bits": "random_bits({}, {}, {}, {}, {})",
    "random_bits_of_four": "random_bits_of_four({}, {}, {}, {}, {})",
    "maximum": "tl.maximum({}, {})",
    "minimum": "tl.minimum({}, {})",
    "fmax": "tl.maximum({}, {})",
    "fmin": "tl.minimum({}, {})",
    "relu": "tl.maximum({}, 0)",
    **dict.fromkeys(("ceil", "floor", "round", "trunc"), "{}"),
}
_LIBDEVICE = {
    1: """exp exp2 log log2 tanh expm1 log10 log1p sin cos erf tan asin acos atan sinh cosh asinh acosh atanh erfc
    erfinv lgamma trunc
    rsqrt""",
    2: "copysign fmod pow atan2 hypot nextafter",
}
_FLOAT = {
    **{name: f"libdevice.{name}({', '.join(['{}'] * n)})" for n, names in _LIBDEVICE.items() for name in names.split()},
    "ceil": "tl.ceil({})",
    "floor": "tl.floor({})",
    "round": "libdevice.rint({})",
    "frac": "{0} - libdevice.trunc({0})",
    "relu": "tl.maximum({}, 0.0, propagate_nan=tl.PropagateNan.ALL)",
    "maximum": "tl.maximum({}, {}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum({}, {}, propagate_nan=tl.PropagateNan.ALL)",
    "fmax": "tl.maximum({}, {})",
    "fmin": "tl.minimum({}, {})",
    "floordiv": "float_floor_divide({}, {})",
    "mod": "float_remainder({}, {})",
    "digamma": "digamma({})",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({}) == float("inf")',
    "isfinite": 'tl.abs({}) < float("inf")',
}
# float32 has divisions and roots that round and others that are fast: these are the ones that round.
_FLOAT32 = {
    **_FLOAT,
    "div": "tl.div_rn({}, {})",
    "truncdiv": "libdevice.trunc(tl.div_rn({}, {}))",
    "reciprocal": "tl.div_rn(1.0, {})",
    "sqrt": "tl.sqrt_rn({})",
    "erf": "error_function({})",
    "sigmoid": "tl.div_rn(1.0, 1.0 + libdevice.exp(-{}))",
    "signbit": "{}.to(tl.int32, bitcast=True) < 0",
}
# Those of float32 on the way to a half (see `fast_math.py`).
_ROUGH = {
    "div": "{} / {}",
    "reciprocal": "1.0 / {}",
    "sqrt": "tl.sqrt({})",
    "exp": "libdevice.fast_expf({})",
    "sigmoid": "libdevice.fast_dividef(1.0, 1.0 + libdevice.fast_expf(-{}))",
    "tanh": "hyperbolic_tangent({})",
}
_FLOAT64 = {
    **_FLOAT,
    "div": "{} / {}",
    "truncdiv": "libdevice.trunc({} / {})",
    "reciprocal": "1.0 / {}",
    "sqrt": "libdevice.sqrt({})",
    "sigmoid": "1.0 / (1.0 + libdevice.exp(-{}))",
    "signbit": "{}.to(tl.int64, bitcast=True) < 0",
}


def _rows(dtype: torch.dtype) -> dict[str, str]:
    if dtype is torch.bool:
        return _BOOL
    if dtype.is_floating_point:
        return _FLOAT64 if dtype is torch.float64 else _FLOAT32
    return _INTEGER


def scalar_text(name: str, operands: list[str], dtype: torch.dtype, fast: bool = False) -> str:
    """The operation on operands of type `dtype` (of `where`: the type of the two values); `fast`: of float32, within
    some units in the last place."""
    form = _ROUGH.get(name) if fast else None
    form = form or _rows(dtype).get(name) or _ANY.get(name)
    if form is None:
        raise CompileError(f"no kernel computes {name} of {dtype}")
    return form.format(*operands)


_NARROW = (torch.int8, torch.int16)
_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32)


def cast_text(text: str, source: torch.dtype, dtype: torch.dtype) -> str:
    """A value of one type as another: truncated towards zero, and modulo the range of narrow and unsigned integers, as
    eager does."""
    name = type_row(dtype).name
    if source is dtype:
        return text
    if dtype is torch.bool:
        return f"{text} != 0"
    if source.is_floating_point and dtype in _NARROW:
        return f"{text}.to(tl.int32).to({name})"
    if source.is_floating_point and dtype in _UNSIGNED:
        return f"{text}.to(tl.int64).to({name})"
    return f"{text}.to({name})"
