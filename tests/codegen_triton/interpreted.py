"""Graphs under Triton's interpreter against eager; run by `test_interpreter`, in a process of its own with TRITON_INTERPRET=1."""

import pytest
import torch

from framesmith.codegen.triton import tuning
from framesmith.schedule.target import GPU
from tests.codegen_triton.graphs import DYNAMIC, EXACT, GRAPHS
from tests.codegen_triton.machine import run_program
from tests.codegen_triton.products import PRODUCTS, program
from tests.schedule.harness import program_of


def copy(t):
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) if isinstance(t, torch.Tensor) else t


def agree(name, wide=False, fusion=True):
    """The graph's results, and what it writes into its inputs."""
    fn, make = GRAPHS[name]
    made = program_of(fn, *make(), target=GPU, fusion=fusion, dynamic=DYNAMIC[name])
    compare(fn, make, made, wide, 0.0 if name in EXACT else None)


def compare(fn, make, made, wide, tolerance):
    """`made` gives what eager gives; `tolerance` None: by the type of each result."""
    mine, theirs = make(), make()
    with torch.no_grad():
        want = torch.utils._pytree.tree_leaves(fn(*theirs))
    got = run_program(made, mine, wide)
    assert len(got) == len(want)
    for g, w in zip((*got, *mine), (*want, *theirs)):
        assert g.shape == w.shape and g.dtype is w.dtype
        rtol, atol = (0.0, 0.0) if not w.dtype.is_floating_point else (1e-2, 1e-2) if w.dtype.itemsize == 2 else (1e-4, 1e-5)
        rtol, atol = (rtol, atol) if tolerance is None else (tolerance, tolerance)
        torch.testing.assert_close(g, w, equal_nan=True, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", [name for name in GRAPHS if not name.startswith("long")])
def test_agrees(name):
    agree(name)


_ROWS = ("sum", "reduction", "softmax", "norm", "extreme", "mean", "element", "entropy", "row")
ROWS = [name for name in GRAPHS if any(word in name for word in _ROWS) and "long" not in name]


@pytest.mark.parametrize("name", ROWS)
def test_long_rows_go_part_by_part(name, monkeypatch):
    for limit in ("PERSISTENT", "PERSISTENT_COLUMN"):
        monkeypatch.setattr(tuning, limit, 1)
    monkeypatch.setattr(tuning, "LOOPED", 1024)
    agree(name)


@pytest.mark.parametrize("name", ["chain", "gathers", "softmax", "sums", "positions", "sizes of rows", "updates of many parameters"])
def test_wide_indices(name):
    agree(name, wide=True)


@pytest.mark.parametrize("name", ["layer norm", "sums", "batch norm in training", "scatters"])
def test_a_kernel_for_each_nest(name):
    agree(name, fusion=False)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", PRODUCTS)
def test_contractions(name, number, wide):
    fn, make = PRODUCTS[name]
    compare(fn, make, program(name, number), wide, 1e-2 if any(t.dtype.itemsize == 2 for t in make()) else 1e-4)
