"""Operators on tensors of several devices: eager accepts CPU scalars as further operands, and little else."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake.tensor import tensors_in
from framesmith.util.errors import Unsupported

aten = torch.ops.aten
_ACROSS = frozenset((aten._to_copy.default, aten.copy.default, aten.index.Tensor, aten.index_put.default,
                     aten._index_put_impl.default))


def refuse_devices(func: Any, args: tuple, kwargs: dict) -> None:
    """Raise `Unsupported` for a call that eager probably refuses, so that eager raises its own error at the right
    place."""
    if func in _ACROSS or func.namespace != "aten":
        return
    fakes = list(tensors_in((*args, *kwargs.values())))
    devices = {x.device for x in fakes if x.dim() or x.device.type != "cpu"}
    if len(devices) > 1:
        raise Unsupported(f"{func} on tensors of {' and '.join(sorted(map(str, devices)))}")
