"""Running sums and products in kernels of tiles, by the evaluator of the loop IR."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.loops.ir import Extern, Scan, walk
from framesmith.lower.limits import LIMITS
from framesmith.schedule.target import GPU

from .harness import check, program_of


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch):
    monkeypatch.setitem(LIMITS, "cpu", LIMITS["cuda"])


def x(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def test_a_scan_is_fused_with_what_is_around_it():
    program = check(lambda a: F.softmax(a, 1).cumsum(1) * 2 + a, x(6, 20), target=GPU)
    assert len(program.kernels) == 1
    check(lambda a: (a.cumsum(0).exp(), a.cumsum(1).t() + 1, a.cumprod(1).sum(0)), x(6, 7), target=GPU)
    check(lambda a: a.cumsum(1).cumsum(1), x(6, 7), target=GPU)
    check(lambda a: (a.cumsum(-1), a.cumsum(1), a.cumsum(0)), x(3, 4, 5), target=GPU)


def test_a_scan_is_over_one_axis():
    program = check(lambda a: a.cumsum(1).view(6, 4, 5).sum(1), x(6, 20), target=GPU)
    for kernel in program.kernels:
        nests = [n for n in kernel.body if not hasattr(n, "args") and any(type(op) is Scan for op in walk(n.body))]
        assert all(not any(hasattr(n, "axis") for n in nest.body) for nest in nests)
    check(lambda a: (a.view(6, 20) * 2).cumsum(1), x(6, 4, 5), target=GPU)
    check(lambda a, b: ((a.view(6, 20) + b).cumsum(1), a.sum((1, 2))), x(6, 4, 5), x(20), target=GPU)


def test_few_long_rows_are_the_librarys():
    program = program_of(lambda a: a.cumsum(1), torch.empty(2, 1 << 16), target=GPU)
    assert any(isinstance(step, Extern) for step in program.steps)
    assert check(lambda a: (a.cumsum(0), a[:, :1].cumsum(1), a[:0].cumsum(0)), x(5, 4), target=GPU)
