"""Golden text of kernels, and the memory plan."""

import re
from dataclasses import replace
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from framesmith.loops.ir import ARENA, Allocate, Release
from framesmith.loops.text import kernel_text
from framesmith.loops.verify import verify
from framesmith.lower.lower import lower
from framesmith.prims.decompose import decompose
from framesmith.schedule.memory import MemoryPlan
from framesmith.schedule.schedule import schedule
from framesmith.schedule.target import GPU
from framesmith.util.errors import VerifyError
from tests.fake.harness import record
from tests.schedule.harness import program_of

SOFTMAX = """kernel(p0: float32 r, p1: float32 w)
  local t0: float32[32]
  par i0 < 24:
    red i1 < 32 vec:
      v0 = load p0[(32*i0 + i1)]
      v1 = reduce max v0
    red i2 < 32 vec:
      v2 = load p0[(32*i0 + i2)]
      v3 = sub v2 v1
      v4 = exp v3
      store t0[i2] = v4
      v5 = reduce sum v4
    for i3 < 32 vec:
      v6 = load t0[i3]
      v7 = div v6 v5
      store p1[(32*i0 + i3)] = v7
"""

ROTATE = """kernel(p0: float32 r, p1: float32 w)
  par i0 < 6:
    for i1 < 8 vec:
      v0 = load p0[(16*i0 + i1 + 8)]
      v1 = neg v0
      v2 = load p0[(16*i0 + i1)]
      v3 = add v1 v2
      store p1[(16*i0 + i1)] = v3
    for i2 < 8 vec:
      v4 = load p0[(16*i0 + i2)]
      v5 = load p0[(16*i0 + i2 + 8)]
      v6 = add v4 v5
      store p1[(16*i0 + i2 + 8)] = v6
"""

POOL = """kernel(p0: float32 r, p1: float32 w)
  par i0 < 2:
    for i1 < 32 vec:
      red i2 < 49:
        v0 = load p0[(1568*i0 + i1 + 32*i2)]
        v1 = relu v0
        v2 = reduce sum v1
      v3 = const 49.0 float32
      v4 = div v2 v3
      store p1[(32*i0 + i1)] = v4
"""


def only(program):
    (kernel,) = program.kernels
    return kernel_text(kernel)


def test_softmax():
    assert only(program_of(lambda a: F.softmax(a, -1), torch.randn(2, 12, 32))) == SOFTMAX


def test_rotate_half():
    def rotate(a):
        first, second = a.chunk(2, -1)
        return torch.cat((-second, first), -1) + a

    assert only(program_of(rotate, torch.randn(2, 3, 16))) == ROTATE


def test_average_pool_in_channels_last():
    a = torch.randn(2, 32, 7, 7).to(memory_format=torch.channels_last)
    assert only(program_of(lambda a: F.relu(a).mean((2, 3)), a)) == POOL


def test_equal_layers_share_kernels():
    def f(a, w):
        for _ in range(4):
            a = F.linear(F.gelu(a), w)
        return a

    program = program_of(f, torch.randn(4, 8), torch.randn(8, 8))
    assert len(program.kernels) == 1


def test_plan_reuses_what_is_free():
    plan = MemoryPlan()
    plan.take("a", 128)
    plan.take("b", 64)
    plan.give("a")
    plan.take("c", 64)
    plan.take("d", 64)
    assert (plan.offset["c"], plan.offset["d"], plan.size) == (0, 64, 192)
    plan.give("b")
    plan.take("e", 256)
    assert plan.offset["e"] == 128 and plan.size == 384


def test_a_plan_with_gaps_is_packed_anew():
    """b does not fit before a dies, and c, for which there was room then, not behind b."""
    plan, lives = MemoryPlan(), {"a": (0, 1), "b": (1, 3), "c": (2, 4)}
    for name, nbytes in (("a", 64), ("b", 256), ("c", 256)):
        plan.take(name, nbytes)
        if name == "b":
            plan.give("a")
    assert plan.size == 576
    plan.pack(lives)
    assert plan.size == 512 and sorted((plan.offset["b"], plan.offset["c"])) == [0, 256] and plan.offset["a"] == 256


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=14))
def test_what_lives_at_a_time_has_places_of_its_own(rows):
    plan, lives = MemoryPlan(), {f"b{k}": (first, first + more) for k, (_, first, more) in enumerate(rows)}
    sizes = {f"b{k}": 64 * size for k, (size, _, _) in enumerate(rows)}
    for step in range(20):
        for name in [n for n, (first, _) in lives.items() if first == step]:
            plan.take(name, sizes[name])
        for name in [n for n, (_, last) in lives.items() if last == step]:
            plan.give(name)
    before = plan.size
    plan.pack(lives)
    assert plan.size <= before
    for (a, (first, last)), (b, (other, end)) in combinations(lives.items(), 2):
        apart = plan.offset[a] + sizes[a] <= plan.offset[b] or plan.offset[b] + sizes[b] <= plan.offset[a]
        assert apart or last < other or end < first
    assert all(plan.offset[n] + sizes[n] <= plan.size for n in lives)


