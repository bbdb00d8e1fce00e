"""`_C.CompiledGraph` over hand-written C++: inputs, outputs, arena, externs, constants, dynamic sizes, threads,
errors."""

import gc
import resource
import threading
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from framesmith import _C
from framesmith.runtime.cache import Cache
from framesmith.runtime.load import load
from framesmith.runtime.plan import Call, Dyn, Kind, Output, Plan, PlanValue, Symbol, TensorArg, copied_to
from framesmith.runtime.toolchain import find

F32 = torch.float32
PRELUDE = """
struct Host { void* frame; int (*call)(void*, int); int (*allocate)(void*, int); void (*release)(void*, int); };
extern "C" __attribute__((visibility("default")))
"""
RUN = "int fs_run(char* a, void** p, const long* n, const Host* h)"


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return Cache(tmp_path_factory.mktemp("cache"))


def make(cache, plan, body, sizes="", **kwargs):
    text = PRELUDE + RUN + "{" + body + " return 0; }"
    if sizes:
        text += PRELUDE.split("\n")[2] + " void fs_run_sizes(long* n) {" + sizes + "}"
    return load(plan, cache.library([text], find()), **kwargs)


def tensor(kind, ref=0, size=(4,), stride=(1,), **kwargs):
    return PlanValue(kind, ref, size, stride, F32, **kwargs)


def double(source, target, count="4"):
    return f"for (long i = 0; i < {count}; i++) ((float*)p[{target}])[i] = 2 * ((const float*)p[{source}])[i];"


INOUT = (tensor(Kind.INPUT), tensor(Kind.OUTPUT))


def test_one_kernel(cache):
    graph = make(cache, Plan(1, INOUT, (Output(1), Output(0), Output(constant=None), Output(constant=7))), double(0, 1))
    x = torch.arange(4.0)
    out, same, none, seven = graph((x,))
    assert torch.equal(out, 2 * x) and same is x and none is None and seven == 7
    assert not out.requires_grad and out._version == 0
    first = out.data_ptr()
    assert graph((x,))[0].data_ptr() != first  # outputs stay the caller's


def test_wrong_calls_are_typed(cache):
    graph = make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1), checked=True)
    for wrong in ((), torch.ones(4), (3,), (torch.ones(4), torch.ones(4))):
        with pytest.raises(TypeError):
            graph(wrong)
    for wrong in (torch.ones(5), torch.ones(4, dtype=torch.float64), torch.ones(8)[::2]):
        with pytest.raises(ValueError, match="compiled for"):
            graph((wrong,))


def test_a_view_input_starts_at_its_own_first_element(cache):
    graph = make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1), checked=True)
    assert torch.equal(graph((torch.arange(10.0)[3:7],))[0], 2 * torch.arange(3.0, 7.0))


MATS = (PlanValue(Kind.INPUT, 0, (4, 8), (8, 1), F32), PlanValue(Kind.INPUT, 1, (8, 4), (4, 1), F32))


def test_extern_into_the_arena_by_its_out_variant(cache):
    values = (*MATS, PlanValue(Kind.ARENA, 64, (4, 4), (4, 1), F32), PlanValue(Kind.OUTPUT, 0, (4, 4), (4, 1), F32))
    mm = Call("aten::mm", "out", (TensorArg(0), TensorArg(1)), {"out": TensorArg(2)})
    graph = make(cache, Plan(2, values, (Output(3),), (mm,), arena=256),
                 "if (h->call(h->frame, 0)) return 1;" + double(2, 3, "16"))
    a, b = torch.randn(4, 8), torch.randn(8, 4, requires_grad=True)
    for _ in range(3):
        torch.testing.assert_close(graph((a, b))[0], 2 * (a @ b).detach())


def test_extern_result_with_unexpected_strides_is_laid_out_as_planned(cache):
    values = (PlanValue(Kind.INPUT, 0, (2, 3), (3, 1), F32), PlanValue(Kind.RESULT, 0, (3, 2), (2, 1), F32),
              PlanValue(Kind.OUTPUT, 0, (6,), (1,), F32))
    call = Call("aten::t", "", (TensorArg(0),), {}, results=(1,))
    graph = make(cache, Plan(1, values, (Output(2), Output(1)), (call,)),
                 "if (h->call(h->frame, 0)) return 1;" + double(1, 2, "6"))
    x = torch.randn(2, 3)
    flat, t = graph((x,))
    assert torch.equal(flat, 2 * x.t().reshape(6)) and torch.equal(t, x.t())
    assert t.stride() == (2, 1) and t.data_ptr() != x.data_ptr()


