"""The precision of float32 on a CUDA device, by settings of the process. Compiled code depends on them, so graphs are
guarded by them."""

from __future__ import annotations

from typing import Any

import torch

PRODUCTS, CONVOLUTIONS = "matmul", "conv"
"""The operations whose precision `torch.backends` sets."""
HALF = (torch.bfloat16, torch.float16)


def in_tf32(what: str) -> bool:
    """Return whether libraries may round what they multiply to TF32."""
    return torch._C._get_fp32_precision_getter("cuda", what) == "tf32"


def on_matrix_units(dtype: torch.dtype, *channels: int) -> bool:
    """Return whether convolutions of this type run there, channels innermost: of halves, and of float32 where it may be
    rounded. Those of 5 to 15 channels cuDNN computes exactly, in eager's layout alone."""
    return dtype in HALF or dtype is torch.float32 and not any(4 < n < 16 for n in channels) and in_tf32(CONVOLUTIONS)


def channels_of(image: Any, weight: Any) -> tuple[int, ...]:
    """Return the channels of a convolution's image and of its result, as far as known; none for a depthwise one, which
    is computed exactly."""
    return tuple([n for n in (image.shape[1], weight.shape[0]) if type(n) is int]) if weight.shape[1] != 1 else ()


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of `dtype` are computed, as in eager's kernels: float32 for 16-bit floats."""
    return torch.float32 if dtype in HALF else dtype
