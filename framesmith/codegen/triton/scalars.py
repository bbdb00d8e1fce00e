"""Scalar operations as Triton text, by the kind of their operands.

Functions without a prefix are those of `functions.tl`. Transcendental functions are those of CUDA's libdevice, which
eager calls too, except for `erf`: libdevice's branches for each element, which would take most of the time of a GELU
after a contraction.
"""

from __future__ import annotations

import torch

from framesmith.codegen.triton.types import type_row
from framesmith.prims.scalars import SCALAR_OPS
from framesmith.util.errors import CompileError

_SPECIAL = {"rshift_known": "{} >> {}", "random_bits_of_four": "random_bits_of_four({}, {}, {}, {}, {})"}
"""Cheaper texts of operations whose operands are known to be safe."""


def _kinds(dtype: torch.dtype, fast: bool) -> tuple[str, ...]:
    """Return the columns of `ScalarOp.triton` with the text for a type of operands, in order of preference."""
    if dtype is torch.bool:
        return "bool", "any"
    if not dtype.is_floating_point:
        return "integer", "any"
    own = "float64" if dtype is torch.float64 else "float32"
    return ("fast", own, "float", "any") if fast else (own, "float", "any")


def scalar_text(name: str, operands: list[str], dtype: torch.dtype, fast: bool = False) -> str:
    """Return the operation on operands of type `dtype` (of `where`: the type of the two values); `fast`: for float32,
    within some units in the last place.

    Raises `CompileError` if there is none."""
    forms = {} if name in _SPECIAL else SCALAR_OPS[name].triton
    form = _SPECIAL.get(name) or next((forms[kind] for kind in _kinds(dtype, fast) if kind in forms), None)
    if form is None:
        raise CompileError(f"no kernel computes {name} of {dtype}")
    return form.format(*operands)


_NARROW = (torch.int8, torch.int16)
_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32)


def cast_text(text: str, source: torch.dtype, dtype: torch.dtype) -> str:
    """Return a cast between types: truncated towards zero, and modulo the range of narrow and unsigned integers, as in
    eager."""
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
