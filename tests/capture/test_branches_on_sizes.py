"""Branches on sizes of data: both ways in one graph; what is decided by ranges is no branch, and what raises is
looked at when the size is known."""

import pytest
import torch

import framesmith
from framesmith import exc
from tests.capture.test_branches import alike


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


def both(x):
    y = x[x > 0.5]
    if y.shape[0] > 3:
        return y.sum() * 2
    return y.sum() - 1


def empty(x):
    y = x[x > 0.5]
    if y.numel():
        m = y.mean()
    else:
        m = x.min()
    return m + x


def not_empty(x):
    y = (x > 0.5).nonzero()
    if not len(y):
        return x * 0
    return x * 2


def within(x):
    y = x[x > 0.5]
    if 1 < y.shape[0] <= 4:
        return x.sin()
    return x.cos()


def of_two(x):
    a, b = x[x > 0.5], x[x < 0.2]
    if a.shape[0] < 2 * b.shape[0] + 1:
        return a.sum() + x
    return b.sum() + x


def declared(x):
    y = x[x > 0.5]
    return torch.cond(y.shape[0] > 3, lambda v: v.exp(), lambda v: v.neg(), (x,))


def of_an_item(x):
    n = (x > 0.5).sum().item()
    y = torch.zeros(n) + 1
    if y.shape[0] == 2:
        return x + 1
    return x + y.sum()


def kept_in_range(x):
    y = x[x > 0.5]
    if y.shape[0] >= 0:
        return x + 1
    return x - 1


def cut(x):
    y = x[x > 0.5]
    z = y[:3].sum()
    if y.size(0) >= 3:
        z = z + y[0:2].sum()
    return z * x


ONE_GRAPH = [both, empty, not_empty, within, of_two, declared, of_an_item, kept_in_range, cut]
MIXED = torch.linspace(0, 1, 12)[torch.arange(12) * 5 % 12]
INPUTS = [MIXED * s for s in (0.3, 0.55, 0.7, 1.0, 5.0, 0.0)] + [torch.ones(12)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", ONE_GRAPH)
def test_both_ways_are_one_graph(program, dynamic, captures):
    compiled = framesmith.compile(program, fullgraph=True, dynamic=dynamic)
    for x in INPUTS:
        alike(compiled(x.clone()), program(x.clone()))
    assert len(captures) == 1


@pytest.mark.parametrize("program", ONE_GRAPH)
def test_both_ways_are_trained(program, captures):
    compiled = framesmith.compile(program, fullgraph=True)
    for x in INPUTS:
        found = []
        for run in (compiled, program):
            leaf = x.clone().requires_grad_()
            y = run(leaf * 1)
            found.append((y, torch.autograd.grad(y.pow(2).sum(), leaf)))
        torch.testing.assert_close(*found)
    assert len(captures) == 1


def raising(x):
    y = x[x > 0.5]
    if y.shape[0] == 0:
        raise ValueError("nothing is left")
    return y.sum() / y.shape[0]


def test_a_way_that_raises_is_looked_at(captures):
    compiled = framesmith.compile(raising, fullgraph=True)
    for x in INPUTS[2:5]:
        alike(compiled(x), raising(x))
    assert len(captures) == 1
    with pytest.raises(ValueError, match="nothing is left"):
        compiled(torch.zeros(12))


def different(x):
    y = x[x > 0.5]
    if y.shape[0] > 3:
        return y
    return x[:, None]


@pytest.mark.filterwarnings("ignore:framesmith")
def test_ways_of_different_layouts_are_a_break():
    compiled = framesmith.compile(different)
    for x in INPUTS:
        alike(compiled(x), different(x))
    with pytest.raises(exc.Unsupported, match="both ways could be one graph, but"):
        framesmith.compile(different, fullgraph=True)(INPUTS[0])
