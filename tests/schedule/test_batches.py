"""Launches that differ in the length of their loop alone become rows of one kernel, where their order does not
matter."""

import pytest
import torch

import framesmith
from framesmith.loops.ir import Batch, Launch
from framesmith.schedule.target import CPU, GPU
from tests.schedule.harness import check


def x(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))


def batches(program):
    return [len(s.rows) for s in program.steps if type(s) is Batch]


def updates(a, b, c, rate):
    for p in (a, b, c):
        p.mul_(0.9).add_(rate * 2)
    return ()


def test_rows_of_one_kernel():
    program = check(updates, x(5, 7), x(33), x(2, 3, 4), x())
    assert batches(program) == [3] and len(program.kernels) <= 2


def test_numbers():
    program = check(lambda a, b, c: (a + 1, b + 1, c + 1), x(), x(1), x(2))
    assert batches(program) == [2]


def test_a_row_does_not_pass_what_it_depends_on():
    def f(a, b):
        a.mul_(2)
        b.copy_(torch.cumsum(a, 0)[: b.shape[0]])
        b.mul_(2)
        return ()

    program = check(f, x(20), x(9))
    assert batches(program) == []


def test_a_row_passes_what_it_has_nothing_to_do_with():
    def f(a, b, c, d):
        a.mul_(2)
        s = torch.cumsum(a, 0)
        c.mul_(2)
        d.copy_(s)
        b.mul_(2)
        return ()

    assert batches(check(f, x(20), x(9), x(30), x(20))) == [2]


def test_reductions_and_two_dimensions_stay_launches():
    program = check(lambda a, b: (a.sum(1), b.sum(1), a.t() + b), x(7, 5), x(5, 7))
    assert batches(program) == [] and any(type(s) is Launch for s in program.steps)


def test_an_element_that_is_read_again_and_again_keeps_its_launch():
    program = check(lambda a, b, c: (a.repeat(3) * b, c * 2), x(7), x(21), x(9))
    assert batches(program) == [] and any(type(s) is Launch for s in program.steps)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_all_rows(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        want, got = ([x(257, 300), x(3), x(40_001), x()] for _ in range(2))
        updates(*want)
        framesmith.compile(updates, fullgraph=True)(*got)
        torch.testing.assert_close(got, want)
    finally:
        torch.set_num_threads(before)


def test_little_scratch_memory_may_live_longer_on_a_gpu():
    def f(a, b, w):
        return torch.mm((a * 2).view(4, 5), torch.mm((b * 2).view(5, 4), w))

    inputs = x(20), x(4, 5), x(4, 4)
    assert [batches(check(f, *inputs, target=target)) for target in (CPU, GPU)] == [[], [2]]