def test_a_result_in_the_memory_of_an_argument_is_copied_though_no_schema_tells(cache):
    values = (PlanValue(Kind.INPUT, 0, (4,), (1,), F32), PlanValue(Kind.RESULT, 0, (4,), (1,), F32))
    call = Call("aten::_unsafe_view", "", (TensorArg(0), (4,)), {}, results=(1,))
    graph = make(cache, Plan(1, values, (Output(1),), (call,)), "if (h->call(h->frame, 0)) return 1;")
    x = torch.randn(4)
    y, = graph((x,))
    assert torch.equal(x, y) and x.data_ptr() != y.data_ptr()


def test_views_lists_dtypes_and_defaults(cache):
    values = (
        PlanValue(Kind.INPUT, 0, (4, 8), (8, 1), F32),
        PlanValue(Kind.VIEW, 0, (4, 2), (8, 1), F32, offset=6),
        PlanValue(Kind.RESULT, 0, (4, 10), (10, 1), F32),
        PlanValue(Kind.RESULT, 0, (4,), (1,), torch.float64),
        PlanValue(Kind.VIEW, 2, (10, 4), (1, 10), F32),
    )
    cat = Call("aten::cat", "", ((TensorArg(0), TensorArg(1)), 1), {}, results=(2,))
    total = Call("aten::sum", "dim_IntList", (TensorArg(2), (1,)), {"dtype": torch.float64}, results=(3,))
    plan = Plan(1, values, (Output(4), Output(3)), (cat, total))
    graph = make(cache, plan, "if (h->call(h->frame, 0) || h->call(h->frame, 1)) return 1;")
    x = torch.randn(4, 8)
    expected = torch.cat([x, x[:, 6:]], 1)
    view, sums = graph((x,))
    assert torch.equal(view, expected.t()) and torch.equal(sums, expected.sum(1, dtype=torch.float64))


def test_copies_for_operators_without_out(cache):
    values = (*MATS, PlanValue(Kind.OUTPUT, 0, (4, 4), (1, 4), F32))
    call = Call("aten::mm", "", (TensorArg(0), TensorArg(1)), {}, results=(copied_to(2),))
    graph = make(cache, Plan(2, values, (Output(2),), (call,)), "if (h->call(h->frame, 0)) return 1;")
    a, b = torch.randn(4, 8), torch.randn(8, 4)
    assert torch.equal(graph((a, b))[0], a @ b)


def test_optional_tensor_lists_and_python_calls(cache):
    def twice(x, scale):
        return x * scale

    short = tensor(Kind.RESULT, size=(2,))
    values = (tensor(Kind.INPUT), PlanValue(Kind.INPUT, 1, (2,), (1,), torch.int64), short, short)
    index = Call("aten::index", "Tensor", (TensorArg(0), (TensorArg(1),)), {}, results=(2,))
    python = Call(twice, None, (TensorArg(2),), {"scale": 3.0}, results=(3,))
    body = "if (h->call(h->frame, 0) || h->call(h->frame, 1)) return 1; h->release(h->frame, 2);"
    for release in (False, True):
        graph = make(cache, Plan(2, values, (Output(3),), (index, python), release=release), body)
        assert torch.equal(graph((torch.arange(4.0), torch.tensor([3, 1])))[0], torch.tensor([9.0, 3.0]))


def test_errors_of_operators_are_eagers(cache):
    values = (*MATS, PlanValue(Kind.RESULT, 0, (4, 4), (4, 1), F32))
    call = Call("aten::mm", "", (TensorArg(1), TensorArg(1)), {}, results=(2,))
    graph = make(cache, Plan(2, values, (Output(2),), (call,)), "if (h->call(h->frame, 0)) return 1;")
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        graph((torch.ones(4, 8), torch.ones(8, 4)))
    with pytest.raises(IndexError, match="index out of range"):
        make(cache, Plan(1, INOUT, (Output(1),)), "return 2;")((torch.ones(4),))
    with pytest.raises(NotImplementedError, match="no operator aten::nothing"):
        make(cache, Plan(2, values, (), (Call("aten::nothing", "", (), {}),)), "")


