"""The scalar operations: one row each, from which every stage has its table.

A row is a prim over tensors (`prims.elementwise`), an operation of a kernel's body (`loops`), and its text in each
language (`codegen`). Where `aten` names overloads, `rule` is how these become the prim (`prims.rules.arithmetic`) and
what type their results have (`fake.rules_pointwise`). So an operator that computes an element of an element is added
here alone, with a row in `tests/codegen/test_scalars.py`.

Types of operations are *compute* types: float32, float64, int8, int16, int32, int64, uint8 (uint16, uint32, uint64) and
bool. bfloat16 and float16 never appear as the type of an operation: a load of such a buffer yields float32 and a store
rounds to nearest even. Integer arithmetic wraps. Floating operations follow IEEE 754 (NaN propagates, no trapping);
exact meaning where names are not enough:

- ``div`` true division of floats; ``floordiv`` rounds the quotient towards minus infinity (int and float), ``truncdiv``
  towards zero;
- ``mod`` the remainder with the divisor's sign (Python's %), ``fmod`` with the dividend's (C's);
  an integer division by zero must not trap (eager raises: the result is free, the kernel must go on);
- ``maximum``/``minimum`` return NaN when either operand is NaN; ``fmax``/``fmin`` return the other operand;
- ``sign`` is 0 at 0 (and NaN at NaN); ``round`` is to nearest even; ``relu`` is max(x, 0) and keeps NaN;
- ``logical_*`` take and give bool; ``bitwise_*`` take ints or bool; shifts take ints;
- ``pow`` is C's pow on floats; on ints, repeated multiplication (exponent >= 0);
- ``fma(a, b, c)`` = a*b + c, fused or not as is faster;
- ``random_bits(seed, offset, vector, threads, place)`` is a word of Philox, of int64 (see ``prims.philox``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from framesmith.prims.philox import random_bits

Reference = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """`arity` operands; `result`: "same" (operands and result share one type), "bool" (operands share one type), or
    "where" (`where(condition: bool, a: T, b: T) -> T`); `cost` in units of one vector add; `eager`: the reference on
    tensors.

    `is_prim`: it is a prim, too, whose call without a row is the overload `extern`. `aten`: overloads that `rule` turns
    into the prim. `on_bool`: on operands of bool the first of these operations, and the others on its result.
    `cpp`: the text, by default a call of the operation's name; `cpp_bool`: of bools. `wraps`: narrow integers, which
    are computed in 32 bits, may leave their range. `triton`: the text by the type of the operands, as in
    `codegen.triton.scalars`."""

    name: str
    arity: int
    cost: int
    eager: Reference
    result: str = "same"
    is_prim: bool = True
    extern: str = ""
    aten: tuple[str, ...] = ()
    rule: str = ""
    on_bool: tuple[str, ...] = ()
    cpp: str = ""
    cpp_bool: str = ""
    wraps: bool = False
    triton: Mapping[str, str] = field(default_factory=dict)


SCALAR_OPS: dict[str, ScalarOp] = {}


def _op(name: str, arity: int, cost: int, eager: Reference | None = None, /, *, aten: str = "",
        **fields: Any) -> None:
    SCALAR_OPS[name] = ScalarOp(name, arity, cost, eager or getattr(torch, name), aten=tuple(aten.split()),
                                **fields)


def _float_function(name: str, cost: int, **triton: str) -> None:
    """Make the row of a function of a float: of CUDA's libdevice, unless `triton` has another text."""
    _op(name, 1, cost, aten=name, rule="float", triton=triton or {"float": f"libdevice.{name}({{}})"})


def _comparison(name: str, text: str, of_bools: str, **fields: Any) -> None:
    _op(name, 2, 1, result="bool", triton={"any": text, "bool": of_bools}, **fields)


def _bitwise(name: str, text: str, paths: str) -> None:
    _op(f"bitwise_{name}", 2, 1, rule="any", on_bool=(f"logical_{name}",), cpp=text, aten=paths.replace("?", name),
        triton={"integer": text, "bool": text})
    _op(f"logical_{name}", 2, 1, result="bool", is_prim=False, cpp=text, triton={"bool": text})


_TENSORS_OR_NUMBERS = "bitwise_?.Tensor bitwise_?.Scalar bitwise_?.Scalar_Tensor"
_ROUNDING = {"integer": "{}"}

