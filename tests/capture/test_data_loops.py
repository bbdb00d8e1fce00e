"""Loops that a tensor's data ends: one node of one graph, in Python and by torch.while_loop; a break where the body is
no pure tensor code."""

import sys

import pytest
import torch

import framesmith
from tests.capture.test_branches import alike


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


def until(x):
    while x.sum() < 20:
        x = x + 1
    return x


def newton(x):
    y, n = x.abs() + 1, torch.zeros((), dtype=torch.long)
    while True:
        z = y - (y * y - 2) / (2 * y)
        n = n + 1
        if (z - y).abs().max() < 1e-5:
            break
        y = z
    return z, n


def fibonacci(x):
    n = x.abs().sum().round()
    a, b = torch.zeros(()), torch.ones(())
    while n > 0:
        a, b, n = b, a + b, n - 1
    return a, b


def branching(x):
    n = x.abs().max()
    while n.item() > 0.5:
        n = n / 2
        if n > 3:
            n = n - 1
    return n * x


def nested(x):
    for k in range(2):
        while x.sum() < 10 * (k + 1):
            x = x + 1
            while x[0, 0] > 3:
                x = x * 0.5 + 1.4
        x = x - 2
    return x


def in_a_branch(x):
    if x.mean() > 0:
        while x.mean() < 4:
            x = x * 2
        return x
    return x - 1


def with_parts(x):
    y = x.clone()
    while y.abs().max() > 0.5:
        z = y[:, 1:].exp() * 0
        y = torch.cat([y[:, :1], z], 1) / 2
    return y, x


def counted(x):
    n = 0
    while x.sum() < 20:
        x = x + 1
        n += 1
    return x, n


def scaled(x):
    t = 1.0
    while x.abs().sum().item() > 1:
        t *= 0.5
        x = x * t
    return x, t, x * t


def limited(x):
    n = 0
    while x.sum() < 20 and n < 5:
        x = x + 1
        n += 1
    return x, n


def with_a_break(x):
    x = x.abs() + 1
    change, n = 1.0, 0
    while change > 1e-3:
        y = (x + 2 / x) / 2
        change = (y - x).abs().max().item()
        x = y
        n += 1
        if n == 4:
            x = x * 2
            break
    return x, n


ONE_GRAPH = [until, newton, fibonacci, branching, nested, in_a_branch, with_parts, counted, scaled, limited,
             pytest.param(with_a_break, marks=pytest.mark.skipif(
                 sys.version_info >= (3, 12), reason="the break has a return of its own there: a return in a loop"))]
INPUTS = [torch.rand(3, 4), -torch.rand(3, 4), torch.ones(3, 4) * 9, torch.randn(3, 4) * 2, torch.zeros(3, 4)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", ONE_GRAPH)
def test_loops_of_python_are_one_graph(program, dynamic, captures):
    compiled = framesmith.compile(program, fullgraph=True, dynamic=dynamic)
    for x in INPUTS * 2:
        alike(compiled(x.clone()), program(x.clone()))
    assert len(captures) == 1
    if dynamic:
        for x in (torch.rand(5, 6), torch.rand(2, 7) * 2):
            alike(compiled(x), program(x))
        assert len(captures) == 1


seen = []


def speaks(x):
    while x.sum() < 20:
        x = x + 1
        seen.append(1)
    return x


def grows(x):
    while x.sum() < 20:
        x = torch.cat([x, x + 1])
    return x


def writes(x):
    y = x * 1
    z = y
    while y.sum() < 20:
        y.add_(1)
    return y, z


def collects(x):
    found = []
    while x.sum() < 20:
        x = x + 1
        found.append(x)
    return found


def returns(x):
    while x.sum() < 20:
        x = x + 1
        if x[0, 0] > 1:
            return x * 2
    return x


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("program", [speaks, grows, writes, collects, returns])
def test_loops_that_do_more_are_breaks(program):
    compiled = framesmith.compile(program)
    for x in INPUTS[:1] + INPUTS[2:4]:
        del seen[:]
        mine, theirs = x.clone().abs(), x.clone().abs()
        got, there = compiled(mine), list(seen)
        del seen[:]
        alike(got, program(theirs))
        assert seen == there and torch.equal(mine, theirs)


@pytest.mark.filterwarnings("ignore:framesmith")
def test_a_loop_that_is_trained_is_a_break():
    compiled = framesmith.compile(until)
    for x in INPUTS[:3]:
        given = [x.clone().requires_grad_() for _ in range(2)]
        alike(*[f(y * 2) for f, y in zip((compiled, until), given, strict=True)])
        for f, y in zip((compiled, until), given, strict=True):
            f(y * 2).pow(2).sum().backward()
        torch.testing.assert_close(given[0].grad, given[1].grad)
        with torch.no_grad():
            alike(framesmith.compile(until, fullgraph=True)(given[0] * 2), until(given[0] * 2))


W = torch.rand(4)
WHILES = {
    "tensors": lambda x: torch.while_loop(lambda i, x: i.sum() < 3, lambda i, x: (i + 1, x * 2 + W),
                                          (torch.zeros(1), x)),
    "integers": lambda x: torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2 + i), (0, x)),
    "none": lambda x: torch.while_loop(lambda i, x: i.sum() < -3, lambda i, x: (i + 1, x * 2), (torch.zeros(1), x)),
    "by keywords": lambda x: torch.while_loop(cond_fn=lambda x: x.sum() < 9, body_fn=lambda x: (x.abs() + 1,),
                                              carried_inputs=(x,)),
    "trees": lambda x: torch.while_loop(
        lambda i, d: d["a"].sum() < 30, lambda i, d: (i + 1, {"a": d["a"] + 1, "b": d["b"] * d["a"]}),
        (torch.zeros(1), {"a": x.abs(), "b": x})),
}


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("name", WHILES)
def test_while_loop(name, backend, captures):
    program = WHILES[name]
    compiled = framesmith.compile(program, fullgraph=True, backend=backend)
    for x in (torch.rand(4), -torch.rand(4), torch.ones(4) * 8):
        alike(compiled(x), program(x))
    assert len(captures) == 1