def test_written_inputs_rise_in_version(cache):
    plan = Plan(1, (tensor(Kind.INPUT, written=True),), (Output(0),), bumped=(0,))
    graph = make(cache, plan, double(0, 0))
    x = torch.ones(4)
    assert graph((x,))[0] is x and torch.equal(x, torch.full((4,), 2.0)) and x._version == 1


def test_dynamic_sizes(cache):
    n = Dyn(0)
    result = PlanValue(Kind.RESULT, 0, (n,), (1,), F32)
    values = (PlanValue(Kind.INPUT, 0, (n,), (1,), F32), PlanValue(Kind.OUTPUT, 0, (Dyn(1), 2), (2, 1), F32), result)
    full = Call("aten::full", "", ((n,), 1.5), {"dtype": F32}, results=(2,))
    plan = Plan(1, values, (Output(1), Output(2), Output(constant=Dyn(1))), (full,), symbols=(Symbol(0, 0),), table=2)
    graph = make(cache, plan, "if (h->call(h->frame, 0)) return 1;" + double(0, 1, "n[0]"), sizes="n[1] = n[0] / 2;",
                 checked=True)
    for size in (4, 10, 10, 2, 0):
        x = torch.randn(size)
        out, ones, half = graph((x,))
        assert torch.equal(out, 2 * x.view(-1, 2)) and torch.equal(ones, torch.full((size,), 1.5)) and half == size // 2


def frozen(cache, **kwargs):
    """y = 2 * c where c = 10 * w is kept."""
    values = (tensor(Kind.CONSTANT), tensor(Kind.OUTPUT))
    plan = Plan(1, values, (Output(1),), watched=(0,), constants=1)
    return make(cache, plan, double(0, 1), refresh=lambda inputs: [inputs[0].detach() * 10], **kwargs)


@pytest.mark.parametrize("change", [
    lambda w: w.mul_(2),
    lambda w: w.data.mul_(2),
    lambda w: setattr(w, "data", torch.full((4,), 5.0)),
    lambda w: w[3].fill_(9),
    lambda w: w.untyped_storage().copy_(torch.full((4,), 3.0).untyped_storage()),
])  # fmt: skip
def test_a_written_weight_is_seen(cache, change):
    graph, w = frozen(cache), torch.nn.Parameter(torch.arange(1.0, 5.0))
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(graph((w,))[0], w * 20)
        assert graph.refreshes == 1
        change(w)
        for _ in range(2):
            assert torch.equal(graph((w,))[0], w * 20)
        assert graph.refreshes == 2
        other = torch.nn.Parameter(w + 1)
        assert torch.equal(graph((other,))[0], other * 20)


def test_constants_are_not_kept_alive_by_watching(cache):
    graph, w = frozen(cache), torch.ones(4)
    graph((w,))
    seen = weakref.ref(w)
    del w
    gc.collect()
    assert seen() is None
    assert torch.equal(graph((torch.full((4,), 3.0),))[0], torch.full((4,), 60.0))


def test_opaque_constants(cache):
    w = torch.randn(16, 8)
    packed = torch.ops.mkldnn._reorder_linear_weight(w, 4)
    values = (MATS[0], PlanValue(Kind.CONSTANT, 0, (16, 8), (8, 1), F32),
              PlanValue(Kind.RESULT, 0, (4, 16), (16, 1), F32))
    call = Call("mkldnn::_linear_pointwise", "", (TensorArg(0), TensorArg(1), None, "none", (), ""), {}, results=(2,))
    graph = make(cache, Plan(1, values, (Output(2),), (call,), constants=1), "if (h->call(h->frame, 0)) return 1;",
                 constants=[packed])
    x = torch.randn(4, 8)
    torch.testing.assert_close(graph((x,))[0], x @ w.t())
    assert graph.constants == [(0, packed.numel() * 4)]