# arithmetic
_op("abs", 1, 1, rule="number", aten="abs", wraps=True, triton={"any": "tl.abs({})", "bool": "{}"})
_op("neg", 1, 1, rule="number", aten="neg", wraps=True, cpp="-{}", triton={"any": "-{}"})
_op("sign", 1, 1, rule="number", aten="sign", triton={"any": "sign({})", "bool": "{}"})
_op("square", 1, 1, is_prim=False, wraps=True, triton={"any": "{0} * {0}"})
_op("relu", 1, 1, rule="number", aten="relu", triton={
    "integer": "tl.maximum({}, 0)", "float": "tl.maximum({}, 0.0, propagate_nan=tl.PropagateNan.ALL)"})
_op("add", 2, 1, on_bool=("logical_or",), wraps=True, cpp="{} + {}", cpp_bool="{} | {}",
    triton={"any": "{} + {}", "bool": "{} | {}"})
_op("sub", 2, 1, wraps=True, cpp="{} - {}", triton={"any": "{} - {}"})
_op("mul", 2, 1, on_bool=("logical_and",), wraps=True, cpp="{} * {}", cpp_bool="{} & {}",
    triton={"any": "{} * {}", "bool": "{} & {}"})
_op("div", 2, 4, cpp="{} / {}", triton={"float32": "tl.div_rn({}, {})", "float64": "{} / {}", "fast": "{} / {}"})
_op("floordiv", 2, 4, lambda x, y: torch.div(x, y, rounding_mode="floor"), extern="floor_divide", wraps=True, triton={
    "integer": "floor_divide({}, {})", "float": "float_floor_divide({}, {})"})
_op("truncdiv", 2, 4, lambda x, y: torch.div(x, y, rounding_mode="trunc"), wraps=True, triton={
    "integer": "{} // {}", "float32": "libdevice.trunc(tl.div_rn({}, {}))", "float64": "libdevice.trunc({} / {})"})
_op("mod", 2, 4, torch.remainder, extern="remainder.Tensor", rule="numbers",
    aten="remainder.Tensor remainder.Scalar remainder.Scalar_Tensor",
    triton={"integer": "remainder({}, {})", "float": "float_remainder({}, {})"})
_op("fmod", 2, 4, rule="numbers", aten="fmod.Tensor fmod.Scalar",
    triton={"integer": "{} % {}", "float": "libdevice.fmod({}, {})"})
_op("pow", 2, 30, extern="pow.Tensor_Tensor", wraps=True,
    triton={"integer": "integer_power({}, {})", "float": "libdevice.pow({}, {})"})
_op("fma", 3, 1, lambda x, y, z: x * y + z, is_prim=False, wraps=True, cpp="{} * {} + {}",
    triton={"any": "{} * {} + {}"})

# extremes
for _name, _logic, _sign in (("maximum", "or", "|"), ("minimum", "and", "&")):
    _op(_name, 2, 1, extern=_name, rule="any", aten=_name, on_bool=(f"logical_{_logic}",),
        cpp=f"{_name[:3]}({{}}, {{}})",
        triton={"integer": f"tl.{_name}({{}}, {{}})", "bool": f"{{}} {_sign} {{}}",
                "float": f"tl.{_name}({{}}, {{}}, propagate_nan=tl.PropagateNan.ALL)"})
    _op(f"f{_name[:3]}", 2, 1, extern=f"f{_name[:3]}", triton={"integer": f"tl.{_name}({{}}, {{}})",
                                                            "float": f"tl.{_name}({{}}, {{}})"})

# whole numbers
_op("floor", 1, 2, rule="whole", aten="floor", triton={**_ROUNDING, "float": "tl.floor({})"})
_op("ceil", 1, 2, rule="whole", aten="ceil", triton={**_ROUNDING, "float": "tl.ceil({})"})
_op("round", 1, 2, rule="whole", aten="round", triton={**_ROUNDING, "float": "libdevice.rint({})"})
_op("trunc", 1, 2, rule="whole", aten="trunc", triton={**_ROUNDING, "float": "libdevice.trunc({})"})
_op("frac", 1, 2, is_prim=False, triton={"float": "{0} - libdevice.trunc({0})"})

