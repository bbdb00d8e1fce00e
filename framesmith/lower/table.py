"""The lowering tables: a row for each prim (by name), and for each extern operator that is not a plain call (by
target)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.prims.core import DTYPES
from framesmith.util.tables import entry

Row = Callable[..., Any]

# prim name -> row(ctx, spec, *args) -> Value (or tuple of Values), or None: call eager's kernel instead
PRIM_ROWS: dict[str, Row] = {}

# OpOverload -> row(ctx, node, args, kwargs) -> Value (or tuple of Values), or None: an ordinary call
EXTERN_ROWS: dict[Any, Row] = {}


def lowers(*prims: str) -> Callable[[Row], Row]:
    """Register the row of one or several prims."""
    return entry(PRIM_ROWS, *prims)


def lowers_extern(*targets: Any) -> Callable[[Row], Row]:
    """Register the row of one or several operators that reach lowering undecomposed."""
    return entry(EXTERN_ROWS, *targets)


def unsupported_dtype(dtype: torch.dtype) -> bool:
    """Return whether kernels do not support this type (complex, quantised, 8-bit floats): eager's kernel is called.
    Only the prim `copy` has arguments or results of such a type."""
    return dtype not in DTYPES
