"""PyTorch's associative scan, followed by an algorithm of our own."""

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan

import framesmith
from framesmith import exc

A, B = torch.rand(3, 7, 5), torch.rand(3, 7, 5)


def linear(left, right):
    return left[0] * right[0], right[0] * left[1] + right[1]


@pytest.mark.parametrize("program", [
    lambda: associative_scan(linear, (A, B), 1, combine_mode="generic"),
    lambda: associative_scan(torch.add, A, 2, reverse=True, combine_mode="generic"),
    lambda: associative_scan(torch.maximum, A[:, :1], dim=1, combine_mode="generic"),
])
def test_scans(program):
    torch.testing.assert_close(framesmith.compile(program, fullgraph=True, backend="eager")(), program())


def test_a_combining_function_that_is_not_pointwise():
    square = torch.rand(4, 3, 3)
    program = framesmith.compile(lambda: associative_scan(torch.matmul, square, 0, combine_mode="generic"),
                                 fullgraph=True)
    with pytest.raises(exc.Unsupported, match="not pointwise"):
        program()
