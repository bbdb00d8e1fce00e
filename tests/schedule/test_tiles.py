"""Programs for tiles: one domain inside of a kernel, no arrays, values computed again, long reductions in parts."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.loops.ir import Launch
from framesmith.loops.text import kernel_text
from framesmith.lower.limits import LIMITS
from framesmith.schedule.target import GPU
from tests.schedule.harness import check, program_of

SOFTMAX = """kernel(p0: float32 r, p1: float32 w)
  par i0 < 24:
    red i1 < 32:
      v0 = load p0[(32*i0 + i1)]
      v1 = reduce max v0
    red i2 < 32:
      v2 = load p0[(32*i0 + i2)]
      v3 = sub v2 v1
      v4 = exp v3
      v5 = reduce sum v4
    for i3 < 32:
      v6 = load p0[(32*i0 + i3)]
      v7 = sub v6 v1
      v8 = exp v7
      v9 = div v8 v5
      store p1[(32*i0 + i3)] = v9
"""


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def x(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


def launches(program):
    return sum(type(s) is Launch for s in program.steps)


def test_softmax_computes_again_what_the_cpu_keeps():
    (kernel,) = program_of(lambda a: F.softmax(a, -1), x(2, 12, 32), target=GPU).kernels
    assert kernel_text(kernel) == SOFTMAX


@pytest.mark.parametrize("dynamic", [{(0, 0)}, {(0, 2)}, {(0, 0), (0, 1), (0, 2)}])
def test_rows_of_unknown_length_are_one_kernel(dynamic):
    """Strides are sizes, too: the axes along them are known by those."""
    program = program_of(lambda a: F.softmax(a * 2, -1), x(4, 30, 50), target=GPU, dynamic=dynamic)
    assert launches(program) == 1
    program = program_of(lambda a: F.layer_norm(a, a.shape[-1:]), x(4, 30, 50), target=GPU, dynamic=dynamic)
    assert launches(program) == 1


def test_a_value_whose_source_is_written_over_is_read_from_memory():
    def f(a):
        a.add_(1)
        return F.softmax(a, 1)

    check(f, x(300, 40), target=GPU)


@pytest.mark.parametrize("shape", [(300, 50), (50, 300), (2, 3, 5, 17)])
def test_norms_are_one_kernel(shape):
    n = shape[-1]
    program = check(lambda a, r, w: F.layer_norm(F.gelu(a + r), (n,), w), x(*shape), x(*shape), x(n), target=GPU)
    assert launches(program) == 1


def test_the_backward_of_a_norm_is_one_kernel():
    def f(g, a, w):
        mean, var = a.mean(1, keepdim=True), a.var(1, keepdim=True, correction=0)
        r = torch.rsqrt(var + 1e-5)
        n, gw = (a - mean) * r, g * w
        return r * (gw - gw.mean(1, keepdim=True) - n * (gw * n).mean(1, keepdim=True))

    assert launches(check(f, x(300, 64), x(300, 64), x(64), target=GPU)) == 1


def test_no_loop_is_cut_at_a_condition():
    (kernel,) = check(lambda a, b: torch.cat((-b, a), -1) + 1, x(20, 8), x(20, 8), target=GPU).kernels
    assert "tile" not in kernel_text(kernel)


PARTS = {
    "columns": (lambda a: a.sum(0), (4096, 64)),
    "everything": (lambda a: (a * 2).mean(), (500, 700)),
    "positions": (lambda a: a.argmax(1), (3, 50_000)),
    "extremes": (lambda a: (a.amax(0), a.amin(0)), (4096, 64)),
    "moments": (lambda a: torch.var_mean(a, (0, 2, 3)), (16, 8, 96, 96)),
    "truths": (lambda a: ((a > 4).any(), (a > -9).all()), (300, 500)),
}


@pytest.mark.parametrize("name", PARTS)
def test_long_reductions_to_few_results_are_done_in_parts(name):
    fn, shape = PARTS[name]
    program = check(fn, x(*shape), target=GPU, rtol=1e-4, atol=1e-5)
    assert max(k.outer[0].extent.const if k.outer else 1 for k in program.kernels) >= 3
    assert launches(program) >= 2


def test_sums_of_pieces_of_one_kernel_are_one_kernel():
    program = check(lambda a, b: (a.sum(0) / 2, (a * b).sum(0)), x(4096, 64), x(4096, 64), target=GPU, rtol=1e-4,
                    atol=1e-4)
    assert launches(program) == 2
    program = check(lambda a, b: (a.sum(0), b.sum(0)), x(4096, 64), x(4096, 64), target=GPU, rtol=1e-4, atol=1e-4)
    assert launches(program) == 4  # they read nothing in common


def test_a_reduction_of_a_prime_number_stays_whole():
    assert launches(check(lambda a: a.sum(1), x(2, 65_537), target=GPU, atol=1e-3)) == 1


def test_short_ones_and_many_stay_whole():
    assert launches(check(lambda a: a.sum(1), x(300, 500), target=GPU, atol=1e-4)) == 1
    assert launches(check(lambda a: a.sum(0), x(300, 50), target=GPU, atol=1e-4)) == 1


def test_a_variance_of_long_rows_is_one_pass(monkeypatch):
    monkeypatch.setitem(LIMITS, "cpu", LIMITS["cuda"])
    program = check(lambda a: torch.var_mean(a, 0), x(900, 50), target=GPU, rtol=1e-4)
    assert "welford" in kernel_text(program.kernels[0])
    program = check(lambda a: torch.var_mean(a, 1), x(300, 900), target=GPU, rtol=1e-4)
    assert "welford" not in kernel_text(program.kernels[0])
    program = check(lambda a: torch.var_mean(a, 1), x(300, 20_000), target=GPU, rtol=1e-4)
    assert "welford" in kernel_text(program.kernels[0])
    program = check(lambda a: a.sum(), x(500, 700), target=GPU, rtol=1e-4)
    assert launches(program) == 2
