"""CUDA graphs: what `mode="reduce-overhead"` replays is what the program computes."""

import copy
import threading
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith
import framesmith.pipeline
from tests.gpu.agree import with_changing_weights

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("one_thread")]
D = "cuda"
MODE = "reduce-overhead"


@pytest.fixture
def graphs(monkeypatch):
    """The compiled graphs that may be recorded."""
    found, record = [], framesmith.pipeline.record

    def note(call, *args):
        found.append(call)
        record(call, *args)

    monkeypatch.setattr(framesmith.pipeline, "record", note)
    return found


def compiled(fn, mode=MODE, **options):
    framesmith.reset()
    return framesmith.compile(fn, mode=mode, **options)


def replays(graphs):
    return [graph.recordings[1] for graph in graphs]


def agree(got, expected, **how):
    torch.testing.assert_close(got, expected, **({"rtol": 1e-3, "atol": 1e-3} | how))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16)).to(D)


def convnet():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, stride=2),
                         nn.Flatten(1)).to(D)


class Attends(nn.Module):
    """What its attention keeps lies on the device if its forward is recorded, else in part in the CPU's memory."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = self.inner(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        return self.outer(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def attention():
    torch.manual_seed(0)
    return Attends().to(D)


@pytest.mark.parametrize("mode", [MODE, "max-autotune"])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast(D, torch.bfloat16)])
def test_a_model_is_replayed(graphs, mode, context):
    model, xs = mlp().eval().requires_grad_(False), [torch.randn(8, 32, device=D) for _ in range(8)]
    c = compiled(model, mode)
    with warnings.catch_warnings(), context():
        warnings.filterwarnings("error", message="framesmith")
        for x in xs:
            agree(c(x), model(x), rtol=2e-2, atol=2e-2)
    assert len(graphs) == 1 and replays(graphs)[0] >= 4


def test_the_default_mode_records_nothing(graphs):
    c = compiled(mlp(), "default")
    c(torch.randn(8, 32, device=D))
    assert graphs == []


@pytest.mark.parametrize("make, shape", [(mlp, (8, 32)), (convnet, (4, 3, 16, 16))])
def test_training_steps(graphs, make, shape):
    mine, theirs = make(), make()
    c = compiled(mine)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9) for m in (mine, theirs)]
    for _ in range(8):
        x = torch.randn(shape, device=D)
        losses = []
        for call, optimizer in zip((c, theirs), optimizers):
            optimizer.zero_grad()
            losses.append(call(x).square().mean())
            losses[-1].backward()
            optimizer.step()
        agree(*losses)
    assert len(graphs) == 2 and min(replays(graphs)) >= 4
    for a, b in zip(mine.state_dict().values(), theirs.state_dict().values()):
        agree(a, b)


def test_gradients_accumulate():
    mine, theirs = mlp(), mlp()
    c = compiled(mine)
    for step in range(8):
        x = torch.randn(8, 32, device=D)
        for call in (c, theirs):
            call(x).square().mean().backward()
        for a, b in zip(mine.parameters(), theirs.parameters()):
            agree(a.grad, b.grad)
            if step % 4 == 3:
                a.grad = b.grad = None


@pytest.mark.parametrize("order", [list, reversed])
@pytest.mark.parametrize("make, shape", [(mlp, (8, 32)), (convnet, (4, 3, 16, 16)), (attention, (4, 16, 32))])
def test_forwards_before_their_backwards(graphs, make, shape, order):
    mine, theirs = make(), make()
    c = compiled(mine)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="framesmith")
        for _ in range(6):
            xs = [torch.randn(shape, device=D) for _ in range(3)]
            for model, call in ((mine, c), (theirs, theirs)):
                model.zero_grad()
                losses = [call(x).square().mean() for x in xs]
                for loss in order(losses):
                    loss.backward()
            for a, b in zip(mine.parameters(), theirs.parameters()):
                agree(a.grad, b.grad)
    assert all(count > 0 for count in replays(graphs))


@pytest.mark.parametrize("make, shape", [(mlp, (8, 32)), (convnet, (4, 3, 16, 16))])
def test_results_that_are_alive_are_kept(make, shape):
    model = make().eval()
    c = compiled(model)
    with torch.no_grad():
        xs = [torch.randn(shape, device=D) for _ in range(12)]
        kept = [c(x) for x in xs]
        for x, out in zip(xs, kept):
            agree(out, model(x))
    assert len({out.data_ptr() for out in kept}) == 12


def test_writes_to_inputs_and_buffers():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(16))

        def forward(self, x, state):
            self.total.add_(x.sum(0))
            state.mul_(2).add_(x)
            return state * self.total

    mine = Counts().to(D)
    theirs = copy.deepcopy(mine)
    c = compiled(mine)
    for k in range(8):
        x, state = torch.randn(4, 16, device=D), torch.ones(4, 16, device=D)
        other, version = state.clone(), state._version
        agree(c(x, state), theirs(x, other))
        agree(state, other)
        agree(mine.total, theirs.total)
        assert state._version > version, k


def test_sizes_that_vary(graphs):
    c = compiled(lambda x: (x * 2).softmax(-1) + 1, dynamic=True, options={"recordings": 2})
    for size in (8, 8, 16, 16, 24, 24, 8, 16, 24, 24, 24):
        x = torch.randn(size, 32, device=D)
        agree(c(x), (x * 2).softmax(-1) + 1)
    assert [graph.recordings for graph in graphs] == [(2, 2)]  # one graph for all sizes; the last two calls replay


def test_streams_have_recordings_of_their_own(graphs):
    model = mlp().eval()
    c = compiled(model)
    main, sides = torch.cuda.current_stream(), [torch.cuda.Stream() for _ in range(2)]
    with torch.no_grad():
        for _ in range(5):
            made = []
            for stream in (main, *sides):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    x = torch.randn(8, 32, device=D)
                    torch.cuda._sleep(100_000)
                    made.append((x, c(x), stream))
            for x, out, stream in made:
                main.wait_stream(stream)
                agree(out, model(x))
    assert graphs[0].recordings[0] >= 3


def test_draws_are_those_of_the_default_mode(graphs):
    def fn(x):
        return F.dropout(x, 0.4) + torch.rand_like(x), torch.randn(16, device=D)

    x = torch.randn(8, 16, device=D)
    plain, c = framesmith.compile(fn), framesmith.compile(fn, mode=MODE)
    for seed in range(6):
        results = []
        for call in (plain, c):
            torch.manual_seed(seed)
            results.append([*call(x), *call(x), torch.rand(3, device=D)])
        for a, b in zip(*results):
            assert torch.equal(a, b)
    assert replays(graphs)[0] >= 8


def test_dropout_in_training():
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.Linear(32, 4)).to(D)
    x = torch.randn(8, 16, device=D)
    framesmith.reset()
    calls = framesmith.compile(model), framesmith.compile(model, mode=MODE)
    for seed in range(5):
        grads = []
        for c in calls:
            torch.manual_seed(seed)
            model.zero_grad()
            c(x).square().mean().backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        for a, b in zip(*grads):
            agree(a, b, rtol=1e-5, atol=1e-6)


@torch.library.custom_op("framesmith_graphs::waits", mutates_args=())
def waits(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


@waits.register_fake
def _(x):
    return torch.empty_like(x)


def test_an_operator_that_waits_is_named_and_all_else_stands():
    def fn(x):
        y = F.dropout(x, 0.5) * 0 + x.sin()
        return waits(y) + 1  # here

    x = torch.randn(8, 16, device=D)
    c = compiled(fn)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(5):
            agree(c(x), fn(x))
    said = [str(w.message) for w in said if "framesmith" in str(w.message)]
    here = next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# here"))
    assert len(said) == 1 and "waits" in said[0] and f"{__file__}:{here}" in said[0], said
    torch.manual_seed(3)  # generator, allocator and other recordings are as ever
    expected = torch.rand(4, device=D)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device=D), expected)
    torch.cuda.empty_cache()
    other = framesmith.compile(lambda x: F.dropout(x * 2, 0.3), mode=MODE)
    for _ in range(4):
        assert other(x).shape == x.shape


def test_memory_of_the_cpu_is_named():
    def fn(x, n):
        return x * 2 + n.to(D)

    x = torch.randn(8, 16, device=D)
    c = compiled(fn)
    with pytest.warns(UserWarning, match="_to_copy.*cannot be recorded.*memory of cpu.*test_cuda_graphs.py"):
        for step in range(4):
            n = torch.full((16,), float(step))
            agree(c(x, n), fn(x, n))


def test_numbers_of_the_cpu_are_those_of_the_call():
    def fn(x, n):
        return x.softmax(-1) * n

    x, n = torch.randn(8, 16, device=D), torch.tensor(0.0)
    c = compiled(fn)
    for number in (2, 2, 2, 2, 3, 4, 5, 2, 3, 3, 3):
        n.fill_(number)
        agree(c(x, n), fn(x, n))


def test_graphs_around_breaks(graphs):
    def fn(x):
        y = (x @ x.t()).relu()
        torch._C._cuda_getDevice()
        framesmith.graph_break()
        z = y.softmax(-1)
        framesmith.graph_break()
        return z @ x + y.sum()

    c, total = compiled(fn), []
    for _ in range(8):
        x = torch.randn(16, 16, device=D)
        total.append((c(x), fn(x)))
    for got, expected in total:
        agree(got, expected)
    assert len(graphs) >= 2 and min(replays(graphs)) >= 2


def test_a_recording_of_the_programs_own():
    model = mlp().eval()
    c = compiled(model)
    x = torch.randn(8, 32, device=D)
    with torch.no_grad():
        for _ in range(4):
            c(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = c(x)
        x.copy_(torch.randn(8, 32, device=D))
        graph.replay()
        agree(out, model(x))
        agree(c(x), model(x))


def test_a_compiled_optimizer(graphs):
    mine, theirs = mlp(), mlp()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3, capturable=True, foreach=False) for m in (mine, theirs)]
    framesmith.reset()
    steps = framesmith.compile(optimizers[0].step, mode=MODE), optimizers[1].step
    for _ in range(6):
        x = torch.randn(8, 32, device=D)
        for model, step in zip((mine, theirs), steps):
            model.zero_grad()
            model(x).square().mean().backward()
            step()
    for a, b in zip(mine.parameters(), theirs.parameters()):
        agree(a, b)


def test_models_that_share_a_pool():
    """Convolutions' results come from the pool that all recordings share."""
    models = [convnet().eval() for _ in range(3)]
    calls = [framesmith.compile(m, mode=MODE) for m in models]
    kept = []
    with torch.no_grad():
        for step in range(18):
            x = torch.randn(4, 3, 16 + 8 * (step % 2), 16, device=D)
            kept.append((x, calls[step % 3](x), models[step % 3]))
            if len(kept) > 5:
                kept.pop(step % 5)
            for x, out, model in kept:
                agree(out, model(x))


