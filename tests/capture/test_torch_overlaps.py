"""Operators that write memory which they, or others of the same call, read: eager refuses, or the order of its loop is
the result."""

from __future__ import annotations

import torch

from tests.capture.agree import check
from tests.programs import Programs

program = Programs(check)


def strided():
    return torch.linspace(-1, 1, 18).view(3, 6)[:, ::2]


@program(strided(), breaks=True)
def copy_of_a_column(x):
    x.copy_(x[:, 1])


@program(strided(), breaks=True)
def sum_with_a_column(x):
    x.add_(x[:, 1])


@program(torch.arange(6.0))
def lists_in_order(x):
    a, b = x[:3], x[3:]
    torch._foreach_add_([a, b], [b, a])
    torch._foreach_mul_([a, a], 2.0)


@program(torch.arange(9.0).view(3, 3), breaks=True)
def sum_into_an_operand(x):
    torch.cumsum(x, 0, out=x)


@program(torch.arange(9.0).view(3, 3))
def apart(x):
    x[0].copy_(x[1])
    x[:, 0].add_(x[:, 1])
    x.copy_(x)
    x.fill_(x[1, 1])
    torch.neg(x, out=x)
    torch._foreach_add_([x[0], x[1]], [x[2], x[2]])
    return x


@program(torch.arange(9.0).view(3, 3), raises=RuntimeError, breaks=True)
def copy_of_the_transpose(x):
    x.copy_(x.t())


@program(torch.arange(9.0).view(3, 3), raises=RuntimeError, breaks=True)
def negative_of_the_transpose(x):
    torch.neg(x.t(), out=x)


@program(torch.arange(3), raises=RuntimeError, breaks=True)
def indexed_by_itself(x):
    x.index_put_((x,), torch.tensor(5))


test_same_as_eager = program.test()
