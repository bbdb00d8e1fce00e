"""The host function of a CUDA device, run without one: what it launches, and with what."""

import ctypes

import pytest
import torch

from framesmith.codegen.device import wrap_device
from framesmith.codegen.triton.emit import print_kernels
from framesmith.codegen.triton.kernel_dedup import shared
from framesmith.loops.ir import ARENA, Allocate, Batch, Extern, Launch, Release
from framesmith.lower.lower import lower
from framesmith.prims.decompose import decompose
from framesmith.runtime.cache import Cache
from framesmith.runtime.toolchain import find
from framesmith.schedule.schedule import schedule
from framesmith.schedule.target import GPU
from tests.fake.harness import record
from tests.schedule.harness import program_of, with_numbers

LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, *[ctypes.c_uint] * 3,
                          ctypes.POINTER(ctypes.c_void_p))
UPLOAD = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
SCRATCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
STEP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
TYPES = {"*": ctypes.c_void_p, "fp32": ctypes.c_float, "fp64": ctypes.c_double, "i32": ctypes.c_int,
         "u32": ctypes.c_uint,
         "i64": ctypes.c_int64}


class Host(ctypes.Structure):
    _fields_ = [("frame", ctypes.c_void_p), *[(n, STEP) for n in ("call", "allocate", "release")], ("launch", LAUNCH),
                ("upload", UPLOAD),
                ("scratch", SCRATCH), ("mark", ctypes.c_void_p)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return Cache(tmp_path_factory.mktemp("cache"))


def launched(cache, program, inputs, sizes=(), wide=None, printed=None, arena=None, others=None):
    """(kernel, grid, arguments) of each launch, and the bytes of each table. `others`: what else is done, behind how
    many launches."""
    printed = printed or print_kernels(program)
    texts = [*printed, *(wide or {}).values()]
    wrapped = wrap_device(program, printed, range(len(inputs)), len(inputs), (), wide=wide)
    library = ctypes.CDLL(str(cache.library(wrapped.units, find())))
    calls, tables, others = [], [], [] if others is None else others

    def launch(frame, kernel, x, y, z, arguments):
        kinds = [TYPES["*" if kind[0] == "*" else kind] for _, kind in texts[kernel].signature]
        given = [ctypes.cast(arguments[k], ctypes.POINTER(kind))[0] for k, kind in enumerate(kinds)]
        calls.append((kernel, x, given))
        return 0

    def upload(frame, slot, data, size):
        tables.append(ctypes.string_at(data, size))
        return 1

    def scratch(frame, place):
        assert wrapped.plan.late
        others.append((len(calls), "scratch", 0))
        place[0] = arena
        return 0

    def noted(name):
        def note(frame, number):
            others.append((len(calls), name, number))
            return 0

        return STEP(note)

    where = {v.ref: k for k, v in enumerate(wrapped.plan.values) if int(v.kind) == 0}
    pointers = (ctypes.c_void_p * len(wrapped.plan.values))()
    for i, x in enumerate(inputs):
        if i in where:
            pointers[where[i]] = x.data_ptr()
    table = (ctypes.c_int64 * max(wrapped.plan.table, 1))(*sizes)
    host = Host(None, noted("call"), noted("allocate"), noted("release"), LAUNCH(launch), UPLOAD(upload),
                SCRATCH(scratch))
    assert library.fs_run(None if wrapped.plan.late else arena, pointers, table, ctypes.byref(host)) == 0
    return calls, tables


NUMBERS = [(torch.float32, 2.5), (torch.float64, 1e-300), (torch.bfloat16, -1.5), (torch.int64, -(2**40)),
           (torch.int32, -7),
           (torch.int16, -300), (torch.int8, -5), (torch.uint8, 250), (torch.bool, True),
           *[(torch.float16, v) for v in (1.5, -0.25, 6e-8, -3e-5, 65504.0, float("inf"), 0.0)]]


@pytest.mark.parametrize("dtype, value", NUMBERS)
def test_numbers_of_the_host_are_read_when_the_kernel_is_launched(cache, dtype, value):
    inputs = [torch.randn(20), torch.tensor(value, dtype=dtype)]
    calls, _ = launched(cache, with_numbers(lambda x, n: torch.where(x > 0, n, n + n), inputs), inputs)
    ((_, _, given),) = calls
    assert [g for g in given if g not in (inputs[0].data_ptr(), None)] == [inputs[1].item()] or inputs[1].item() == 0


@pytest.mark.parametrize("dtype, value", NUMBERS[:4])
def test_a_table_holds_the_bits_of_numbers(cache, dtype, value):
    inputs = [torch.randn(5), torch.randn(5000), *[torch.tensor(value, dtype=dtype)] * 2]
    program = with_numbers(lambda *xs: [x * n for x, n in zip(xs[:2], xs[2:])], inputs)
    assert any(isinstance(step, Batch) for step in program.steps)
    ((_, grid, _),), (rows, where) = launched(cache, program, inputs)
    bits = (inputs[2].float() if dtype.itemsize == 2 else inputs[2]).view(torch.int32 if dtype.itemsize <= 4
                                                                          else torch.int64)
    words = torch.frombuffer(bytearray(rows), dtype=torch.int64).tolist()
    assert words.count(bits.item() % 2**64 if bits.itemsize == 8 else bits.item() % 2**32) >= 2 or dtype is torch.int64
    assert torch.frombuffer(bytearray(where),
                            dtype=torch.int32).view(-1, 2).tolist() == [[0, 0], *[[1, k] for k in range(grid - 1)]]
    assert grid == 1 + -(-5000 // 1024)


def test_sizes_decide_between_indices_of_32_and_of_64_bits(cache):
    program = program_of(lambda x: x.t() * 2, torch.randn(40, 30), target=GPU, dynamic={(0, 0), (0, 1)})
    (narrow,), wide = print_kernels(program), print_kernels(program, wide=True)
    assert narrow.limits and dict(narrow.signature)["s0"] == "i32" and dict(wide[0].signature)["s0"] == "i64"
    for sizes, number in (((40, 30), 0), ((100_000, 30_000), 1)):
        calls, _ = launched(cache, program, [torch.randn(1)], sizes, {0: wide[0]})
        assert [(kernel, sorted(given[-2:])) for kernel, _, given in calls] == [(number, sorted(sizes))]


def small(x):
    y = (x + 1).softmax(-1)
    return (torch.mm(y, x).relu() @ x).sum(0), torch.mm(y, y)


def behind_large(x):
    z = x[0].expand(1024, -1).contiguous().repeat(1, 25)
    return torch.mm(z.t(), z).sum(), small(x)


@pytest.mark.parametrize("fn, tables", [(small, 1), (behind_large, 2)])
def test_steps_of_known_sizes_are_a_table_in_their_order(cache, fn, tables):
    """An arena that comes late is asked for between two."""
    x = torch.randn(40, 40)
    graph = lower(decompose(record(fn, [x])[0]))
    program = schedule(graph, target=GPU, scoped_memory=True, tight=True)
    wrapped = wrap_device(program, print_kernels(program), [0], 1, ())
    assert wrapped.units[0].count("fs_steps(a, p, n, h") == tables and "h->launch(h->frame, 0," not in wrapped.units[0]
    others = []
    calls, _ = launched(cache, program, [x], arena=1 << 20, others=others)
    kinds = {Extern: "call", Allocate: "allocate", Release: "release"}
    want, before = [], 0
    for step in program.steps:
        before += type(step) is Launch
        count = len(step.names) if type(step) in (Allocate, Release) else type(step) is Extern
        kind = "scratch" if type(step) is Allocate and ARENA in step.names else kinds.get(type(step))
        want += [(before, kind)] * count
    assert [(at, name) for at, name, _ in others] == want and [name for _, name in want].count("call") == tables + 2
    launches = [step for step in program.steps if type(step) is Launch]
    assert [kernel for kernel, _, _ in calls] == [program.kernels.index(step.kernel) for step in launches]
    for (_, _, given), step in zip(calls, launches):
        for address, name in zip(given, step.args):
            buffer = program.buffers[name]
            # others have no memory here
            assert address == {"arena": (1 << 20) + buffer.offset, "input": x.data_ptr()}.get(buffer.kind)


def test_a_failing_step_ends_the_run():
    program = program_of(lambda x: torch.mm(x, x) + 1, torch.randn(4, 4), target=GPU)
    wrapped = wrap_device(program, print_kernels(program), [0], 1, ())
    library = ctypes.CDLL(str(Cache(None, False).library(wrapped.units, find())))
    fail = STEP(lambda frame, number: 1)
    host = Host(None, fail, fail, fail, LAUNCH(lambda *_: 1), UPLOAD(lambda *_: 0), SCRATCH(lambda *_: 1))
    assert library.fs_run(None, (ctypes.c_void_p * 8)(), None, ctypes.byref(host)) == 1


def test_a_call_ends_where_there_is_no_memory_for_a_late_arena():
    program = schedule(lower(decompose(record(behind_large, [torch.randn(40, 40)])[0])), target=GPU, scoped_memory=True)
    wrapped = wrap_device(program, print_kernels(program), [0], 1, ())
    library = ctypes.CDLL(str(Cache(None, False).library(wrapped.units, find())))
    done, launches = STEP(lambda frame, number: 0), []
    host = Host(None, done, done, done, LAUNCH(lambda *_: bool(launches.append(0))), UPLOAD(lambda *_: 0),
                SCRATCH(lambda *_: 1))
    assert library.fs_run(None, (ctypes.c_void_p * 16)(), None, ctypes.byref(host)) == 1
    assert len(launches) < sum(type(step) is Launch for step in program.steps)


def test_numbers_of_a_kernel_for_several_sizes_stand_in_the_table(cache):
    inputs = [torch.randn(64, n) for n in (96, 160)]
    program = program_of(lambda *xs: [(x * n).sum(0) for x, n in zip(xs, (2.5, -3.0))], *inputs, target=GPU)
    printed = shared(print_kernels(program))
    assert {kind for k in printed for _,
            kind in k.signature[-len(k.numbers):]} >= {"i32", "fp32"} and printed[0].numbers
    calls, _ = launched(cache, program, inputs, printed=printed)
    for kernel, _, given in calls:
        numbers = printed[kernel].numbers
        assert given[len(given) - len(numbers):] == [n.value for n in numbers]
