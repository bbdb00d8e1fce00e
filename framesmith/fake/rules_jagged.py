"""Metadata rows of jagged tensors (concatenated rows of different lengths): padding to one length, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from framesmith.fake.infer import rule
from framesmith.fake.tensor import FakeTensor, dense

aten = torch.ops.aten


@rule(aten._jagged_to_padded_dense_forward.default)
def padded(values: FakeTensor, offsets: Sequence[FakeTensor], max_lengths: Sequence[Any], padding: float = 0.0) -> Any:
    if len(offsets) != 1 or len(max_lengths) != 1 or values.dim() != 2 or offsets[0].dim() != 1:
        return NotImplemented
    return dense(values, (offsets[0].shape[0] - 1, max_lengths[0], values.shape[1]))


@rule(aten._padded_dense_to_jagged_forward.default)
def jagged(x: FakeTensor, offsets: Sequence[FakeTensor], total: Any = None) -> Any:
    if len(offsets) != 1 or x.dim() != 3 or offsets[0].dim() != 1 or total is None:
        return NotImplemented
    return dense(x, (total, x.shape[2]))
