"""Programs whose kernels a C++ compiler has translated wrongly."""

import torch
import torch.nn.functional as F

import framesmith

POINT = torch.nn.Conv2d(4, 4, 1).requires_grad_(False)


def in_three_layouts(x):
    y = F.avg_pool2d(x, 8)
    return y, y.permute(0, 2, 3, 1).contiguous() + 1, POINT(y), y.mT + y[:, :1]


def test_a_kernel_with_strided_accesses_runs():
    """GCC 12 found that it had no effect, and dropped its call."""
    x = torch.randn(2, 4, 16, 16)
    torch.testing.assert_close(framesmith.compile(in_three_layouts, dynamic=False)(x), in_three_layouts(x))
