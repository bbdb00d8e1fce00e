"""How exact float32 is on a CUDA device, by settings of the process. What is compiled goes by them, so graphs are guarded by them."""

from __future__ import annotations

import torch

PRODUCTS, CONVOLUTIONS = "matmul", "conv"
"""What `torch.backends` has a setting for."""
_HALF = (torch.bfloat16, torch.float16)


def in_tf32(what: str) -> bool:
    """Whether libraries may round what they multiply to TF32."""
    return torch._C._get_fp32_precision_getter("cuda", what) == "tf32"


def on_matrix_units(dtype: torch.dtype) -> bool:
    """Whether convolutions of this type run there, channels innermost: of halves, and of float32 where it may be rounded."""
    return dtype in _HALF or dtype is torch.float32 and in_tf32(CONVOLUTIONS)