def test_no_axis_is_named_as_a_type_of_generated_code():
    def many(x):
        y = x
        for _ in range(24):
            y = x * y.sum((0, 2, 4), keepdim=True)
        return y

    axes = set(re.findall(r"\bi\d+\b", str(program_of(many, torch.randn(3, 4, 5, 6, 2)))))
    assert "i65" in axes and not axes & {"i8", "i16", "i64"}


def test_smaller_memory_is_scoped_where_less_lives_then():
    def few(x):
        return torch.mm(torch.cat([torch.mm(t, t) for t in x]), x[0]).sum(0)

    def before(x, y):
        return few(x), torch.mm(torch.mm(y, y), y)

    def after(x, y):
        return torch.mm(torch.mm(y, y), y), few(x)

    def beside(x, y):
        first = few(x)
        return torch.mm(torch.mm(y, y), y), few(x + first)

    def across(x, y):
        first = torch.mm(x[1], x[2])
        return torch.mm(torch.mm(y, y), y), few(x + first)

    def plans(fn, *inputs):
        graph = lower(decompose(record(fn, list(inputs))[0]))
        programs = [schedule(graph, target=GPU, scoped_memory=True, tight=tight) for tight in (False, True)]
        for program in programs:
            verify(program)
        moved = [{type(s) for s in program.steps if type(s) in (Allocate, Release) and ARENA in s.names}
                 for program in programs]
        return *[program.arena_bytes for program in programs], moved

    x, y = torch.empty(6, 160, 160), torch.empty(1024, 1024)
    loose, tight, moved = plans(beside, torch.empty(8, 160, 160), y)
    assert loose > 10 * 160 * 160 * 4 and tight < 160 * 160 * 4 and moved == [set(), set()]  # beside a large scratch
    loose, tight, moved = plans(before, x, y)
    assert loose == tight and moved == [{Release}] * 2  # nothing is beside it that was given back
    loose, tight, moved = plans(after, x, y)
    assert loose == tight and moved == [{Allocate}] * 2  # nor that is to come
    loose, tight, moved = plans(across, torch.empty(12, 160, 160), torch.empty(2048, 2048))
    assert loose == tight and moved == [{Allocate}] * 2  # but for one of its values
    loose, tight, moved = plans(few, x)
    assert loose == tight and moved == [set(), set()]


def test_a_small_arena_comes_behind_the_height_of_all_else():
    """What a backward is given up dies on the way: in the forward, the height is at the end."""

    def fn(kept, x):
        z, y = torch.mm(kept.cos(), kept[:, :16]), torch.mm(x.t(), x)
        return z, torch.mm(y.softmax(-1), x.t()), torch.mm(x, y.softmax(0))

    came = {}
    for given_up in (False, True):
        graph, _ = record(fn, [torch.empty(1024, 1024), torch.empty(40000, 16)])
        next(iter(graph.nodes)).meta["given up"] = given_up
        program = schedule(lower(decompose(graph)), target=GPU, scoped_memory=True)
        verify(program)
        came[given_up] = [k for k, s in enumerate(program.steps) if type(s) is Allocate and ARENA in s.names]
        assert 0 < program.arena_bytes < 64 << 10
    assert came[True] and not came[False]
    early = replace(program, steps=tuple(s for k, s in enumerate(program.steps) if k not in came[True]))
    verify(early)
    with pytest.raises(VerifyError, match="without memory"):
        verify(replace(program, steps=(*early.steps, program.steps[came[True][0]])))


def test_a_small_arena_is_given_back_before_a_large_result_where_that_costs_nothing():
    def reads_it(x, w):
        return torch.mm(torch.mm(x, x).softmax(-1), w)

    def does_not(x, w):
        return reads_it(x, w).relu() + 1

    for fn in (reads_it, does_not):
        graph = lower(decompose(record(fn, [torch.empty(64, 64), torch.empty(64, 100_000)])[0]))
        program = schedule(graph, target=GPU, scoped_memory=True)
        verify(program)
        left = [k for k, s in enumerate(program.steps) if type(s) is Release and ARENA in s.names]
        assert 0 < program.arena_bytes < 64 << 10 and bool(left) is (fn is does_not)
    after = program.steps[left[0] + 1]
    assert type(after) is Allocate and after.names == (program.outputs[0].name,)
