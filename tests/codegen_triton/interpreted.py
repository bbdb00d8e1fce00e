"""Graphs under Triton's interpreter against eager; run by `test_interpreter`, in a process of its own with
TRITON_INTERPRET=1."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.codegen.triton import fast_math, matmul_configs, tuning
from framesmith.codegen.triton.emit import print_kernels
from framesmith.codegen.triton.kernel_dedup import shared
from framesmith.loops.ir import Batch, Extern
from framesmith.lower.limits import LIMITS
from framesmith.prims import draws
from framesmith.prims.philox import uniform
from framesmith.prims.rules import activations
from framesmith.schedule.target import GPU
from tests.codegen_triton.graphs import DYNAMIC, EXACT, GRAPHS, HALF, x
from tests.codegen_triton.machine import run_program
from tests.codegen_triton.products import PRODUCTS, program
from tests.schedule.harness import program_of, with_numbers


def copy(t):
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) if isinstance(t, torch.Tensor) else t


def agree(name, wide=False, fusion=True, rows=None):
    """The graph's results, and what it writes into its inputs. `rows`: of each input only so many."""
    fn, every = GRAPHS[name]

    def make():
        return every() if rows is None else [t[:rows].clone() for t in every()]

    made = program_of(fn, *make(), target=GPU, fusion=fusion, dynamic=DYNAMIC[name])
    compare(fn, make, made, wide, 0.0 if name in EXACT else None)


def compare(fn, make, made, wide, tolerance, typical=None):
    """`made` gives what eager gives; `tolerance` None: by the type of each result."""
    mine, theirs = make(), make()
    with torch.no_grad():
        want = torch.utils._pytree.tree_leaves(fn(*theirs))
    got = run_program(made, mine, wide, typical)
    assert len(got) == len(want)
    for g, w in zip((*got, *mine), (*want, *theirs)):
        assert g.shape == w.shape and g.dtype is w.dtype
        rtol, atol = ((0.0, 0.0) if not w.dtype.is_floating_point else (1e-2, 1e-2) if w.dtype.itemsize == 2
                      else (1e-4, 1e-5))
        rtol, atol = (rtol, atol) if tolerance is None else (tolerance, tolerance)
        torch.testing.assert_close(g, w, equal_nan=True, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", [name for name in GRAPHS if not name.startswith("long")])
def test_agrees(name):
    agree(name)


@pytest.mark.parametrize("typical", [8, 32, 70, 96])
@pytest.mark.parametrize("length", [48, 70])
def test_rows_of_unknown_length_are_one_tile_if_they_fit(length, typical):
    def fn(a, h):
        return F.softmax(a * 2, -1), a.argmax(1), a.var(1), h.cumsum(1), F.layer_norm(h, h.shape[1:]), a.t() + 1

    def make():
        return [x(5, length), x(5, length, dtype=HALF)]

    made = program_of(fn, *make(), target=GPU, dynamic={(0, 0), (0, 1), (1, 0), (1, 1)})
    compare(fn, make, made, False, None, typical)


_ROWS = ("sum", "reduction", "softmax", "norm", "extreme", "mean", "element", "entropy", "row")
ROWS = [name for name in GRAPHS if any(word in name for word in _ROWS) and "long" not in name]
FEW = {"rows that begin anywhere, several in a tile": 50}
"""Part by part each row is a program of its own, and the interpreter runs one after the other."""


@pytest.mark.parametrize("name", ROWS)
def test_long_rows_go_part_by_part(name, monkeypatch):
    for limit in ("PERSISTENT", "PERSISTENT_COLUMN"):
        monkeypatch.setattr(tuning, limit, 1)
    monkeypatch.setattr(tuning, "LOOPED", 1024)
    agree(name, rows=FEW.get(name))


@pytest.mark.parametrize("name", ["chain", "gathers", "softmax", "sums", "positions", "sizes of rows",
                                  "updates of many parameters"])
def test_wide_indices(name):
    agree(name, wide=True)


SCANS = {
    "rows": lambda a, i, h: (a.cumsum(1), i.cumsum(1), (1 + a / 99).cumprod(1), h.cumsum(1)),
    "columns": lambda a, i, h: (a.cumsum(0), i.cumsum(0), (a * 0.1).exp().cumprod(0) + 1),
    "with what is around": lambda a, i,
    h: (F.softmax(a, 1).cumsum(1) * 2 + a, (a.exp().cumsum(1) / a.exp().sum(1, keepdim=True)).amax(1)),
    "of a scan": lambda a, i,
    h: ((a.cumsum(1) * 0.1).cumsum(1), (i > 3).cumsum(1) * i, a.view(40, 3, 50).cumsum(2).view(40, 150).sum(1)),
}


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("name", SCANS)
def test_scans(name, long, monkeypatch):
    monkeypatch.setitem(LIMITS, "cpu", LIMITS["cuda"])
    if long:
        for limit, value in (("PERSISTENT", 1), ("PERSISTENT_COLUMN", 1), ("LOOPED", 128)):
            monkeypatch.setattr(tuning, limit, value)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(40, 150, generator=generator), torch.randint(0, 9, (40, 150), generator=generator),
              torch.randn(40, 150).half()]
    program = program_of(SCANS[name], *inputs, target=GPU)
    assert not any(isinstance(step, Extern) for step in program.steps)
    for got, want in zip(run_program(program, inputs), SCANS[name](*inputs), strict=True):
        rtol = 2e-2 if want.dtype is torch.float16 else 1e-4
        torch.testing.assert_close(got, want, rtol=rtol, atol=rtol / 10)


