"""Every kernel of the graphs compiles to PTX for three generations of chips, without one of them."""

import re

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed")

from framesmith.codegen.triton.emit import print_kernel, print_kernels  # noqa: E402
from framesmith.codegen.triton.kernel_dedup import shared  # noqa: E402
from framesmith.codegen.triton.tuning import Config  # noqa: E402
from framesmith.lower.limits import LIMITS  # noqa: E402
from framesmith.prims.rules import activations  # noqa: E402
from framesmith.runtime import triton_worker  # noqa: E402
from framesmith.schedule.target import GPU  # noqa: E402
from tests.codegen_triton.graphs import DYNAMIC, GRAPHS  # noqa: E402
from tests.codegen_triton.machine import short_ptx, to_ptx  # noqa: E402
from tests.codegen_triton.products import PRODUCTS, program  # noqa: E402
from tests.gpu.fakes import recorded, scheduled  # noqa: E402
from tests.schedule.harness import program_of  # noqa: E402
from tests.schedule.rows import layer_norm  # noqa: E402

CHIPS = (80, 90, 100)
seen: set[str] = set()


@pytest.mark.parametrize("name", GRAPHS)
def test_compiles(name, monkeypatch):
    """And what is left out of Triton's way where it finds nothing leaves the code as it is."""
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    fn, make = GRAPHS[name]
    for k in print_kernels(program_of(fn, *make(), target=GPU, dynamic=DYNAMIC[name])):
        if k.text in seen:
            continue
        seen.add(k.text)
        for chip in CHIPS:
            ptx = to_ptx(k, chip)
            assert f".target sm_{chip}" in ptx and k.name in ptx
            assert short_ptx(k, chip, monkeypatch) == ptx


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", PRODUCTS)
def test_contractions_compile(name, number, tf32):
    for k in print_kernels(program(name, number, tf32)):
        if k.text not in seen:
            seen.add(k.text)
            for chip in CHIPS:
                assert k.name in to_ptx(k, chip)


@pytest.mark.parametrize("programs", [0, 132])
def test_matrix_instructions(programs):
    """A tile of halves is multiplied by matrix units, its loads ahead of them, and memory is read in whole vectors."""
    (kernel,) = program("whole halves").kernels
    k = print_kernel(kernel, config=Config({"y": 128, "x": 64, "r": 64}, 4, stages=3, programs=programs))
    ampere, hopper = (to_ptx(k, chip) for chip in (80, 90))
    assert "mma.sync" in ampere and "cp.async" in ampere
    assert "wgmma.mma_async" in hopper and "cp.async.cg.shared.global [" in hopper


@pytest.mark.parametrize("length", [1001, 5003])
def test_rows_that_begin_anywhere_are_moved_in_vectors(length):
    """Elements are moved one by one only where a vector is not the row's alone."""
    (k,) = print_kernels(program_of(lambda a: torch.softmax(a, -1), torch.empty(9000, length, dtype=torch.bfloat16),
                                    target=GPU))
    moved = re.findall(r"(ld|st)\.global(?:\.L\S+?)?\.((?:v\d\.)?b\d+) ", to_ptx(k, 90))
    assert {width for kind, width in moved if kind == "ld"} == {"v4.b32"}
    assert {width for kind, width in moved if kind == "st"} == {"v4.b32", "b16"}


def test_scans_compile(monkeypatch):
    monkeypatch.setitem(LIMITS, "cpu", LIMITS["cuda"])
    for length in (300, 20000):
        program_ = program_of(lambda a: (a.cumsum(1), a.double().cumprod(1), a.cumsum(0)), torch.empty(300, length),
                              target=GPU)
        for k in print_kernels(program_):
            assert ".target sm_90" in to_ptx(k, 90)


