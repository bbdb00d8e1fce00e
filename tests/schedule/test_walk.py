"""Sums over rows that go along with what goes over the rows: which do, in how many parts, and what they come to."""

import math

import pytest
import torch

from framesmith.loops.build import Builder
from framesmith.loops.evaluate import run_program
from framesmith.loops.ir import Kernel, Launch, Param, Reduce, Store
from framesmith.loops.text import kernel_text
from framesmith.loops.verify import VerifyError, verify
from framesmith.schedule import column_reductions
from framesmith.schedule import schedule as scheduling
from framesmith.schedule.target import GPU
from framesmith.symbolic.expr import as_expr
from tests.gpu.fakes import recorded, scheduled
from tests.schedule.harness import check, program_of
from tests.schedule.rows import ROWS, inputs, layer_norm, of_one_symbol

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(column_reductions, "ROWS", 64)


def launches(program):
    return [s for s in program.steps if type(s) is Launch]


def parts(program):
    return [k.parts for k in program.kernels if k.parts]


@pytest.mark.parametrize("shape", [(70, 136), (3, 33, 200), (131, 768)])
@pytest.mark.parametrize("name", ROWS)
def test_sums_go_along_with_rows(name, shape):
    fn, make = ROWS[name]
    program = check(fn, *make(shape, torch.float32), target=GPU, rtol=1e-4, atol=2e-4)
    assert len(launches(program)) == 2 and parts(program) == [-(-math.prod(shape[:-1]) // 8)]


@pytest.mark.parametrize("name", ROWS)
def test_of_halves(name):
    """Results are no further from those of float32 than eager's."""
    fn, make = ROWS[name]
    given = make((131, 200), BF16)
    program = program_of(fn, *given, target=GPU)
    assert len(launches(program)) == 2 and parts(program) == [17]
    for got, eager, true in zip(run_program(program, given), fn(*given), fn(*[t.float() for t in given]), strict=True):
        assert got.dtype is eager.dtype and (got - true).norm() <= 1.1 * (eager - true).norm()


def test_bits_of_sums_are_the_same_whatever_else_is_asked():
    """What is summed is what goes to memory where halves are rounded between operators."""
    g, x, mean, rstd, w = inputs((128, 136), BF16)

    def fn(g, x, mean, rstd, w):
        dx, _, _ = layer_norm(g, x, mean, rstd, w)
        return dx, dx.float().sum(0)

    program = program_of(fn, g, x, mean, rstd, w, target=GPU)
    rounded = scheduling.schedule(_lowered(fn, g, x, mean, rstd, w), target=GPU, rounding=True)
    assert parts(program) == parts(rounded) == [16]
    dx, total = run_program(rounded, [g, x, mean, rstd, w])
    torch.testing.assert_close(total, dx.float().sum(0), rtol=1e-5, atol=1e-5)


def _lowered(fn, *given):
    found = []
    program_of(fn, *given, target=GPU, change=lambda graph: found.append(graph) or graph)
    return found[0]


@pytest.mark.parametrize("rows", [130, 1, 5000])
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_unknown_number(name, rows, monkeypatch):
    """All sums that read the same go along, or none: there are no more kernels."""
    fn, make = ROWS[name]
    program = of_one_symbol(fn, make((70, 136), torch.float32))
    verify(program)
    with monkeypatch.context() as m:
        m.setattr(scheduling, "walks", lambda *args: {})
        before = of_one_symbol(fn, make((70, 136), torch.float32))
    assert len(launches(program)) <= len(launches(before)) and parts(program) == ([] if name == "layer norm" else [528])
    given = make((rows, 136), torch.float32)
    for g, w in zip(run_program(program, given), fn(*given), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-3)


ALONE = {
    "nothing over rows": lambda a, b: a.sum(0),
    "rows of another tensor": lambda a, b: (a.sum(0), torch.softmax(b, 1)),
    "no sum": lambda a, b: (a.amax(0), torch.softmax(a, 1)),
    "double": lambda a, b: (a.double().sum(0), torch.softmax(a, 1)),
    "results that rows wait for": lambda a, b: torch.softmax(a * a.sum(0), 1),
    "rows that are pieces": lambda a, b: (a.sum(0), torch.softmax(a.view(-1, 64), 1)),
    "other rows": lambda a, b: (a.sum(0), torch.softmax(a.t().contiguous(), 1)),
}


@pytest.mark.parametrize("name", ALONE)
def test_sums_that_nothing_takes_in_are_as_before(name, monkeypatch):
    given = torch.randn(4096, 256), torch.randn(4096, 256)
    program = check(ALONE[name], *given, target=GPU, rtol=1e-4, atol=1e-3)
    monkeypatch.setattr(scheduling, "walks", lambda *args: {})
    before = program_of(ALONE[name], *given, target=GPU)
    assert not parts(program) and [*map(kernel_text, program.kernels)] == [*map(kernel_text, before.kernels)]


def test_few_rows_and_long_or_odd_ones_are_as_before(monkeypatch):
    monkeypatch.setattr(column_reductions, "ROWS", 1024)
    for shape in ((1000, 136), (2048, 100), (2048, 137), (1024, 5000)):
        assert not parts(program_of(lambda a: (torch.softmax(a, 1), a.sum(0)), torch.empty(shape), target=GPU))


@pytest.mark.parametrize("columns", [256, 4096])
@pytest.mark.parametrize("rows", [1024, 2048, 4096, 4225, 9999, 16384, 65536, 1 << 20])
def test_parts_are_at_most_so_many_of_at_least_eight_rows(rows, columns):
    graph, _ = recorded(lambda a: (torch.softmax(a, 1), a.sum(0)), torch.empty(rows, columns, device="meta"))
    (count,) = parts(scheduled(graph))
    each = -(-rows // count)
    assert each >= 8 and count <= (528 if columns == 256 else 264) and (count - 1) * each < rows
    assert count > 200 or each <= 8


def test_a_sum_over_parts_needs_them():
    b = Builder()
    value = b.const(1.0, torch.float32)
    b.store("p0", as_expr(0), value, "sum")
    assert not any(type(op) is Reduce for op in b.ops) and any(type(op) is Store for op in b.ops)
    program = program_of(lambda a: a + 1, torch.randn(8), target=GPU)
    (k,) = program.kernels
    bad = Kernel((Param("p0", torch.float32, "w"),), (), (), k.outer, tuple(b.ops), k.work, k.bytes)
    step = Launch(bad, (launches(program)[0].args[-1],), ())
    with pytest.raises(VerifyError, match="without parts"):
        verify(type(program)(**{n: getattr(program, n) for n in program.__dataclass_fields__} | {"steps": (step,),
                                                                                                 "kernels": (bad,)}))