def test_layers_of_unequal_sizes_share_kernels():
    def fn(x, y):
        return [F.relu(F.batch_norm(a, None, None, training=True)).sum((0, 2, 3)) for a in (x, y)]

    inputs = [torch.randn(4, c, n, n).to(memory_format=torch.channels_last) for c, n in ((48, 40), (80, 40))]
    program = program_of(fn, *inputs, target=GPU)
    assert len({k.text for k in shared(print_kernels(program))}) < len(program.kernels)
    for got, want in zip(run_program(program, inputs), fn(*inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


NUMBERS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8,
           torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_of_the_host_are_given_by_value(dtype):
    def fn(a, n, m):
        return a * n + m, torch.where(a > 0, a, n), a.sum(1) * n, F.softmax(a * m, 1)

    inputs = [torch.randn(20, 30), torch.tensor(3).to(dtype), torch.tensor(0.3)]
    program = with_numbers(fn, inputs)
    assert any(p.host for k in program.kernels for p in k.params)
    for got, want in zip(run_program(program, inputs), fn(*inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_rows_of_a_table_hold_numbers_of_the_host(dtype):
    def fn(*given):
        return [a * n + 1 for a, n in zip(given[:3], given[3:])]

    inputs = [torch.randn(9), torch.randn(4000), torch.randn(5), *(torch.tensor(v).to(dtype) for v in (1, 0, 5))]
    program = with_numbers(fn, inputs)
    assert any(isinstance(step, Batch) for step in program.steps)
    for got, want in zip(run_program(program, inputs), fn(*inputs), strict=True):
        torch.testing.assert_close(got, want)


DROPPED = {
    "in order": ((24, 64), lambda x: torch.native_dropout(x * 2, 0.3, True)[1]),
    "over a row": ((5, 96), lambda x: (y := torch.native_dropout(x, 0.3, True))[1] + torch.softmax(y[0], -1) * 0),
    "over a long row": ((3, 5000), lambda x: (y := torch.native_dropout(x, 0.3, True))[1] + y[0].sum(-1, keepdim=True)
                        * 0),
    "turned": ((40, 48), lambda x: torch.native_dropout(x.t(), 0.3, True)[1].t() + x * 0),
    "askew": ((7, 51), lambda x: torch.native_dropout(x, 0.3, True)[1] + x * 0),
}


@pytest.mark.parametrize("vector", [1, 2, 4, 8])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", DROPPED)
def test_draws_are_those_of_the_function(name, whole, vector, monkeypatch):
    monkeypatch.setattr(activations, "DRAWING", frozenset(("cpu",)))
    monkeypatch.setattr(draws, "_UNASKED", {4: vector})
    monkeypatch.setattr(draws, "_TYPICAL", 3)
    if not whole:
        monkeypatch.setattr(tuning, "PERSISTENT", 1)
        monkeypatch.setattr(tuning, "LOOPED", 512)
    shape, fn = DROPPED[name]
    x = torch.randn(shape)
    program = program_of(fn, x, target=GPU)
    torch.manual_seed(5)
    mask = run_program(program, [x])[0] != 0
    torch.manual_seed(5)
    (state,) = [draws.STATE(*s.args) for s in program.steps if isinstance(s, Extern)]
    like = x.t() if name == "turned" else x
    order = draws.order_of(like)
    assert order.vector == (1 if name == "askew" else vector)
    want = uniform(state, like.shape, 0, order.vector, order.threads, order.steps) < 0.7
    assert torch.equal(mask, want.t() if name == "turned" else want)
    assert 0.2 < 1 - want.float().mean() < 0.4


@pytest.mark.parametrize("name", ["layer norm", "sums", "batch norm in training", "scatters"])
def test_a_kernel_for_each_nest(name):
    agree(name, fusion=False)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", PRODUCTS)
def test_contractions(name, number, wide):
    fn, make = PRODUCTS[name]
    compare(fn, make, program(name, number), wide, 1e-2 if any(t.dtype.itemsize == 2 for t in make()) else 1e-4)


def test_products_in_tf32_are_rounded_to_nearest():
    def nearest(t):
        return ((t.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)

    fn, make = PRODUCTS["mm"]
    compare(lambda a, b: nearest(a) @ nearest(b), make, program("mm", 0, True), False, 1e-5)
    (result,) = run_program(program("mm", 0, True), [torch.full((37, 50), torch.nan), make()[1]])
    assert result.isnan().all()


def test_the_error_function_to_two_units_in_the_last_place():
    x = torch.cat([torch.linspace(-6, 6, 30_001), torch.logspace(-38, 0, 500), torch.tensor([0.0, -0.0, 1.0, -1.0])])
    special = torch.tensor([torch.inf, -torch.inf, torch.nan])
    made = program_of(lambda a: torch.erf(a), torch.cat([x, special]), target=GPU)
    (y,) = run_program(made, [torch.cat([x, special])])
    true = torch.erf(x.double())
    unit = torch.nextafter(true.float().abs(), torch.tensor(torch.inf)) - true.float().abs()
    assert ((y[:-3].double() - true).abs() / unit.double()).max() <= 2
    assert y[-3:-1].tolist() == [1.0, -1.0] and y[-1].isnan()


def test_sums_of_one_and_a_function_to_two_units_of_one(monkeypatch):
    """As kernels of halves have them, here without the rounding."""
    monkeypatch.setattr(fast_math, "HALF", (torch.float32,))
    x = torch.cat([torch.linspace(-12, 12, 30_001),
                   torch.tensor([0.0, -0.0, 1e-30, 1e30, -1e30, torch.inf, -torch.inf])])
    made = program_of(lambda a: (torch.erf(a) + 1, 1 + torch.tanh(a)), x, target=GPU)
    assert all(name in print_kernels(made)[0].text for name in ("one_and_erf(", "one_and_tanh("))
    for y, true in zip(run_program(made, [x]), (torch.erf(x.double()) + 1, 1 + torch.tanh(x.double()))):
        assert (y.double() - true).abs().max() <= 2 * torch.finfo(torch.float32).eps
    for y in run_program(made, [x.fill_(torch.nan)]):
        assert y.isnan().all()


def test_the_hyperbolic_tangent_to_four_units_in_the_last_place(monkeypatch):
    monkeypatch.setattr(fast_math, "HALF", (torch.float32,))
    x = torch.cat([torch.linspace(-12, 12, 30_001), torch.logspace(-38, 0, 500),
                   torch.tensor([0.0, 1e30, -1e30, torch.inf, -torch.inf])])
    made = program_of(torch.tanh, x, target=GPU)
    assert "hyperbolic_tangent(" in print_kernels(made)[0].text
    (y,), true = run_program(made, [x]), torch.tanh(x.double())
    unit = torch.nextafter(true.float().abs(), torch.tensor(torch.inf)) - true.float().abs()
    assert ((y.double() - true).abs() / unit.double()).max() <= 4
    assert run_program(made, [x.fill_(torch.nan)])[0].isnan().all()


@pytest.mark.parametrize("name", ["mm", "batches", "bias and activation", "symbolic sizes"])
def test_programs_that_share_the_tiles_of_a_product(name, monkeypatch):
    rows = ((16, 16, 16, 4, 2, 3),)
    for table in ("HALVES", "PLAIN"):
        monkeypatch.setattr(matmul_configs, table, rows)
    monkeypatch.setattr(matmul_configs, "LEAST", 16)
    fn, make = PRODUCTS[name]
    made = program(name)
    assert any("flatten" in k.text for k in print_kernels(made))
    compare(fn, make, made, False, 1e-2 if make()[0].dtype.itemsize == 2 else 1e-4)
