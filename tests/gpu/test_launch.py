"""The way of a kernel to the device, with kernels written by hand: launches, memory, streams, tables, memory that lies
askew."""

import threading
from dataclasses import replace

import pytest
import torch

from framesmith.codegen.device import wrap_device
from framesmith.codegen.triton.kernel import PROGRAMS, Printed
from framesmith.fake.recorder import Recorder
from framesmith.loops.ir import ARENA, Allocate, Batch
from framesmith.lower.lower import lower
from framesmith.prims.decompose import decompose
from framesmith.runtime import triton
from framesmith.runtime.cache import Cache
from framesmith.runtime.load import load
from framesmith.runtime.plan import Image
from framesmith.runtime.toolchain import find
from framesmith.schedule.schedule import schedule

pytestmark = pytest.mark.gpu

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
UNARY = HEAD + """def kernel(p0, p1, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p1 + i, {body}, i < {numel})
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return Cache(tmp_path_factory.mktemp("cache"))


def unary(body, numel, kind="*fp32"):
    """One kernel that computes `body` of x for each of `numel` elements."""
    text = UNARY.format(body=body.replace("x", f"tl.load(p0 + i, i < {numel})"), numel=numel)
    return Printed("kernel", text, (("p0", kind), ("p1", kind)), (("BLOCK", 256),), (-(-numel // 256),), 4, 3, (),
                   (0, 1))


def loaded(cache, fn, inputs, printed, change=lambda program: program):
    """`fn` recorded and scheduled as ever, but for what `change` does; its kernels are `printed(kernel)`."""
    rec = Recorder()
    with torch.no_grad(), rec:
        out = fn(*[rec.input(x, f"x{i}") for i, x in enumerate(inputs)])
    program = change(schedule(lower(decompose(rec.finish(list(out) if isinstance(out, tuple) else [out])))))
    kernels = [printed(k) for k in program.kernels]
    arch = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
    sources = [
        triton.TritonSource(k.name, k.text, k.signature, k.constants, k.divisible, k.num_warps, k.num_stages)
        for k in kernels
    ]
    wrapped = wrap_device(program, kernels, range(len(inputs)), len(inputs), ())
    binaries = triton.start(sources, arch, cache).wait()
    images = tuple(Image(b.name, b.image, b.threads, b.shared) for b in binaries)
    plan = replace(wrapped.plan, device=torch.cuda.current_device(), images=images)
    return load(plan, cache.library(wrapped.units, find()), wrapped.constants), program


def test_one_kernel(cache):
    x = torch.randn(1000, device="cuda")
    graph, _ = loaded(cache, lambda x: x * 2 + 1, [x], lambda k: unary("x * 2 + 1", 1000))
    (y,) = graph((x,))
    torch.testing.assert_close(y, x * 2 + 1)
    assert y.device == x.device and y.stride() == (1,)


def test_memory_comes_from_pytorchs_allocator_and_goes_back(cache):
    x = torch.randn(64, 256, device="cuda")
    w = torch.randn(256, 256, device="cuda")
    graph, program = loaded(cache, lambda x, w: (x * 2) @ w, [x, w], lambda k: unary("x * 2", 64 * 256))
    graph((x, w))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    (y,) = graph((x, w))
    assert program.arena_bytes == 64 * 256 * 4
    assert torch.cuda.memory_allocated() - before == 64 * 256 * 4  # the result
    assert torch.cuda.max_memory_allocated() - before >= 2 * 64 * 256 * 4  # and the arena
    torch.testing.assert_close(y, (x * 2) @ w)


def test_an_arena_that_comes_late_is_there_for_kernels_and_operators(cache):
    def late(program):
        return replace(program, steps=(Allocate((ARENA,)), *program.steps))

    x, w = torch.randn(64, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    graph, program = loaded(cache, lambda x, w: (x * 2) @ w, [x, w], lambda k: unary("x * 2", 64 * 256), late)
    for _ in range(3):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        y = graph((x, w))[0].clone()
        assert torch.cuda.max_memory_allocated() - before >= 2 * program.arena_bytes == 2 * 64 * 256 * 4
        torch.testing.assert_close(y, (x * 2) @ w)


def test_the_current_stream_is_used(cache):
    x = torch.randn(1 << 22, device="cuda")
    graph, _ = loaded(cache, lambda x: x * 2 + 1, [x], lambda k: unary("x * 2 + 1", 1 << 22))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        z = x.clone()
        torch.cuda._sleep(10_000_000)
        z.mul_(3)
        (y,) = graph((z,))
        assert not side.query()  # queued behind what runs
    side.synchronize()
    torch.testing.assert_close(y, x * 6 + 1)


def test_memory_askew_is_copied(cache):
    whole = torch.randn(1001, device="cuda")
    x = whole[1:]
    assert x.data_ptr() % 16
    graph, _ = loaded(cache, lambda x: x * 2 + 1, [x], lambda k: unary("x * 2 + 1", 1000))
    torch.testing.assert_close(graph((x,))[0], x * 2 + 1)
    expected = x * 2 + 1
    both = unary("x * 2 + 1", 1000)
    both = replace(both, text=both.text
                   + "    tl.debug_barrier()\n    tl.store(p0 + i, tl.load(p1 + i, i < 1000), i < 1000)\n")
    # the input, and the result's memory of its own
    written, _ = loaded(cache, lambda x: x.mul_(2).add_(1), [x], lambda k: both)
    written((x,))
    torch.testing.assert_close(x, expected)


def test_a_batch_reads_its_tables(cache):
    text = HEAD + """def kernel(table, where, BLOCK: tl.constexpr):
    row = tl.load(where + 2 * tl.program_id(0)).to(tl.int64)
    i = tl.load(where + 2 * tl.program_id(0) + 1) * BLOCK + tl.arange(0, BLOCK)
    p0 = tl.load(table + 3 * row).to(tl.pointer_type(tl.float32))
    p1 = tl.load(table + 3 * row + 1).to(tl.pointer_type(tl.float32))
    n = tl.load(table + 3 * row + 2)
    tl.store(p1 + i, tl.load(p0 + i, i < n) * 2 + 1, i < n)
