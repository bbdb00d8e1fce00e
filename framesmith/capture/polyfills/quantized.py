"""Operators of torch.ops.quantized over plain tensors."""

from __future__ import annotations

import torch

SMALLEST_STEP = 6.1e-5
STEP_OF_ZEROS = 0.1


def linear_dynamic(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None,
                   relu: bool, reduce_range: bool) -> torch.Tensor:
    """quantized::linear_dynamic: a layer whose weight is integers times scales of its rows. Its input is rounded to
    levels, by steps of its range's 255th part (127th: `reduce_range`), of which one is zero."""
    low, high = x.amin().clamp(max=0).double(), x.amax().clamp(min=0).double()
    step = ((high - low) / (127 if reduce_range else 255)).float()
    step = torch.where((step == 0) | torch.isinf(1 / step), STEP_OF_ZEROS, step)
    zero = torch.round(-low / step.double()).clamp(0, 255).float() - 128
    step = step.clamp(min=SMALLEST_STEP)
    levels = (torch.round(x * (1 / step)) + zero).clamp(-128, 127)
    columns = weight.t()
    sums = torch._int_mm(levels.to(torch.int8).reshape(-1, x.shape[-1]), columns)
    sums = sums - zero.to(torch.int32) * columns.sum(0, dtype=torch.int32)
    y = sums.float() * (step * scale)
    y = y if bias is None else y + bias
    return (y.relu() if relu else y).reshape(*x.shape[:-1], y.shape[-1])


def linear_of_halves(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> torch.Tensor:
    """quantized::linear_dynamic_fp16: a layer whose weight was rounded to float16."""
    y = torch.nn.functional.linear(x, weight.float(), bias)
    return y.relu() if relu else y
