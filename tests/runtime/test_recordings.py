"""Recordings without a device: a recorder that, played, runs the recorded call again at the addresses that it was
recorded with."""

import threading
import warnings

import pytest
import torch

from framesmith import _C
from framesmith.runtime.cache import Cache
from framesmith.runtime.plan import Call, Dyn, Kind, Output, Plan, PlanValue, Symbol, TensorArg
from framesmith.runtime.recorder import Recorder

from .test_compiled_graph import INOUT, double, frozen, make, tensor

F32 = torch.float32
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return Cache(tmp_path_factory.mktemp("cache"))


class Again:
    """Records by running; `log` says what was asked for. `pool`: segments that recordings write besides."""

    def __init__(self, breaks=False):
        self.log, self.said, self.breaks, self.pool = [], [], breaks, []

    def begin(self, device, stream, twin):
        assert (device, stream) == (-1, 0)
        self.log.append(f"begin {twin}")
        if self.breaks:
            raise RuntimeError("no recording today")

    def end(self):
        self.log.append("end")
        return self.pool

    def play(self, again):
        def replay():
            self.log.append("replay")
            again()

        return 0, replay

    def fail(self, extern, why):
        self.log.append(f"fail {extern}")
        self.said.append(why)

    def tell(self, why, line=""):
        self.said.append(why)


def recorded(graph, limit=4, **kwargs):
    recorder = Again(**kwargs)
    graph.record(recorder, limit)
    return recorder


def test_the_second_call_is_recorded_and_later_ones_replayed(cache):
    graph = make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1))
    recorder = recorded(graph)
    x = torch.arange(4.0)
    for step in range(5):
        x.fill_(step)
        (out,) = graph((x,))
        assert torch.equal(out, 2 * x) and out._version == 0 and not out.requires_grad
        del out
    assert recorder.log == ["begin 0", "end", "replay", "replay", "replay"] and graph.recordings == (1, 3)


def test_a_recording_is_of_the_numbers_that_its_kernels_were_given(cache):
    values = (tensor(Kind.INPUT), tensor(Kind.INPUT, 1, (), ()), tensor(Kind.OUTPUT))
    body = "for (long i = 0; i < 4; i++) ((float*)p[2])[i] = *(const float*)p[1] * ((const float*)p[0])[i];"
    graph = make(cache, Plan(2, values, (Output(2),), numbers=(1,)), body)
    recorded(graph)
    x, n = torch.arange(4.0), torch.tensor(0.0)
    for number in (2, 2, 2, 3, 2, 3, 3):
        n.fill_(number)
        assert torch.equal(graph((x, n))[0], number * x)
    assert graph.recordings == (2, 3)
    for number in range(10, 30):  # never twice the same: nothing is recorded
        assert torch.equal(graph((x, torch.tensor(float(number))))[0], number * x)
    assert graph.recordings == (2, 3)


def test_a_thread_records_what_it_has_run_before(cache):
    graph = make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1))
    recorder, x = recorded(graph), torch.ones(4)

    def call():
        assert torch.equal(graph((x,))[0], 2 * x)

    graph((x,))
    for _ in range(2):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert recorder.log == []
    call()
    assert recorder.log == ["begin 0", "end"]


def test_inputs_are_copied_once_they_have_moved(cache):
    graph = make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1))
    recorder = recorded(graph)
    held = [torch.full((4,), float(k)) for k in range(8)]
    for k in (0, 0, 1, 2, 3, 0, 4):
        assert torch.equal(graph((held[k],))[0], 2 * held[k])
    # the first stays where it is; when it has moved there is a recording with a place of its own, which takes any
    assert recorder.log.count("begin 0") == 2 and graph.recordings[0] == 2
    before = recorder.log.count("replay")
    assert torch.equal(graph((held[0],))[0], 2 * held[0]) and recorder.log.count("replay") == before + 1


@pytest.mark.parametrize("grad", [True, False])
def test_a_parameter_that_moved_is_not_copied(cache, grad):
    graph = make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1))
    recorder = recorded(graph)
    for _ in range(2):
        w = torch.nn.Parameter(torch.randn(4), requires_grad=grad)
        for _ in range(3):
            assert torch.equal(graph((w,))[0], 2 * w.detach())
    assert recorder.log.count("begin 0") == 2


def test_results_that_are_alive_are_kept(cache):
    graph = make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1))
    recorded(graph)
    x, kept = torch.zeros(4), []
    for step in range(12):
        x.fill_(step)
        kept.append(graph((x,))[0])
    for step, out in enumerate(kept):
        assert torch.equal(out, torch.full((4,), 2.0 * step))
    assert len({out.data_ptr() for out in kept}) == 12


