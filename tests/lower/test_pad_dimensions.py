"""Products along askew dimensions are longer ones where rows are wide already; the meaning stays."""

import pytest
import torch

from framesmith.loops.evaluate import run_program
from framesmith.loops.ir import Extern
from framesmith.lower.contractions import pad_dimensions, pad_strides
from framesmith.schedule.target import GPU
from tests.schedule.harness import program_of

from .test_pad_strides import x


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(pad_strides, "LARGE", 1 << 10)
    monkeypatch.setattr(pad_strides, "ENOUGH", 16)
    monkeypatch.setattr(pad_dimensions, "LARGE", 1 << 10)
    monkeypatch.setattr(pad_dimensions, "SIDE", 8)
    monkeypatch.setattr(pad_dimensions, "ENOUGH", 32)
    torch.use_deterministic_algorithms(True)  # what is not written is NaN
    yield
    torch.use_deterministic_algorithms(False)


def gradients(d, w, y):
    d = d.reshape(40, 70)
    return d @ w, (d.t() @ y).float() + 1


def computed(d, w, y):
    d = torch.softmax(d.float(), -1).to(w.dtype)
    return d @ w, (d.t() @ y).float() + 1, d.float().sum(1)


def from_a_product(a, w, v):
    return torch.relu(a @ w) @ v


def of_transposed(d, e):
    return d @ e.t()


def across(a, d):
    return torch.relu((a @ d).float())


def returned(d, y):
    return d.t() @ y


def of_few_rows(d, w):
    return d @ w


def used_twice(d, w, y):
    return d @ w, y @ d.t(), w.float().sum()


CASES = {
    gradients: ([(4, 10, 70), (70, 24), (40, 16)], [(40, 72, 24), (72, 40, 16)]),
    computed: ([(40, 70), (70, 24), (40, 16)], [(40, 72, 24), (72, 40, 16)]),
    from_a_product: ([(40, 16), (16, 70), (70, 24)], [(40, 16, 72), (40, 72, 24)]),
    of_transposed: ([(40, 70), (48, 70)], [(40, 72, 48)]),
    across: ([(48, 40), (40, 70)], [(48, 40, 72)]),
    returned: ([(40, 70), (40, 32)], [(70, 40, 32)]),
    of_few_rows: ([(24, 70), (70, 48)], [(24, 70, 48)]),
    used_twice: ([(40, 70), (70, 24), (32, 70)], [(40, 72, 24), (32, 72, 40)]),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_means_the_same(fn, dtype):
    shapes, sizes = CASES[fn]
    inputs = [x(*shape, dtype=dtype) for shape in shapes]
    made = program_of(fn, *map(torch.clone, inputs), target=GPU,
                      change=lambda graph: pad_dimensions.pad_dimensions(pad_strides.pad_strides(graph)))
    found = []
    for step in made.steps:
        if type(step) is Extern:
            a, b = ([n.const for n in made.buffers[ref.name].size] for ref in step.args)
            found.append((*a, b[1]))
    assert found == sizes
    for got, want in zip(run_program(made, [*map(torch.clone, inputs)]), torch.utils._pytree.tree_leaves(fn(*inputs)),
                         strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
