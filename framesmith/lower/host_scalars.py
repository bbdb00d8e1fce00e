"""CPU scalars as operands of another device's tensors: kernels receive their values at launch."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith.lower.context import Context
from framesmith.lower.table import lowers_extern, unsupported_dtype
from framesmith.lower.values import Computed, Stored


@lowers_extern(torch.ops.aten._to_copy.default)
def copied_scalar(ctx: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Computed | None:
    """Lower a copy of one number to the graph's device: its readers take the number as a kernel argument."""
    x, spec = args[0], node.meta["val"]
    if not isinstance(x, Stored) or not ctx.storages[x.buffer].is_host_number or ctx.elsewhere(spec.device) is not None:
        return None
    if unsupported_dtype(x.dtype) or unsupported_dtype(spec.dtype):
        return None
    return Computed(spec.shape, spec.dtype, lambda b, i: b.cast(b.load(x.buffer, 0, x.dtype), spec.dtype), 0,
                    {x.buffer: 1}, ctx.origin)