def test_a_loop_that_holds_its_last_result_alternates_between_twins(cache):
    graph = make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1))
    recorder = recorded(graph)
    x, places, out = torch.ones(4), [], None
    for _ in range(12):
        out = graph((x,))[0]
        places.append(out.data_ptr())
    assert recorder.log.count("begin 1") == 1 and len(set(places[-6:])) == 2 and places[-1] == places[-3] != places[-2]


def test_no_result_is_moved_while_another_thread_may_read_it(cache):
    """It may have taken the address within an operator, which lets the interpreter's lock go."""
    graph = make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1))
    recorder, x, kept = recorded(graph), torch.zeros(4), []
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        for step in range(12):
            x.fill_(step)
            out = graph((x,))[0]
            kept.append((out, out.data_ptr()))
    finally:
        over.set()
        other.join()
    # both twins are recorded; then, since what they gave lives on, one that gives memory of its own
    assert recorder.log.count("end") == 3 and recorder.log[-5:] == ["replay"] * 5
    for step, (out, place) in enumerate(kept):
        assert out.data_ptr() == place and torch.equal(out, torch.full((4,), 2.0 * step))


def test_a_result_fed_back_is_read_before_it_is_overwritten(cache):
    graph = make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1))
    recorded(graph)
    x = torch.ones(4)
    for step in range(10):
        x = graph((x,))[0]
        assert torch.equal(x, torch.full((4,), 2.0 ** (step + 1)))


def test_views_of_a_result_keep_it(cache):
    values = (*INOUT, PlanValue(Kind.VIEW, 1, (2,), (1,), F32, offset=2))
    graph = make(cache, Plan(1, values, (Output(2), Output(1))), double(0, 1))
    recorded(graph)
    x, kept = torch.zeros(4), []
    for step in range(6):
        x.fill_(step)
        window, whole = graph((x,))
        assert window.data_ptr() == whole.data_ptr() + 8
        kept.append(window[1:])
    assert [k.item() for k in kept] == [2.0 * step for step in range(6)]


def test_memory_of_results_that_were_resized_is_their_own(cache):
    graph = make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1))
    recorded(graph)
    x = torch.ones(4)
    for _ in range(3):
        (out,) = graph((x,))
        out.resize_(100).fill_(7)
    assert torch.equal(graph((x,))[0], 2 * x) and torch.equal(out, torch.full((100,), 7.0))


def test_written_inputs_are_written_wherever_they_lie(cache):
    plan = Plan(1, (tensor(Kind.INPUT, written=True),), (Output(0),), bumped=(0,))
    graph = make(cache, plan, double(0, 0))
    recorded(graph)
    for x in (torch.ones(4), *[torch.ones(4) for _ in range(4)], torch.ones(5)[1:]):
        for times in (2.0, 4.0):
            version = x._version
            assert graph((x,))[0] is x and torch.equal(x, torch.full((4,), times)) and x._version == version + 1


def test_a_written_input_that_shares_memory_is_not_copied(cache):
    values = (tensor(Kind.INPUT, written=True), tensor(Kind.INPUT, 1), tensor(Kind.OUTPUT))
    graph = make(cache, Plan(2, values, (Output(2),), bumped=(0,)), double(0, 0) + double(1, 2))
    recorder = recorded(graph)
    for _ in range(4):
        x = torch.ones(4)
        held = torch.empty(8)  # noqa: F841 - so that the next one lies elsewhere
        assert torch.equal(graph((x, x.view(2, 2).view(4)))[0], torch.full((4,), 4.0))
    assert recorder.log.count("replay") == 0


def test_sizes_are_recorded_apart_and_the_least_recently_used_goes(cache):
    n = Dyn(0)
    values = (PlanValue(Kind.INPUT, 0, (n,), (1,), F32), PlanValue(Kind.OUTPUT, 0, (n,), (1,), F32))
    plan = Plan(1, values, (Output(1), Output(constant=n)), symbols=(Symbol(0, 0),), table=1)
    graph = make(cache, plan, double(0, 1, "n[0]"), sizes=";")
    recorder = recorded(graph, limit=2)
    held = {size: torch.randn(size) for size in (3, 4, 5)}

    def call(size):
        out, count = graph((held[size],))
        assert torch.equal(out, 2 * held[size]) and count == size

    for size in (3, 3, 4, 4, 3, 4):
        call(size)
    assert graph.recordings == (2, 2)
    for size in (5, 5, 4, 5):  # 3 goes
        call(size)
    assert graph.recordings == (2, 4) and recorder.log.count("begin 0") == 3
    call(3)
    assert recorder.log.count("begin 0") == 4 and graph.recordings[0] == 2