"""
    def printed(kernel):
        return Printed(
            "kernel", text, (("table", "*i64"), ("where", "*i32")), (("BLOCK", 256),), (PROGRAMS,), 4, 3, (), (0, 1),
            batch=256
        )

    inputs = [torch.randn(n, device="cuda") for n in (1000, 5, 70000)]
    graph, program = loaded(cache, lambda *xs: tuple(x * 2 + 1 for x in xs), inputs, printed)
    assert any(isinstance(step, Batch) for step in program.steps)
    for _ in range(3):
        inputs = [torch.randn_like(x) for x in inputs]
        for got, x in zip(graph(tuple(inputs)), inputs):
            torch.testing.assert_close(got, x * 2 + 1)


def test_a_thread_without_a_context(cache):
    x = torch.randn(1000, device="cuda")
    graph, _ = loaded(cache, lambda x: x * 2 + 1, [x], lambda k: unary("x * 2 + 1", 1000))
    out = []
    thread = threading.Thread(target=lambda: out.append(graph((x,))[0]))
    thread.start()
    thread.join()
    torch.testing.assert_close(out[0], x * 2 + 1)


def test_inside_a_recorded_cuda_graph(cache):
    x = torch.randn(1000, device="cuda")
    graph, _ = loaded(cache, lambda x: x * 2 + 1, [x], lambda k: unary("x * 2 + 1", 1000))
    graph((x,))
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        (y,) = graph((x,))
    del graph
    x.fill_(4)
    recorded.replay()
    torch.testing.assert_close(y, torch.full_like(x, 9))