def test_scratch_memory_that_comes_late_or_is_given_back_early(graphs):
    def late(x):
        z = x[0].repeat(1024, 16)
        y = (torch.mm(z, z.t()).sum() + x).softmax(-1)
        return torch.mm(y, x).relu() @ x

    def early(x):
        return torch.mm(late(x).softmax(-1), x.repeat(1, 10_000)) + 1

    c = compiled(lambda x: (late(x), early(x)))
    with torch.no_grad():
        for _ in range(8):
            x = torch.randn(64, 64, device=D)
            agree(c(x), (late(x), early(x)))
    assert sum(replays(graphs)) >= 4


def test_a_state_that_is_fed_back():
    cell = nn.RNNCell(16, 16).to(D)

    def fn(x, h):
        for t in range(4):
            h = cell(x[t], h)
        return h

    c = compiled(fn)
    with torch.no_grad():
        mine = theirs = torch.zeros(2, 16, device=D)
        for _ in range(10):
            x = torch.randn(4, 2, 16, device=D)
            mine, theirs = c(x, mine), fn(x, theirs)
            agree(mine, theirs)


def test_weights_that_are_written_or_replaced():
    model = mlp().eval()
    with_changing_weights(compiled(model), model, torch.randn(8, 32, device=D), agree)


def test_memory_is_bounded_and_told():
    model = convnet().eval()
    c = compiled(model)
    x = torch.randn(4, 3, 64, 64, device=D)
    with torch.no_grad():
        for _ in range(6):
            out = c(x)
        before = torch.cuda.memory_allocated()
        for _ in range(50):
            out = c(x)
        assert torch.cuda.memory_allocated() == before
        agree(out, model(x))
    assert framesmith.cuda_graph_memory() >= 2 * out.numel() * 4


def test_threads():
    model = mlp().eval()
    c, problems = compiled(model), []

    def work(seed):
        try:
            with torch.no_grad():
                generator = torch.Generator(D).manual_seed(seed)
                for _ in range(20):
                    x = torch.randn(8, 32, device=D, generator=generator)
                    agree(c(x), model(x))
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_several_devices(graphs):
    c = compiled(lambda x: (x @ x.t()).relu() + 1)
    for _ in range(5):
        for device in ("cuda:0", "cuda:1"):
            x = torch.randn(16, 16, device=device)
            got = c(x)
            assert got.device == x.device
            agree(got, (x @ x.t()).relu() + 1)
    assert len(graphs) == 2 and min(replays(graphs)) >= 2
