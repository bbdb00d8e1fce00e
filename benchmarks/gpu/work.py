"""What a call must do at least, whatever compiles it: the bytes and operations of its contractions, and its inputs and
outputs once.

Contractions are not fused with each other: each reads what it multiplies and writes its result. Everything else could
be a part of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


def _bytes(values: Any) -> int:
    return sum(t.nbytes for t in tree_leaves(values) if isinstance(t, torch.Tensor))


class Contractions(TorchDispatchMode):
    """Counts those that run while it is entered."""

    def __init__(self, limits: dict[str, float]) -> None:
        super().__init__()
        self.limits = limits
        self.bytes, self.operations, self.seconds = 0, 0, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        count = flop_registry.get(func._overloadpacket)
        if count is None and func is not torch.ops.prim.device.default:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if count is not None:
            self.add(_bytes((args, kwargs, out)), count(*args, **kwargs, out_val=out), args[0].dtype)
        return out

    def add(self, moved: int, operations: int, dtype: torch.dtype) -> None:
        """One that moves and does so much."""
        rate = self.limits["tf32" if dtype is torch.float32 else "bf16"]
        self.bytes, self.operations = self.bytes + moved, self.operations + operations
        self.seconds += max(moved / self.limits["copy"], operations / rate)


def least(call: Callable[[], Any], inputs: Any, limits: dict[str, float]) -> dict[str, float]:
    """`bytes` and `operations` of a call, and the `seconds` that they take at the device's `limits`, contraction by
    contraction."""
    counter = Contractions(limits)
    with counter:
        out = call()
    edges = _bytes((inputs, out))
    return {"bytes": counter.bytes + edges, "operations": counter.operations,
            "seconds": counter.seconds + edges / limits["copy"]}
