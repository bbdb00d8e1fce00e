"""Composite operators that are recorded whole, because later stages have better code for them than for their parts.

Any other composite operator is recorded as the operators that it calls.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten

WHOLE = frozenset(
    (
        aten.linear.default,
        aten.matmul.default,
        aten.scaled_dot_product_attention.default,
        aten.layer_norm.default,
        aten.group_norm.default,
        aten.rms_norm.default,
        aten.conv1d.default,
        aten.conv2d.default,
        aten.conv3d.default,
        aten.softmax.int,
        aten.log_softmax.int,
        aten.adaptive_avg_pool2d.default,
        aten.max_pool2d.default,
        aten.cross_entropy_loss.default,
        aten.lstm.input,
        aten.gru.input,
        aten.pad.default,
        aten.var.dim,
        aten.std.dim,
        aten.silu_backward.default,  # these have kernels of their own, too, and no derivative
        aten.mish_backward.default,
    )
)