def test_results_side_by_side_share_what_they_read():
    """A thread has seven results of four channels each: 55 vectors of the image instead of 175, and as many
    multiply-adds."""
    x, w = torch.randn(64, 96, 28, 28).bfloat16().to(memory_format=torch.channels_last), torch.randn(
        96, 1, 5, 5).bfloat16()
    graph, _ = recorded(lambda x, w: F.conv2d(x, w, None, 1, 2, 1, 96).relu(), x, w)
    ptx = to_ptx(print_kernels(scheduled(graph))[-1], 90)
    assert ptx.count("ld.global.v2.b32") == 5 * 11 + 25 and ptx.count("fma.rn.f32") >= 7 * 4 * 24


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(16384, 768), (9999, 200), (8192, 4096)])
def test_rows_are_summed_up_with_loads_ahead(shape, dtype):
    """Both tensors of rows are on their way while others are worked on, in whole vectors; only sums and results are
    written."""
    graph, _ = recorded(layer_norm, *_norm(shape, dtype))
    k, combined = print_kernels(scheduled(graph))
    for chip in CHIPS:
        ptx = to_ptx(k, chip)
        assert "cp.async.cg.shared.global" in ptx and "st.global.v4.b32" in ptx and ".local" not in ptx
        assert combined.name in to_ptx(combined, chip)


def test_moments_of_long_columns_are_taken_with_loads_ahead():
    x = torch.empty(64, 256, 56, 56, dtype=torch.bfloat16, memory_format=torch.channels_last)
    first, combined = print_kernels(program_of(lambda x: torch.var_mean(x.float(), (0, 2, 3), correction=0), x,
                                               target=GPU))
    assert "cp.async.cg.shared.global" in to_ptx(first, 90) and "cp.async" not in to_ptx(combined, 90)


def _norm(shape, dtype):
    like = [(shape, dtype)] * 2 + [((shape[0], 1), torch.float32)] * 2 + [(shape[1:], dtype)]
    return [torch.empty(s, dtype=kind, device="meta") for s, kind in like]


def test_four_places_share_a_draw(monkeypatch):
    """One block of rounds for four elements where eager's threads take four, which they do not of an odd number of
    elements."""
    monkeypatch.setattr(activations, "DRAWING", frozenset(("cpu",)))
    counts = []
    for fn, size in ((lambda x: x, 640), (torch.t, 640), (lambda x: x, 641)):
        x = torch.empty(size, size)
        (k,) = print_kernels(program_of(lambda x, fn=fn: torch.native_dropout(fn(x), 0.3, True)[0] + x, x, target=GPU))
        threads = dict(k.constants).get("YBLOCK", 1) * dict(k.constants)["XBLOCK"] / 32 / k.num_warps
        counts.append(to_ptx(k, 90).count("mul.hi.u32") / threads)
    assert max(counts[:2]) < 6 and counts[2] > 18


def test_channels_that_are_given_are_moved_in_vectors():
    """Though what indices are divided by is not known."""
    inputs = [torch.empty(4, c, 40, 40, dtype=torch.bfloat16).to(memory_format=torch.channels_last) for c in (48, 80)]
    printed = print_kernels(program_of(lambda *xs: [F.batch_norm(x, None, None, training=True) for x in xs], *inputs,
                                       target=GPU))
    moved = []
    for alone, one in zip(printed, shared(printed), strict=True):
        before, after = (sorted(re.findall(r"(?:ld|st)\.global[\w.]*", to_ptx(k, 90))) for k in (alone, one))
        assert before == after
        moved += after if any(name.endswith("_m") for name, _ in one.signature) else []
    assert any(".v4" in access for access in moved)


def test_rows_of_a_table_are_moved_in_vectors():
    (k,) = print_kernels(program_of(lambda a, b: (a.bfloat16(), b.bfloat16()), torch.empty(5000), torch.empty(4096),
                                    target=GPU))
    ptx = to_ptx(k, 90)
    assert "ld.global.v4" in ptx and "st.global.v4" in ptx


def test_vectors_get_the_layout_that_triton_finds():
    x, w = torch.randn(8, 96, 14, 14).bfloat16().to(memory_format=torch.channels_last), torch.randn(
        96, 1, 3, 3).bfloat16()
    graph, _ = recorded(lambda x, w, b: F.conv2d(x, w, None, 1, 1, 1, 96) * b.view(-1, 1, 1), x, w, torch.randn(96))
    k = print_kernels(scheduled(graph))[-1]
    assert k.vector == 4
    plain = to_ptx(k, 90)
    with triton_worker._vectors(k.vector):
        assert to_ptx(k, 90) == plain
