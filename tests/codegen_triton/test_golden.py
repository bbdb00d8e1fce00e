"""The text of printed Triton kernels."""

import re

import pytest
import torch
import torch.nn.functional as F

from framesmith.codegen.triton.emit import print_kernel, print_kernels
from framesmith.codegen.triton.product import product_of
from framesmith.codegen.triton.tuning import Config
from framesmith.loops.ir import Reduce
from framesmith.schedule.target import GPU
from framesmith.symbolic.expr import Symbol
from framesmith.util.errors import CompileError
from tests.codegen.kernels import axis, kernel, load, loop, store
from tests.codegen_triton.products import program
from tests.schedule.harness import program_of

HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice


"""


def printed(fn, *inputs):
    return print_kernels(program_of(fn, *inputs, target=GPU))


def body(fn, *inputs):
    """The text of the only kernel, without imports and from its own `@triton.jit` on; its name as `k`."""
    (k,) = printed(fn, *inputs)
    assert k.text.startswith(HEAD)
    return k.text[k.text.rindex("@triton.jit") :].replace(k.name, "k")


def test_softmax_of_a_row_in_a_tile():
    assert (
        body(lambda a: F.softmax(a, -1), torch.randn(300, 50))
        == """\
@triton.jit
def k(p0, p1, RBLOCK: tl.constexpr):
    i0 = tl.program_id(0)
    i1 = tl.arange(0, RBLOCK)
    r_live = i1 < 50
    v0 = tl.load(p0 + (50*i0 + i1), r_live)
    v1 = tl.reduce(tl.where(r_live, v0, float("-inf")), 0, greater_or_nan)
    v2 = v0 - v1
    v3 = libdevice.exp(v2)
    v4 = tl.sum(tl.where(r_live, v3, 0), 0)
    v5 = tl.div_rn(v3, v4)
    tl.store(p1 + (50*i0 + i1), v5, r_live)
"""
    )


def test_a_row_of_halves_that_begins_anywhere_is_moved_in_vectors():
    assert (
        body(lambda a: F.softmax(a, -1), torch.randn(300, 50).bfloat16())
        == """\