# functions of floats; float32 has divisions and roots that round, and faster ones for what is on the way to a half
_float_function("sqrt", 4, float32="tl.sqrt_rn({})", float64="libdevice.sqrt({})", fast="tl.sqrt({})")
_float_function("reciprocal", 4, float32="tl.div_rn(1.0, {})", float64="1.0 / {}", fast="1.0 / {}")
_float_function("exp", 8, float="libdevice.exp({})", fast="libdevice.fast_expf({})")
_float_function("tanh", 8, float="libdevice.tanh({})", fast="hyperbolic_tangent({})")
_float_function("sigmoid", 8, float32="tl.div_rn(1.0, 1.0 + libdevice.exp(-{}))",
                float64="1.0 / (1.0 + libdevice.exp(-{}))",
                fast="libdevice.fast_dividef(1.0, 1.0 + libdevice.fast_expf(-{}))")
_float_function("erf", 12, float32="error_function({})", float64="libdevice.erf({})")
_float_function("digamma", 30, float="digamma({})")
for _names, _cost in (("rsqrt", 4), ("exp2 log log2", 8), ("expm1 log10 log1p sin cos", 12),
                      ("tan asin acos atan sinh cosh asinh acosh atanh erfc erfinv lgamma", 30)):
    for _name in _names.split():
        _float_function(_name, _cost)
_op("copysign", 2, 1, rule="floats", aten="copysign.Tensor copysign.Scalar",
    triton={"float": "libdevice.copysign({}, {})"})
_op("atan2", 2, 30, extern="atan2", rule="floats", aten="atan2", triton={"float": "libdevice.atan2({}, {})"})
for _name, _path in (("hypot", "hypot"), ("nextafter", "")):
    _op(_name, 2, 30, extern=_name, rule="numbers", aten=_path, triton={"float": f"libdevice.{_name}({{}}, {{}})"})

# tests and comparisons
_op("isnan", 1, 1, result="bool", triton={"float": "{0} != {0}"})
_op("isinf", 1, 1, result="bool", triton={"float": 'tl.abs({}) == float("inf")'})
_op("isfinite", 1, 1, result="bool", triton={"float": 'tl.abs({}) < float("inf")'})
_op("signbit", 1, 1, result="bool", triton={"float32": "{}.to(tl.int32, bitcast=True) < 0",
                                            "float64": "{}.to(tl.int64, bitcast=True) < 0"})
_comparison("eq", "{} == {}", "~({} ^ {})", on_bool=("logical_xor", "logical_not"))
_comparison("ne", "{} != {}", "{} ^ {}", on_bool=("logical_xor",))
_comparison("lt", "{} < {}", "~{} & {}")
_comparison("le", "{} <= {}", "~{} | {}")
_comparison("gt", "{} > {}", "{} & ~{}")
_comparison("ge", "{} >= {}", "{} | ~{}")

# bits and logic
_op("bitwise_not", 1, 1, on_bool=("logical_not",), wraps=True, cpp="~{}", cpp_bool="logical_not({})",
    triton={"integer": "~{}", "bool": "~{}"})
_op("logical_not", 1, 1, result="bool", is_prim=False, triton={"bool": "~{}"})
for _name, _text in (("and", "{} & {}"), ("or", "{} | {}"), ("xor", "{} ^ {}")):
    _bitwise(_name, _text, _TENSORS_OR_NUMBERS)
_op("lshift", 2, 1, torch.bitwise_left_shift, extern="bitwise_left_shift.Tensor", rule="numbers", wraps=True,
    cpp="{} << {}", triton={"integer": "shift_left({}, {})"},
    aten="bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_left_shift.Scalar_Tensor "
         "__lshift__.Tensor __lshift__.Scalar")
_op("rshift", 2, 1, torch.bitwise_right_shift, extern="bitwise_right_shift.Tensor", rule="numbers",
    cpp="{} >> {}", triton={"integer": "shift_right({}, {})"},
    aten="bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_right_shift.Scalar_Tensor "
         "__rshift__.Tensor __rshift__.Scalar")

# choice and chance
_op("where", 3, 1, result="where", is_prim=False, triton={"any": "tl.where({}, {}, {})"})
_op("random_bits", 5, 40, random_bits, is_prim=False, triton={"integer": "random_bits({}, {}, {}, {}, {})"})