def test_sizes_that_never_come_again_end_the_recording(cache):
    n = Dyn(0)
    values = (PlanValue(Kind.INPUT, 0, (n,), (1,), F32), PlanValue(Kind.OUTPUT, 0, (n,), (1,), F32))
    graph = make(cache, Plan(1, values, (Output(1),), symbols=(Symbol(0, 0),), table=1), double(0, 1, "n[0]"),
                 sizes=";")
    recorder = recorded(graph, limit=2)
    for size in range(1, 20):
        x = torch.randn(size)
        for _ in range(2):
            assert torch.equal(graph((x,))[0], 2 * x)
    assert recorder.said == ["its sizes or the addresses of its inputs keep changing"] and graph.recordings == (0, 0)


def test_new_constants_are_recorded_anew(cache):
    graph, w = frozen(cache), torch.nn.Parameter(torch.arange(1.0, 5.0))
    recorder = recorded(graph)
    with torch.no_grad():
        for _ in range(3):
            for _ in range(4):
                assert torch.equal(graph((w,))[0], w * 20)
            w.add_(1)
    assert recorder.log.count("begin 0") == 3 and graph.recordings[0] == 1


def test_what_cannot_be_recorded_runs_and_is_told_once(cache):
    graph = make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1))
    recorder = recorded(graph, breaks=True)
    x = torch.ones(4)
    for _ in range(5):
        assert torch.equal(graph((x,))[0], 2 * x)
    assert recorder.log == ["begin 0", "fail -1"] and "no recording today" in recorder.said[0]


def test_the_operator_that_failed_is_named(cache):
    calls = []

    def twice(x):
        calls.append(x)
        if len(calls) == 2:
            raise ValueError("not while recording")
        return x * 2

    values = (tensor(Kind.INPUT), tensor(Kind.RESULT))
    call = Call("aten::neg", "", (TensorArg(0),), {}, results=(-1,))
    plan = Plan(1, values, (Output(1),), (call, Call(twice, None, (TensorArg(0),), {}, results=(1,))))
    graph = make(cache, plan, "if (h->call(h->frame, 0) || h->call(h->frame, 1)) return 1;")
    recorder = recorded(graph)
    x = torch.ones(4)
    for _ in range(3):
        assert torch.equal(graph((x,))[0], 2 * x)
    assert recorder.log == ["begin 0", "fail 1"] and "not while recording" in recorder.said[0]


def test_the_user_is_told_operator_and_line():
    recorder = Recorder([("aten.nonzero.default", "model.py:3")])
    for _ in range(2):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            recorder.fail(0, "RuntimeError: operation not permitted\nand much more")
    assert not said
    recorder = Recorder([("aten.nonzero.default", "model.py:4")])
    with pytest.warns(UserWarning,
                      match=r"aten\.nonzero\.default cannot be recorded: .*not permitted \(model\.py:4\)$"):
        recorder.fail(0, "RuntimeError: operation not permitted\nand much more")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Recorder([("aten.nonzero.default", "model.py:5")], warn=False).fail(0, "no")


def test_a_recording_moves_results_of_newer_ones_out_of_its_pool(cache):
    older, newer = [make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1)) for _ in range(2)]
    recorder = recorded(older)
    recorder.pool = [(0, 2**62)]  # it may write everywhere
    x = torch.ones(4)
    for _ in range(2):
        older((x,))
    recorded(newer)
    for _ in range(3):
        (out,) = newer((x,))
    place = out.data_ptr()
    assert torch.equal(older((x,))[0], 2 * x)
    assert out.data_ptr() != place and torch.equal(out, 2 * x)
    (same,) = newer((x,))
    assert same.data_ptr() == place and torch.equal(out, 2 * x)


def test_results_outlive_their_graph(cache):
    graph = make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1))
    recorded(graph)
    x = torch.ones(4)
    for _ in range(3):
        (out,) = graph((x,))
    del graph
    trash = [torch.zeros(4) for _ in range(50)]
    assert torch.equal(out, 2 * x) and len(trash) == 50


def test_memory_of_recordings_is_counted(cache):
    before = _C.recorded_bytes(-1, False)
    graph = make(cache, Plan(1, INOUT, (Output(1),)), double(0, 1))
    recorded(graph)
    held = [torch.ones(4) for _ in range(3)]
    for x in held:
        (out,) = graph((x,))
    assert _C.recorded_bytes(-1, False) - before == 32  # a result, and a place for the input
    assert _C.recorded_bytes(-1, True) - before == 16
    del out
    assert _C.recorded_bytes(-1, True) - before == 32
    del graph
    assert _C.recorded_bytes(-1, False) == before
