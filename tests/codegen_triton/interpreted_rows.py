"""Sums over rows that go along with kernels over these rows, under Triton's interpreter; run by `test_interpreter`."""

import pytest
import torch

from framesmith.codegen.triton.emit import print_kernels
from framesmith.codegen.triton.tile_shape import form
from framesmith.codegen.triton.tuning import candidates, choose
from framesmith.schedule import column_reductions
from framesmith.schedule.target import GPU
from tests.codegen_triton.machine import module_of, run_kernel, run_program
from tests.schedule.harness import program_of
from tests.schedule.rows import ROWS, layer_norm, of_one_symbol

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(column_reductions, "ROWS", 16)


def agree(program, fn, given):
    for got, eager, true in zip(run_program(program, given), fn(*given), fn(*[t.float() for t in given]), strict=True):
        assert got.shape == eager.shape and got.dtype is eager.dtype
        if got.dtype is BF16:
            assert (got - true).norm() <= 1.1 * (eager - true).norm()
        else:
            torch.testing.assert_close(got, true, rtol=1e-4, atol=3e-4)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("shape", [(33, 136), (64, 256), (3, 19, 768), (25, 1000)])
@pytest.mark.parametrize("name", ROWS)
def test_rows(name, shape, dtype):
    """Of which the last part has fewer, and rows that fill no power of two."""
    fn, make = ROWS[name]
    given = make(shape, dtype)
    program = program_of(fn, *given, target=GPU)
    assert any(k.parts for k in program.kernels)
    agree(program, fn, given)


def test_long_rows():
    fn, make = ROWS["layer norm"]
    given = make((21, 4096), BF16)
    agree(program_of(fn, *given, target=GPU), fn, given)


@pytest.mark.parametrize("rows", [50, 1, 1100])
@pytest.mark.parametrize("name", ["rms norm", "norm, residual, dropout, bias"])
def test_rows_of_unknown_number(name, rows):
    fn, make = ROWS[name]
    program = of_one_symbol(fn, make((70, 136), torch.float32))
    assert any(k.parts for k in program.kernels)
    agree(program, fn, make((rows, 136), torch.float32))


def test_every_candidate_gives_the_same_sums():
    """Also where what a part has is no multiple of its tiles, so that the last parts have nothing."""
    fn, make = ROWS["layer norm"]
    given = make((100, 136), torch.float32)
    program = program_of(fn, *given, target=GPU)
    (kernel,) = [k for k in program.kernels if k.parts]
    configs = candidates(form(kernel))
    assert (configs[0] == choose(form(kernel)) and {c.stages for c in configs} == {1, 2, 3, 4}
            and len({c.blocks["x"] for c in configs}) > 2)
    step = next(s for s in program.steps if s.kernel is kernel)
    results = []
    for config in configs:
        k = print_kernels(program, {kernel: config})[program.kernels.index(kernel)]
        module_of(k.text)
        names = [n for n in step.args if n.startswith("part")]
        memory = {n: torch.full((kernel.parts * 136,), torch.nan) for n in names}
        inputs = {n: t.reshape(-1) for n, t in zip(program.inputs, given, strict=True)}
        run_kernel(k, [memory[n] if n in memory else inputs[n] if n in inputs else torch.empty(100 * 136)
                       for n in step.args])
        results.append([memory[n].view(-1, 136).sum(0) for n in names])
    _, dw, db = layer_norm(*given)
    for found in results:
        for got, want in zip(sorted(found, key=lambda t: (t - dw).norm()), (dw, db), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
