"""Function modes that a program enters: torch's own without state are followed, others are left to plain Python."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.overrides import TorchFunctionMode

from tests.capture.agree import check
from tests.programs import Programs

X = torch.linspace(-1, 1, 12).reshape(3, 4)
TABLE = torch.arange(20).reshape(4, 5) % 3 == 0
program = Programs(check)


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.sin else out


test_same_as_eager = program.test()


def masked(b, h, q, k):
    return TABLE[q, k] & (q >= k) | TABLE[0][k]


@program(X)
def a_table_under_vmap(x):
    mask = masked
    for dims in [(None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)]:
        mask = torch.vmap(mask, in_dims=dims, out_dims=0)
    with TransformGetItemToIndex():
        found = mask(torch.arange(2), torch.arange(1), torch.arange(4), torch.arange(5))
    return x[0] + 1, found


@program(X)
def elements_are_copies_inside(x):
    y = x.clone()
    with TransformGetItemToIndex():
        y[1].add_(1)
        y[1:].mul_(2)
        z = y[torch.tensor(2)]
    y[0].sub_(3)
    return y, z


@program(X)
def left_by_an_exception(x):
    y = x.clone()
    try:
        with TransformGetItemToIndex():
            y[1].add_(1)
            raise ValueError("out")
    except ValueError:
        y[0].add_(1)
    return y, torch._C._is_torch_function_mode_enabled()


@program(X)
def torch_is_told(x):
    with TransformGetItemToIndex():
        return torch._C._is_torch_function_mode_enabled(), x.sin()


@program(X)
def functions_that_hand_themselves_over(x):
    with TransformGetItemToIndex():
        return F.softmax(x[1], dim=0), F.layer_norm(x, (4,))


@program(X, breaks=True)
def a_break_inside(x):
    with TransformGetItemToIndex():
        y = x[1] * 2
        if y.sum() > 0:
            y = y + 1
        y[1].add_(5)
    return y, x[1] + 1


@program(X, breaks=True)
def a_mode_of_the_program(x):
    with Doubling():
        y = torch.sin(x)
    return y, torch.sin(x)
