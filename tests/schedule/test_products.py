"""Contractions as nests: what the scheduler fuses into them, by the evaluator of the loop IR against eager."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from framesmith.loops.evaluate import run_program
from framesmith.loops.ir import Extern, Launch
from framesmith.loops.product import MatrixProduct
from framesmith.lower.contractions.template_heuristics import unmeasured
from framesmith.schedule.target import GPU
from tests.codegen_triton.products import PRODUCTS, program
from tests.schedule.harness import program_of


def copy(t):
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("name", PRODUCTS)
def test_agrees_with_eager(name, number):
    fn, make = PRODUCTS[name]
    made = program(name, number)
    assert not any(type(step) is Extern for step in made.steps)
    mine, theirs = make(), make()
    with torch.no_grad():
        want = torch.utils._pytree.tree_leaves(fn(*theirs))
    got = run_program(made, mine)
    for g, w in zip((*got, *mine), (*want, *theirs)):
        assert g.shape == w.shape and g.dtype is w.dtype
        tolerance = 2e-2 if any(t.dtype.itemsize == 2 for t in theirs) else 1e-4
        torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance)


def kernels(name, number=0):
    return [step.kernel for step in program(name, number).steps if type(step) is Launch]


@pytest.mark.parametrize(
    ("name", "count"),
    [("bias and activation", 1), ("residual and norm", 2), ("gated", 2), ("result and its activation", 1),
     ("other types behind", 1),
     ("linear", 1), ("convolution", 1), ("one row", 1), ("symbolic rows", 1)],
)
def test_pointwise_work_behind_a_contraction_is_its_epilogue(name, count):
    assert len(kernels(name)) == count


def test_what_writes_an_operand_is_a_kernel_of_its_own():
    first, *rest = kernels("written into an operand")
    assert type(first.body[-1]) is MatrixProduct and rest


def test_what_computes_operands_is_a_prologue():
    (only,) = kernels("computed operands", 1)
    (product,) = only.body
    assert [len(product.left), len(product.right)] == [4, 4] and len(only.params) == 5
    assert len(kernels("computed operands", 0)) == 3
    assert len(kernels("an operand of many readers", 1)) == 2  # the sum is what else reads it: it computes it again


def test_a_long_sum_with_few_results_is_done_in_parts():
    first, second = kernels("long sum", 1)
    assert type(first.body[-1]) is MatrixProduct and len(first.outer) == 1
    assert len(second.params) == 3  # the parts, the bias and the result


def test_products_along_askew_dimensions_are_ours_without_a_measurement():
    def made(rows, columns, depth, step):
        a = torch.empty_strided((rows, depth), (step, 1), dtype=torch.bfloat16)
        w = torch.empty(depth, columns, dtype=torch.bfloat16)
        return [type(s) for s in program_of(torch.mm, a, w, target=GPU, change=unmeasured).steps]

    assert made(1024, 1032, 64, 64) == [Extern]
    assert made(1024, 1030, 64, 64) == [Extern]  # the right operand has such rows, too
    assert made(1024, 128, 1030, 1030) == [Extern]
    assert made(1024, 128, 1030, 1032) == [Launch]
    assert made(512, 128, 1030, 1032) == [Extern]  # small


def test_results_along_askew_dimensions_are_ours_without_a_measurement():
    def made(columns, dtype=torch.bfloat16, tf32=False):
        a, w = (torch.empty(n, 64, dtype=dtype) for n in (1024, columns))
        steps = program_of(lambda a, w: torch.mm(a, w.t()), a, w, target=GPU,
                           change=lambda graph: unmeasured(graph, tf32)).steps
        return [type(s) for s in steps]

    assert made(1030) == [Launch]
    assert made(1032) == [Extern]
    assert made(1030, torch.float32, tf32=True) == [Launch]
    assert made(1030, torch.float32) == made(1028, torch.float32, tf32=True) == [Extern]


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "behind", "steps"),
    [
        (50176, 240, 40, torch.relu, [Launch]),  # what follows would take longer than the product
        (64, 168, 672, torch.relu, [Launch]),  # one kernel less
        (50176, 240, 40, lambda y: y, [Extern]),
        (50176, 240, 40, lambda y: y.softmax(1), [Extern, Launch]),  # a tile has no rows to sum over
        (8192, 4096, 4096, torch.relu, [Extern, Launch]),  # the library multiplies faster
        (50176, 240, 42, torch.relu, [Extern, Launch]),  # rows in no vectors
    ],
)
def test_products_that_wait_for_memory_are_ours_with_what_follows(rows, columns, depth, behind, steps):
    a, w = (torch.empty(n, depth, dtype=torch.bfloat16) for n in (rows, columns))
    made = program_of(lambda a, w: behind(torch.mm(a, w.t())), a, w, target=GPU, change=unmeasured)
    assert [type(s) for s in made.steps if type(s) in (Extern, Launch)] == steps


def unrolled(x, h, w, u):
    for t in range(x.shape[0]):
        h = torch.tanh(torch.mm(h, u) + torch.mm(x[t].to(h.dtype), w))
    return h


def test_small_products_of_float32_are_ours_where_they_may_be_less_exact():
    given = [torch.randn(*shape) / 16 for shape in ((3, 64, 256), (64, 256), (256, 256), (256, 256))]
    made = program_of(unrolled, *given, target=GPU, change=lambda graph: unmeasured(graph, True))
    assert {type(s) for s in made.steps} == {Launch} and len(made.steps) == 6
    assert all(k.body[-1].tf32 for k in made.kernels)
    (got,) = run_program(made, [copy(t) for t in given])
    torch.testing.assert_close(got, unrolled(*given), rtol=1e-4, atol=1e-4)
    exact = program_of(unrolled, *given, target=GPU, change=unmeasured)
    assert sum(type(s) is Extern for s in exact.steps) == 6


def test_casts_of_what_is_given_are_in_small_products():
    x, *rest = [torch.randn(*shape) / 16 for shape in ((3, 64, 256), (64, 256), (256, 256), (256, 256))]
    rest = [t.bfloat16() for t in rest]
    made = program_of(unrolled, x, *rest, target=GPU, change=unmeasured)
    assert len(made.steps) == 6 and all(type(k.body[-1]) is MatrixProduct for k in made.kernels)
    (got,) = run_program(made, [copy(t) for t in (x, *rest)])
    torch.testing.assert_close(got, unrolled(x, *rest), rtol=2e-2, atol=2e-2)
    large = [torch.empty(*shape, dtype=torch.bfloat16) for shape in ((8192, 512), (512, 512), (512, 512))]
    made = program_of(unrolled, torch.empty(1, 8192, 512), *large, target=GPU, change=unmeasured)
    assert any(type(k.body[-1]) is not MatrixProduct for k in made.kernels)


@pytest.mark.parametrize(("rows", "columns", "depth", "steps"), [(50176, 240, 40, 1), (50176, 240, 400, 2)])
def test_products_of_float32_are_ours_where_they_may_be_rounded(rows, columns, depth, steps):
    a, w = (torch.empty(n, depth) for n in (rows, columns))
    for tf32 in (False, True):
        made = program_of(lambda a, w: torch.mm(a, w.t()).relu(), a, w, target=GPU,
                          change=partial(unmeasured, tf32=tf32))
        assert len([s for s in made.steps if type(s) in (Extern, Launch)]) == (steps if tf32 else 2)


def test_convolutions_of_few_channels_are_ours():
    def made(channels, dtype=torch.bfloat16):
        shapes = (2, channels, 32, 32), (16, channels, 3, 3)
        a, w = (torch.empty(s, dtype=dtype).to(memory_format=torch.channels_last) for s in shapes)
        steps = program_of(lambda a, w: F.conv2d(a, w, None, 2).relu(), a, w, target=GPU, change=unmeasured).steps
        return [type(s) for s in steps if type(s) in (Extern, Launch)]

    assert made(3) == [Launch] and made(4) == [Extern, Launch]
    assert made(3, torch.float32) == [Extern, Launch]  # the library computes some of these exactly


def test_gates_are_applied_where_the_product_reads():
    a = torch.randn(4, 256, 48).bfloat16()
    w, b = torch.randn(24, 48).bfloat16(), torch.randn(24).bfloat16()

    def fn(a, w, b):
        gated = a * a.mean(1, keepdim=True).sigmoid()
        return torch.mm(gated.reshape(1024, 48), w.t()) + b

    made = program_of(fn, a, w, b, target=GPU, change=unmeasured)
    mean, product = [step.kernel for step in made.steps if type(step) is Launch]
    assert len(product.body[-1].left) > 2 and len(mean.params) == 2
    (got,) = run_program(made, [a, w, b])
    torch.testing.assert_close(got, fn(a, w, b), rtol=2e-2, atol=2e-2)
