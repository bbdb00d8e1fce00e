"""A hundred random graphs with gradients; `python -m tests.nets.random_graphs` runs as many as one likes."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from framesmith.tools.difference import mismatch
from tests.fuzz.pool import run_all
from tests.nets.random_graphs import judge, resized, used
from tests.nets.random_graphs_writer import write
from tests.nets.rounding import is_exact, is_rounding, overflows, reads_leftovers, reads_unseen_writes, roundings


@pytest.mark.forks
def test_random_graphs():
    found = list(run_all(lambda seed: judge(write(seed)), list(range(100)), jobs=2))
    assert {seed: f"{v.kind}: {v.detail}\n{write(seed)}" for seed, v in found if not v.good} == {}
    assert sum(v.captured > 0 for _, v in found) > 80


CHANGING = """
import torch
calls = []

def inputs():
    return torch.ones(2),

def program(a):
    calls.append(1)
    return a if len(calls) < 3 else a.sum(),
"""


def test_a_difference_is_found():
    assert not judge(CHANGING).good


INF = torch.full((4,), torch.inf)
KS = torch.tensor([-1.0, 0.0, 2.0, 1.0, 2.0, 2.0])


def gradient_of(fn):
    x = torch.zeros(4, requires_grad=True)
    return torch.autograd.grad(fn(x).sum(), x)[0]


ROOT = torch.zeros(3, requires_grad=True)
AT_ROOT = lambda: torch.autograd.grad(ROOT.sqrt().softmax(0), ROOT, torch.linspace(0.5, 1.5, 3))[0]  # noqa: E731
LOST = torch.tensor([1e-30, 1e-30, 1e30, 1e30, 1e30] * 2)
Z = torch.complex(torch.linspace(1, 2, 4), torch.linspace(2, 1, 4))
PM = torch.tensor([[0.0, -0.0, -0.0], [-0.0, 0.0, 0.0]])
ELU = partial(torch.ops.aten.elu_backward, torch.ones(6), 1, 1, 1, False)
ROUNDED = {
    "the greatest of equal angles": (lambda: torch.atan2(KS, KS).argmax(), torch.tensor(3), True),
    "no greatest": (lambda: torch.atan2(KS, KS).argmax(), torch.tensor(1), False),
    "the greatest of equal numbers": (lambda: (KS + KS).argmax(), torch.tensor(4), False),
    "what is left of a sum": (lambda: (KS / 3).softmax(0).sum() - 1, torch.tensor(2e-7), True),
    "more than is left of a sum": (lambda: (KS / 3).softmax(0).sum() - 1, torch.tensor(1e-5), False),
    "gelu in a loop's vector part and out of it": (lambda: F.gelu(INF), INF, True),
    "what is made of that": (lambda: F.gelu(INF[:3]).mul(2).add(KS[:3].exp()), INF[:3], True),
    "another number than either": (lambda: F.gelu(INF), torch.zeros(4), False),
    "what is left of gradients": (lambda: gradient_of(lambda x: 1e9 * x - 1e9 * x + 0.5 * x), torch.ones(4), True),
    "what is too small": (lambda: torch.full((4,), 1e-40).sign(), torch.zeros(4), True),
    "an angle of what is too small": (lambda: torch.full((4,), 1e-40).atan2(KS[:1] * 0 + 1e-40), torch.zeros(4), True),
    "what is small": (lambda: torch.full((4,), 1e-37).sign(), torch.zeros(4), False),
    "nothing times infinity, or less than nothing": (AT_ROOT, torch.tensor([-torch.inf, -torch.inf, torch.inf]), True),
    "less than nothing times infinity": (AT_ROOT, torch.tensor([torch.inf, torch.nan, torch.inf]), False),
    "partial products that are lost": (lambda: LOST.prod(), torch.tensor(torch.inf), True),
    "a product that is not lost": (lambda: KS[3:].prod(), torch.tensor(3.0), False),
    "quotients of complex numbers": (lambda: (Z / Z).imag, torch.full((4,), 1e-8), True),
    "the least of two zeros": (lambda: 1 / PM.min(), torch.tensor(torch.inf), True),
    "the least of equal zeros": (lambda: 1 / PM[:1, 1:].min(), torch.tensor(torch.inf), False),
    "the greatest of a row": (lambda: 1 / PM[:, :2].amax(1), torch.tensor([-torch.inf, torch.inf]), True),
    "the greatest of another row": (lambda: 1 / PM[:, 1:].amax(1), torch.tensor([torch.inf, -torch.inf]), False),
    "no variance": (lambda: KS[2:].expand(4, 4).mT.var(1).sign(), torch.tensor([0.0, 1.0, 0.0, 1.0]), True),
    "a variance": (lambda: KS[2:].reshape(2, 2).var(1).sign(), torch.tensor([0.0, 1.0]), False),
    "elu at NaN in a loop's vector part": (lambda: ELU(KS * torch.nan), KS * torch.nan, True),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_last_bits_of_eager(name):
    run, found, excused = ROUNDED[name]
    assert is_rounding(run(), found, roundings(run), partial(mismatch, exact=None)) is excused


def test_infinities_leave_no_room():
    x, lost = torch.tensor([torch.inf, 2.0]), torch.tensor([torch.inf, 2.1])
    for y in torch.tensor([1.0, 2.0]), -x, lost, torch.tensor([torch.nan, 2.0]):
        assert mismatch(x, y, None) and mismatch(x, y, torch.tensor([1.0, 2.0]).double()) and mismatch(y, x, None)


def test_last_bits_lie_as_what_they_are_of():
    x = torch.zeros(3, 4).t()
    assert {y.stride() for y in roundings(lambda: x.exp() + 0)} == {x.stride()}


def test_what_overflows_within():
    x = torch.tensor([1e30, 1e30])
    assert overflows(lambda: F.layer_norm(x, (2,))) == ["native_layer_norm"]
    assert overflows(lambda: x * x) == overflows(lambda: (x * x).sum()) == []


def test_what_a_run_in_float64_gives():
    x = torch.tensor([1e-30, 1e-30, torch.inf])
    assert [is_exact(x.prod(), torch.tensor(y), x.double().prod()) for y in (torch.inf, 1.0)] == [True, False]


def test_what_operators_leave():
    def run(loss):
        loss(torch.ones(2, 3), torch.zeros(2, 3)).as_strided((1,), (1,))

    assert [reads_leftovers(partial(run, f)) for f in (F.mse_loss, torch.dist, lambda x, y: x[:, 1])] == [True, False,
                                                                                                          False]


def test_unseen_writes():
    def run(counted):
        x = torch.ones(3, requires_grad=True)
        y = x * 1
        z = y.sin()
        (z if counted else y.data).add_(1)
        z.sum().backward()

    assert [reads_unseen_writes(partial(run, counted)) for counted in (True, False)] == [False, True]


DYNAMIC = """
import torch

def inputs():
    return torch.ones((3, 4)), torch.ones((4,))

def program(a, b):
    t1 = a[2]
    t2 = t1 + b
    return a * b,
"""


def test_programs_at_other_sizes():
    assert "torch.ones((2, 9)), torch.ones((9,))" in resized(DYNAMIC, {3: 2, 4: 9})
    assert "t1" not in used(DYNAMIC) and "a * b" in used(DYNAMIC)
    assert [judge(DYNAMIC, dynamic).kind for dynamic in (True, None)] == ["same", "same"]