def test_threads_share_a_graph(cache):
    values = (*MATS, PlanValue(Kind.ARENA, 0, (4, 4), (4, 1), F32), PlanValue(Kind.OUTPUT, 0, (4, 4), (4, 1), F32))
    mm = Call("aten::mm", "out", (TensorArg(0), TensorArg(1)), {"out": TensorArg(2)})
    body = "if (h->call(h->frame, 0)) return 1;" + double(2, 3, "16")
    graph = make(cache, Plan(2, values, (Output(3),), (mm,), arena=128, release=True), body)
    wrong = []

    def work(seed):
        a, b = torch.full((4, 8), float(seed)), torch.ones(8, 4)
        expected = 2 * (a @ b)
        for _ in range(300):
            if not torch.equal(graph((a, b))[0], expected):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and graph.calls == 1200


def test_reentrant(cache):
    holder = []

    def nested(x):
        return holder[0]((x - 1,))[0] if x[0] > 0 else x.clone()

    python = Call(nested, None, (TensorArg(1),), {}, results=(2,))
    values = (tensor(Kind.INPUT), tensor(Kind.ARENA), tensor(Kind.RESULT), tensor(Kind.OUTPUT))
    copy = "for (int i = 0; i < 4; i++) ((float*)p[1])[i] = ((float*)p[0])[i];"
    add = "for (int i = 0; i < 4; i++) ((float*)p[3])[i] = ((float*)p[1])[i] + ((float*)p[2])[i];"
    plan = Plan(1, values, (Output(3),), (python,), arena=64)
    holder.append(make(cache, plan, copy + "if (h->call(h->frame, 0)) return 1;" + add))
    assert torch.equal(holder[0]((torch.full((4,), 3.0),))[0], torch.full((4,), 6.0))


def test_big_outputs_reuse_freed_blocks(cache):
    size = 1 << 20
    values = (tensor(Kind.INPUT, size=(size,)), tensor(Kind.OUTPUT, size=(size,)))
    graph = make(cache, Plan(1, values, (Output(1),)), double(0, 1, str(size)))
    x = torch.ones(size)
    first = graph((x,))[0]
    address = first.data_ptr()
    assert address % 64 == 0
    second = graph((x,))[0]
    assert second.data_ptr() != address
    del first
    assert graph((x,))[0].data_ptr() == address
    second.resize_(2 * size)
    assert torch.equal(second[:size], 2 * x)


def test_scratch_lives_from_its_first_write_to_its_last_use(cache):
    """The second large value has the memory of the first, which is no longer read."""
    count = 1 << 20
    values = (tensor(Kind.INPUT, 0, (count,)), *[tensor(Kind.OUTPUT, 0, (count,), late=True) for _ in range(3)])
    places = []
    look = [Call(lambda one: places.append(one.data_ptr()), None, (TensorArg(k),), {}) for k in (1, 3)]
    allocate, call = "if (h->allocate(h->frame, {})) return 1; ", "if (h->call(h->frame, {})) return 1; "
    first = allocate.format(1) + double(0, 1, str(count)) + call.format(0)
    second = allocate.format(2) + double(1, 2, str(count)) + "h->release(h->frame, 1);"
    third = allocate.format(3) + double(2, 3, str(count)) + call.format(1)
    graph = make(cache, Plan(1, values, (Output(3),), tuple(look)), first + second + third)
    _C.trim_memory()
    x = torch.randn(count)
    assert torch.equal(graph((x,))[0], 8 * x)
    assert places[0] == places[1]


def test_freed_memory_is_cut_and_merged(cache):
    def outputs(*sizes):
        values = (tensor(Kind.INPUT), *[tensor(Kind.OUTPUT, 0, (n,)) for n in sizes])
        return make(cache, Plan(1, values, tuple([Output(k + 1) for k in range(len(sizes))])), "")((torch.ones(4),))

    _C.trim_memory()
    whole = outputs(1 << 20)[0]
    low, high = whole.data_ptr(), whole.data_ptr() + (4 << 20)
    del whole
    halves = outputs(1 << 18, 1 << 18)
    assert all(low <= t.data_ptr() < high for t in halves)
    del halves
    assert outputs(1 << 20)[0].data_ptr() == low
    assert _C.trim_memory() >= 4 << 20 and _C.idle_memory() == 0


