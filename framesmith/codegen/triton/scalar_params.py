"""CPU scalars that are passed to a kernel by value at launch (`Param.host`)."""

from __future__ import annotations

import torch

from framesmith.codegen.triton.types import type_row

# The types of parameters by dtype; the others have 32 bits.
KINDS = {torch.float32: "fp32", torch.bfloat16: "fp32", torch.float16: "fp32", torch.float64: "fp64",
         torch.int64: "i64"}
# The type of a word of a batch's table, for each.
_WORDS = {
    "fp32": "{}.to(tl.int32).to(tl.float32, bitcast=True)",
    "fp64": "{}.to(tl.float64, bitcast=True)",
    "i64": "{}",
    "i32": "{}.to(tl.int32)",
}


def kind_of(dtype: torch.dtype) -> str:
    """Return the type in a signature of a number whose storage type is `dtype`."""
    return KINDS.get(dtype, "i32")


def value_text(name: str, dtype: torch.dtype) -> str:
    """Parameter `name` as a value of compute type `dtype`."""
    return f"({name} != 0)" if dtype is torch.bool else f"tl.full([], {name}, {type_row(dtype).name})"


def word_text(word: str, dtype: torch.dtype) -> str:
    """Return the text of the parameter's value, made from a word of a table."""
    return _WORDS[kind_of(dtype)].format(word)
