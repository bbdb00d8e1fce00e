"""Rows of intermediate matrices begin at multiples of a vector where products read them; the meaning stays."""

import pytest
import torch

from framesmith.loops.evaluate import run_program
from framesmith.lower.contractions import pad_strides
from framesmith.schedule.target import GPU
from tests.schedule.harness import program_of

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(pad_strides, "LARGE", 1 << 10)
    monkeypatch.setattr(pad_strides, "ENOUGH", 16)


def x(*shape, dtype=BF16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def gradients(d, w, y):
    d = torch.softmax(d.float(), -1).to(w.dtype)
    return d @ w, d.t() @ y, d.float().sum(0)


def from_a_product(a, w, v):
    return torch.relu(a @ w) @ v


def of_batches(a, v):
    y = torch.exp(a.float()).to(v.dtype)
    return torch.bmm(y, v), y.reshape(2, 3, 20, 70)[1, 1:, 3:].float() * 2


def returned(a, w):
    y = torch.exp(a.float()).to(w.dtype)
    return y @ w, y


def sorted_too(a, w):
    y = torch.exp(a.float()).to(w.dtype)
    return y @ w, torch.sort(y)[0]


def flat(a, w):
    y = torch.exp(a.float()).to(w.dtype)
    return y @ w, y.reshape(-1)[35:700].float()


def with_a_bias(a, w, v, b):
    return torch.relu(torch.addmm(b, a, w)) @ v


def given(d, w, y):
    return d.reshape(40, 70) @ w, d.reshape(40, 70).t() @ y, d.float().sum(0)


def given_and_written(d, w):
    y = d @ w
    d.mul_(2)
    return y


def given_for_little(d, w):
    return d @ w[:, :8]


def from_an_operator(a, w):
    return torch.sort(a)[0] @ w


CASES = {
    given: ((4, 10, 70), (70, 24), (40, 16)),
    given_and_written: ((40, 70), (70, 24)),
    given_for_little: ((40, 70), (70, 24)),
    from_an_operator: ((40, 70), (70, 24)),
    with_a_bias: ((40, 16), (16, 70), (70, 8), (70,)),
    gradients: ((40, 70), (70, 24), (40, 16)),
    from_a_product: ((40, 16), (16, 70), (70, 8)),
    of_batches: ((6, 20, 70), (6, 70, 8)),
    returned: ((40, 70), (70, 24)),
    sorted_too: ((40, 70), (70, 24)),
    flat: ((40, 70), (70, 24)),
}
# of `with_a_bias`, what is behind the activation
PADDED = (gradients, from_a_product, of_batches, with_a_bias, given, from_an_operator)


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_means_the_same(fn, dtype):
    inputs = [x(*shape, dtype=dtype) for shape in CASES[fn]]
    made = program_of(fn, *map(torch.clone, inputs), target=GPU, change=pad_strides.pad_strides)
    steps = [[s.const for s in b.stride] for b in made.buffers.values() if b.kind != "view"]
    assert any(s[-2:] == [72, 1] for s in steps) == (fn in PADDED)
    for got, want in zip(run_program(made, [*map(torch.clone, inputs)]), torch.utils._pytree.tree_leaves(fn(*inputs)),
                         strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