@triton.jit
def k(p0, p1, RBLOCK: tl.constexpr):
    i0 = tl.program_id(0)
    lead = ((50*i0) & 7).to(tl.int32)
    origin = tl.multiple_of((50*i0) - lead, 8)
    at = tl.arange(0, RBLOCK)
    i1 = at - lead
    vector = at // 8
    end = lead + 50
    r_live = (at >= lead) & (at < end)
    r_near = vector < (end + 7) // 8
    r_inner = (vector >= (lead + 7) // 8) & (vector < end // 8)
    v0 = tl.load(p0 + (origin + at), r_near).to(tl.float32)
    v1 = tl.reduce(tl.where(r_live, v0, float("-inf")), 0, greater_or_nan)
    v2 = v0 - v1
    v3 = libdevice.fast_expf(v2)
    v4 = tl.sum(tl.where(r_live, v3, 0), 0)
    v5 = v3 / v4
    v6 = v5.to(tl.bfloat16).to(tl.float32)
    tl.store(p1 + (origin + at), v6, r_inner)
    tl.store(p1 + (origin + at), v6, r_live & ~r_inner)
"""
    )


def test_log_softmax_of_a_long_row_takes_two_passes():
    assert (
        body(lambda a: F.log_softmax(a, -1), torch.randn(300, 50_257))
        == """\
@triton.jit
def k(p0, p1, RBLOCK: tl.constexpr):
    i0 = tl.program_id(0)
    lead = (-(50257*i0) & 3).to(tl.int32)
    whole = (50257 - lead) // RBLOCK * RBLOCK
    v0s = tl.full([RBLOCK // 4], float("-inf"), tl.float32)
    v1s = tl.full([RBLOCK // 4], 0, tl.float32)
    for start in range(0, whole, RBLOCK):
        i1 = start + lead + tl.arange(0, RBLOCK)
        v2 = tl.load(p0 + tl.multiple_of((50257*i0 + i1), 4))
        v0s, v1s = more_exponentials(v0s, v1s, tl.reshape(v2, [RBLOCK // 4, 4]))
    for start in range(0, 50257 - whole, RBLOCK):
        at = start + tl.arange(0, RBLOCK)
        r_live = at < 50257 - whole
        i1 = tl.where(at < lead, at, at + whole)
        v2 = tl.load(p0 + (50257*i0 + i1), r_live)
        v0s, v1s = more_exponentials(v0s, v1s, tl.reshape(tl.where(r_live, v2, float("-inf")), [RBLOCK // 4, 4]))
    v0, v1 = tl.reduce((v0s, v1s), 0, exponentials)
    v1 = tl.where(tl.abs(v0) == float("inf"), float("nan"), v1)
    v3 = libdevice.log(v1)
    for start in range(0, whole, RBLOCK):
        i1 = start + lead + tl.arange(0, RBLOCK)
        v4 = tl.load(p0 + tl.multiple_of((50257*i0 + i1), 4))
        v5 = v4 - v0
        v6 = v5 - v3
        tl.store(p1 + tl.multiple_of((50257*i0 + i1), 4), v6)
    for start in range(0, 50257 - whole, RBLOCK):
        at = start + tl.arange(0, RBLOCK)
        r_live = at < 50257 - whole
        i1 = tl.where(at < lead, at, at + whole)
        v4 = tl.load(p0 + (50257*i0 + i1), r_live)
        v5 = v4 - v0
        v6 = v5 - v3
        tl.store(p1 + (50257*i0 + i1), v6, r_live)
"""
    )


def test_a_transposing_kernel_has_two_dimensions():
    assert (
        body(lambda a, b: a.t() + b, torch.randn(100, 70), torch.randn(70, 100))
        == """\
@triton.jit
def k(p0, p1, p2, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    pid = tl.program_id(0)
    across = 3
    i0 = (pid // across) * YBLOCK + tl.arange(0, YBLOCK)[:, None]
    y_live = i0 < 100
    i1 = (pid % across) * XBLOCK + tl.arange(0, XBLOCK)[None, :]
    x_live = i1 < 70
    v0 = tl.load(p0 + (70*i0 + i1), y_live & x_live)
    v1 = tl.load(p1 + (i0 + 100*i1), y_live & x_live)
    v2 = v0 + v1
    tl.store(p2 + (70*i0 + i1), v2, y_live & x_live)
"""
    )


def test_a_gather_checks_its_index():
    (k,) = printed(lambda w, i: F.embedding(i, w), torch.randn(50, 16), torch.zeros(7, dtype=torch.int64))
    assert k.asserts and 'tl.device_assert((v1 >= 0) & (v1 < 50), "index out of range", x_live)' in k.text


def test_equal_kernels_print_equal_text():
    assert len(printed(lambda a: F.softmax(torch.cumsum(F.softmax(a, 1), 0), 1), torch.randn(300, 50))) == 1


def test_what_has_no_tile_program_is_refused():
    for_cpu = program_of(lambda a: F.softmax(a, -1), torch.randn(300, 50)).kernels[0]
    assert for_cpu.locals
    with pytest.raises(CompileError, match="arrays"):
        print_kernel(for_cpu)


def test_indices_have_as_many_bits_as_they_need():
    i, j = axis("i0", 70_000), axis("i1", 50_000)
    v = load("p0", i.symbol * 50_000 + j.symbol)
    total = Reduce("sum", (v,), torch.float32)
    rows = print_kernel(kernel([torch.float32] * 2, [loop(j, v, total, reduce=True), store("p1", i.symbol, total)],
                               (i,)))
    assert "tl.load(p0 + (50000*i0.to(tl.int64) + i1.to(tl.int64))" in rows.text
    flat = axis("i0", 1 << 32)
    w = load("p0", flat.symbol)
    far = print_kernel(kernel([torch.float32] * 2, [loop(flat, w, store("p1", flat.symbol, w))]))
    assert "i0 = tl.program_id(0).to(tl.int64) * XBLOCK" in far.text and not far.limits
    n = Symbol("s0", 2)
    some = axis("i0", n)
    u = load("p0", some.symbol * 3)
    open_ = kernel([torch.float32] * 2, [loop(some, u, store("p1", some.symbol, u))], symbols=(n,))
    assert print_kernel(open_).limits and not print_kernel(open_, wide=True).limits


def test_memory_runs_across_rows_by_what_most_of_it_is():
    """Two numbers a row beside two elements: the gradient of a norm's weight goes through columns side by side."""
    def weight_gradient(g, x, mean, scale):
        return (g * (x - mean) * scale).sum(0)

    half = torch.randn(2000, 96).bfloat16()
    kernels = printed(weight_gradient, half, half, torch.randn(2000, 1), torch.randn(2000, 1))
    assert [dict(k.constants)["XBLOCK"] for k in kernels] == [16, 8]  # few columns: what a sector of memory holds


def test_memory_runs_along_the_last_dimension_whatever_the_order_of_loops():
    """Numbers of a channel that are computed first make channels the outer loop; the image's memory runs along them."""
    images = torch.randn(2, 64, 7, 7).to(memory_format=torch.channels_last)
    text = body(lambda x, c: x * torch.rsqrt(c + 1).view(1, -1, 1, 1), images, torch.rand(64))
    assert "i0 = (pid % across) * XBLOCK" in text and "tl.load(p1 + (i0 + 64*i1))" in text


def test_what_is_the_same_for_many_rows_is_a_dimension_of_its_own():
    assert (
        body(lambda x, c, w: (x - c) * torch.rsqrt(w + 1), torch.randn(30, 20, 256).bfloat16(), torch.randn(256),
             torch.randn(20, 256))
        == """\
@triton.jit
def k(p0, p1, p2, p3, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    pid = tl.program_id(0)
    across = 60
    i0 = (pid // across) * YBLOCK + tl.arange(0, YBLOCK)[:, None]
    x = (pid % across) * XBLOCK + tl.arange(0, XBLOCK)[None, :]
    i1 = x % 256
    i2 = x // 256
    v0 = tl.load(p0 + (256*i0 + i1))
    v1 = v0 + 1.0
    v2 = libdevice.rsqrt(v1)
    v3 = tl.load(p1 + i1)
    v4 = tl.load(p2 + (256*i0 + i1 + 5120*i2)).to(tl.float32)
    v5 = v4 - v3
    v6 = v5 * v2
    tl.store(p3 + (256*i0 + i1 + 5120*i2), v6)
"""
    )


def test_a_condition_has_its_constant_on_the_right():
    """Triton then reads what is behind it in vectors."""
    def turned(x, s):
        a, b = x.chunk(2, -1)
        return x + torch.cat((-b, a), -1) * s

    text = body(turned, torch.randn(100, 64), torch.randn(100, 64))
    assert "i1 >= 32" in text and "i1 < 32" in text


def test_what_ends_in_a_half_is_computed_fast():
    def gelu(a):
        return F.gelu(a, approximate="none")

    assert ("one_and_erf(" in body(gelu, torch.randn(50, 64).bfloat16())
            and "error_function(" in body(gelu, torch.randn(50, 64)))
    text = body(lambda a: F.softmax(a, -1), torch.randn(300, 64).half())
    assert "libdevice.fast_expf(v2)" in text and "v3 / v4" in text
    text = body(lambda a: F.softmax(a, -1).float() * 3, torch.randn(300, 64).half())
    assert "libdevice.fast_expf(v2)" in text  # rounded, and made wider again
    for exact in (lambda a: torch.exp(a.float()), lambda a: (torch.exp(a.float()) - 1).half()):
        assert "libdevice.exp(" in body(exact, torch.randn(50, 64).half())


def test_blocks_go_by_what_sizes_are_now():
    program = program_of(lambda a: F.softmax(a, -1), torch.randn(300, 600), target=GPU, dynamic={(0, 0), (0, 1)})
    (kernel,) = program.kernels
    found = [print_kernel(kernel, sizes=dict.fromkeys(kernel.symbols, n)) for n in (600, 640, 50_000)]
    assert [dict(k.constants)["RBLOCK"] for k in found] == [1024, 1024, 8192]
    assert "if (s1 <= RBLOCK):" in found[0].text and "if (s1 <= RBLOCK) & (s1 % 16 == 0):" in found[1].text
    assert "<= RBLOCK" not in found[2].text and "s1_even = s1 // 16 * 16" in found[1].text


def test_what_is_read_again_is_kept_in_the_cache():
    text = body(lambda a: F.softmax(a, -1), torch.randn(300, 50_257).bfloat16())
    first, last = text.split("tl.reduce(")
    assert first.count('eviction_policy="evict_last"') == last.count(".to(tl.float32)\n        v4 = ") == 2
    assert last.count('eviction_policy="evict_first"') == 4
    assert "evict" not in body(lambda a: a.float().sum(-1), torch.randn(300, 50_257).bfloat16())


def test_elements_of_a_window_are_counted_from_one_pointer():
    def difference(x):
        return x[2:] + x[:-2] - 2 * x[1:-1]

    text = body(difference, torch.randn(102, 64))
    (pointer,) = re.findall(r"(at\d+) = p0 \+", text)
    assert [f"tl.load({pointer}{more})" in text
            for more in ("", " + 64", " + 128")] == [True] * 3 and "tl.load(p0" not in text


@pytest.mark.parametrize("name, block, rounds, products",
                         [("linear", 16, 40, 1), ("mm", 16, 48, 2), ("mm", 64, None, 1)])
def test_what_is_left_of_k_is_a_part_as_others_where_it_ends_with_a_vector(name, block, rounds, products):
    """Of 40 numbers of float32, but not of 50."""
    (kernel,) = [k for k in program(name).kernels if product_of(k) is not None]
    text = print_kernel(kernel, config=Config({"y": 16, "x": 16, "r": block}, 4)).text
    assert text.count("tl.dot(") == products
    assert re.findall(r"for start in range\(0, (\d+), RBLOCK\)", text) == ([] if rounds is None else [str(rounds)])