def test_no_more_is_held_than_ever_lived_at_once(cache):
    """Sizes that fit into no gap: pages that are idle elsewhere go back before new ones come."""
    def output(pages):
        return make(cache, Plan(1, (tensor(Kind.INPUT), tensor(Kind.OUTPUT, 0, (pages << 10,))), (Output(1),)),
                    "")((torch.ones(4),))[0]

    _C.trim_memory()
    apart = [output(256 + k) for k in range(8)]
    peak = sum(t.untyped_storage().nbytes() for t in apart)
    del apart[::2]
    idle = _C.idle_memory()
    held = peak - sum(t.untyped_storage().nbytes() for t in apart)
    assert 0 < idle <= held
    more = [output(300), output(300)]
    assert _C.idle_memory() <= max(0, held - sum(t.untyped_storage().nbytes() for t in more))
    del more, apart
    assert peak * 7 // 8 <= _C.trim_memory() <= peak and _C.idle_memory() == 0


def test_pages_that_stay_are_those_that_the_next_blocks_take(cache):
    """A step of training: some values come and go, gradients stay until the next one."""
    def output(pages):
        values = (tensor(Kind.INPUT), tensor(Kind.OUTPUT, 0, (pages << 10,)))
        return make(cache, Plan(1, values, (Output(1),)), "")((torch.ones(4),))[0].zero_()

    _C.trim_memory()
    faults = [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
    for _ in range(4):
        values = [output(pages) for pages in (64, 72, 128)]
        del values[0]
        gradients = [output(625) for _ in range(8)]
        values.append(output(100))
        del values, gradients
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    assert faults[4] - faults[3] < 8 * 625 // 4


def test_idle_pages_move_to_where_the_next_values_lie(cache):
    """Sizes of a step that fit into no gap that the step before left: pages are neither zeroed again, nor more."""
    def output(pages):
        values = (tensor(Kind.INPUT), tensor(Kind.OUTPUT, 0, (pages << 10,)))
        return make(cache, Plan(1, values, (Output(1),)), "")((torch.ones(4),))[0]

    _C.trim_memory()
    faults, most = [], 0
    for step in range(6):
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        alive = [output(pages).fill_(step) for pages in [100] * 8]
        most = max(most, sum(t.nbytes for t in alive))
        del alive[::2]
        alive += [output(pages).fill_(step) for pages in (200, 200)]
        assert all(bool((t == step).all()) for t in alive)
        del alive
    assert faults[5] - faults[4] < 100
    assert _C.trim_memory() <= most


@pytest.mark.parametrize("release", [False, True])
def test_what_is_given_up_dies_after_its_last_use(cache, release):
    seen = []
    look = Call(lambda: seen.append([ref() is None for ref in refs]), None, (), {})
    values = (tensor(Kind.INPUT), tensor(Kind.INPUT, 1), tensor(Kind.OUTPUT))
    call = "if (h->call(h->frame, 0)) return 1; "
    graph = make(cache, Plan(2, values, (Output(2),), (look,), release=release),
                 double(0, 2) + call + "h->release(h->frame, 0);" + call)
    for kept in (False, True):
        given = [torch.full((4,), 5.0), torch.ones(4)]
        refs = [weakref.ref(t) for t in given]
        mine = tuple(given) if kept else ()
        assert torch.equal(graph(given)[0], torch.full((4,), 10.0)) and given == []
        assert seen[-2:] == [[False, False], [not kept, False]]
        assert [ref() is None for ref in refs] == [not kept] * 2
        del mine


def test_a_damaged_library_is_built_again(cache):
    text = PRELUDE + RUN + "{ return 0; /* damaged */ }"
    path = cache.library([text], find())
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[: len(whole) // 2])
    assert cache.library([text], find()) == path and path.read_bytes()[-8:] == whole[-8:]
    assert isinstance(path, Path)


def test_a_number_where_an_operator_takes_a_tensor(cache):
    plan = Plan(1, (tensor(Kind.INPUT), tensor(Kind.RESULT)), (Output(1),),
                (Call("aten::add", "Tensor", (TensorArg(0), 2), {}, (1,)),))
    graph = make(cache, plan, "if (h->call(h->frame, 0)) return 1;")
    x = torch.arange(4.0)
    assert torch.equal(graph((x,))[0], x + 2)
    half = replace(plan, values=(PlanValue(Kind.INPUT, 0, (4,), (1,), torch.float16),
                                 PlanValue(Kind.RESULT, 0, (4,), (1,), torch.float16)))
    assert make(cache, half, "if (h->call(h->frame, 0)) return 1;")((x.half(),))[0].dtype is torch.float16
