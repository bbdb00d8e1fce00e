"""`split`: stages compute what the model computes, with its gradients, alone and in schedules of pipelines."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn import functional as F

import framesmith
from framesmith.distributed.links import H100
from framesmith.util.errors import FramesmithError

from .world import World

WIDTH = 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Its last layer reads the first one's result, too, a mask, and the numbers, which have no gradient."""

    def __init__(self, blocks=8):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, WIDTH), nn.Linear(WIDTH, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))

    def forward(self, ids, mask=None):
        first = x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        x = x + first * self.scale * (ids > 1).unsqueeze(-1)
        return self.head(x if mask is None else x * mask.unsqueeze(-1))


def net(blocks=8):
    torch.manual_seed(1)
    return Net(blocks).double()


def batch(step=0, rows=8):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, 11, (rows, 5), generator=generator), torch.randint(0, 3, (rows, 5), generator=generator)


def loss_of(out, target):
    return F.cross_entropy(out.flatten(0, 1), target.flatten())


def chained(parts, *args, **kwargs):
    for part in parts:
        args = part(*args, **kwargs)
        args = args if isinstance(args, tuple) else (args,)
    return args[0]


def same_gradients(model, args, kwargs=None, stages=2, wrap=lambda part: part, program=None):
    """One step of the stages, one after the other, and of the model."""
    other, kwargs = copy.deepcopy(model), kwargs or {}
    parts = framesmith.split(program or model, args, kwargs, stages=stages)
    out, expected = chained(map(wrap, parts), *args, **kwargs), other(*args, **kwargs)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    (out ** 2).sum().backward()
    (expected ** 2).sum().backward()
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        if b.grad is None or not b.grad.any():
            assert a.grad is None or not a.grad.any(), name
        else:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-12)
    for a, b in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    names = [name for part in parts for name in part.state_dict()]
    assert set(names) == set(model.state_dict())
    return parts


@pytest.mark.parametrize("wrap", [lambda part: part, framesmith.compile], ids=["eager", "compiled"])
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_stages_compute_the_model(stages, wrap):
    mask = torch.ones(8, 5, dtype=torch.float64).tril()
    parts = same_gradients(net(), (batch()[0],), {"mask": mask}, stages, wrap)
    assert len(parts) == stages
    assert all(len(part.example_outputs) <= 3 for part in parts[:-1]), "cuts are between blocks"
    parameters = [name for part in parts for name, _ in part.named_parameters()]
    assert sorted(parameters) == sorted(name for name, _ in net().named_parameters())


def test_stages_share_parameters_with_the_model():
    model = net()
    own = dict(model.named_parameters())
    for part in framesmith.split(model, (batch()[0],), stages=3):
        assert all(own[name] is p for name, p in part.named_parameters())


def test_stages_of_an_exported_program():
    model = net()
    program = framesmith.export(model, (batch()[0],))
    same_gradients(model, (batch()[0],), stages=3, program=program)
    with pytest.raises(FramesmithError, match="all of its sizes are constants"):
        varying = framesmith.export(model, (batch()[0],), dynamic_shapes=({0: framesmith.Dim("batch")},))
        framesmith.split(varying, (batch()[0],), stages=2)


class Sends(nn.Module):
    """Linear layers between values of some widths."""

    def __init__(self, widths):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in zip(widths, widths[1:]))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


@pytest.mark.parametrize(("stages", "layers"), [(2, [4, 4]), (4, [2, 2, 2, 2])])
def test_equal_layers_are_divided_evenly(stages, layers):
    with torch.device("meta"):
        model, x = Sends([1024] * 9), torch.empty(4096, 1024)
    parts = framesmith.split(model, (x,), stages=stages)
    assert [len(list(part.parameters())) for part in parts] == layers
    times = [part.predicted_seconds for part in parts]
    assert max(times) < 1.4 * min(times)  # the first computes no gradient of an input


def test_what_does_not_fit_in_memory_is_divided_by_memory():
    """The first stage keeps the activations of two micro-batches."""
    with torch.device("meta"):
        model, x = Sends([1024] * 9), torch.empty(4096, 1024)
    free = framesmith.split(model, (x,), stages=2)
    small = replace(H100, memory=0.99 * free[0].predicted_bytes)
    tight = framesmith.split(model, (x,), stages=2, hardware=small)
    assert max(part.predicted_bytes for part in tight) <= small.memory < max(part.predicted_bytes for part in free)
    assert [len(list(part.parameters())) for part in tight] == [3, 5]
    none = framesmith.split(model, (x,), stages=2, hardware=replace(H100, memory=1))  # what is fullest is least full
    assert max(part.predicted_bytes for part in none) <= max(part.predicted_bytes for part in tight)


def test_tied_weights_are_named():
    class Tied(Net):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(WIDTH, 11, bias=False)
            self.head.weight = self.embed.weight

    with pytest.raises(FramesmithError, match=r"embed\.weight \(also head\.weight\)"):
        framesmith.split(Tied(), (batch()[0],), stages=2)


def test_a_layer_called_twice_stays_in_one_stage():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            for k in (0, 1, 2, 1, 3):
                x = self.layers[k](x).tanh()
            return x

    model = Twice().double()
    parts = same_gradients(model, (torch.randn(2, 4, dtype=torch.float64),), stages=3)
    assert [sorted({n.split(".")[1] for n, _ in p.named_parameters()}) for p in parts] == [["0"], ["1", "2"], ["3"]]


class Rough(nn.Module):
    """What may not cross as it is, or stops gradients: views, a transposed value, several results, constants."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)

    def forward(self, x):
        y = self.a(x).t().contiguous().t() * self.frozen
        with torch.no_grad():
            still = y.sin()
        top = y.topk(3, -1)
        z = self.b(y) * still + self.b(y).detach() + top.values.mean() + top.indices.sum()
        low, high = z.split(3, -1)
        return self.c(torch.cat([high, low.expand(2, 5, 3)[0]], -1) * self.frozen) + torch.arange(6)


@pytest.mark.parametrize("wrap", [lambda part: part, framesmith.compile], ids=["eager", "compiled"])
def test_views_detached_values_and_constants(wrap):
    same_gradients(Rough().double(), (torch.randn(5, 6, dtype=torch.float64),), stages=3, wrap=wrap)


@pytest.mark.parametrize("wrap", [lambda part: part, framesmith.compile], ids=["eager", "compiled"])
def test_buffers_that_are_written(wrap):
    layers = [nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(4)]
    x = torch.randn(4, 3, 6, 6, dtype=torch.float64)
    same_gradients(nn.Sequential(*layers).double(), (x.to(memory_format=torch.channels_last),), stages=4, wrap=wrap)


def test_what_is_refused():
    with pytest.raises(FramesmithError, match="2 stages of a model that has 1 part"):
        framesmith.split(nn.Linear(3, 3), (torch.ones(2, 3),), stages=2)
    with pytest.raises(FramesmithError, match="0 stages"):
        framesmith.split(nn.Linear(3, 3), (torch.ones(2, 3),), stages=0)

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 3

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.b(Custom.apply(self.a(x)))

    with pytest.raises(FramesmithError, match="autograd.Function"):
        framesmith.split(Own(), (torch.ones(2, 3),), stages=2)
    part = framesmith.split(net(), (batch()[0],), stages=1)[0]
    with pytest.raises(TypeError, match="1 inputs and no keyword arguments was called with 1 and mask"):
        part(batch()[0], mask=1)


class Ends(nn.Module):
    """Parts of values, a constant tensor, and a result that holds a number and arguments."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x, scale=None, shift=None):
        low, _, high = self.a(x).unbind(1)
        first, second = torch.stack([low, high], 1).chunk(2, 1)
        y = self.b(torch.cat([first + torch.tensor([1., 2, 3, 4, 5, 6]), second * scale], 1)) + shift
        return {"y": y, "top": y.amax(-1), "scale": scale, "x": x, "count": 3}


@pytest.mark.parametrize("operators", [None, "core", "aten", "prims"])
def test_parts_of_values_and_results(operators):
    """The order of keyword arguments is not that of parameters."""
    model = Ends().double()
    x, scale, shift = torch.randn(2, 3, 6).double(), torch.tensor(2.0).double(), torch.tensor(5.0).double()
    named = {"shift": shift, "scale": scale}
    source = model
    if operators:
        source = framesmith.export(model, (x,), {"scale": scale, "shift": shift}, operators=operators)
    out, expected = chained(framesmith.split(source, (x,), named, stages=2), x, **named), model(x, **named)
    assert list(out) == list(expected) and out["scale"] is scale and out["count"] == 3
    torch.testing.assert_close(out, expected)
    wanted = torch.autograd.grad(expected["y"].sum(), list(model.parameters()))
    stages = framesmith.split(source, (x,), named, stages=2)
    loss = chained(stages, x, **named)["y"].sum()
    found = torch.autograd.grad(loss, [dict(stages[k].named_parameters())[f"{'ab'[k]}.{name}"]
                                       for k in (0, 1) for name in ("weight", "bias")])
    torch.testing.assert_close(found, wanted)


def test_a_model_without_gradients():
    model = net().requires_grad_(False)
    parts = framesmith.split(model, (batch()[0],), stages=3)
    torch.testing.assert_close(chained(parts, batch()[0]), model(batch()[0]))
    assert not any(x.requires_grad for part in parts for x in part.example_outputs)


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows):
    model, ids = net(), batch(rows=rows)[0]
    torch.testing.assert_close(chained(framesmith.split(model, (ids,), stages=2), ids), model(ids))


def test_a_model_without_parameters():
    part, = framesmith.split(nn.ReLU(), (torch.ones(2),), stages=1)
    assert part(-torch.ones(2)).tolist() == [0, 0]
    part, = framesmith.split(nn.Identity(), (torch.ones(2),), stages=1)
    assert part(torch.full((2,), 3.0)).tolist() == [3, 3]


def test_autocast_is_that_of_the_capture():
    model, x = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parts, expected = framesmith.split(model, (x,), stages=2), model(x)
        assert parts[1].example_inputs[0].dtype == torch.bfloat16
        assert torch.equal(chained(parts, x), expected)
    assert torch.equal(chained(parts, x), expected)


def test_dropout_draws_as_in_the_model():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(4)))
    x = torch.randn(4, 8)
    parts = framesmith.split(model, (x,), stages=3)
    torch.manual_seed(3)
    expected = model(x)
    torch.manual_seed(3)
    assert torch.equal(chained(parts, x), expected)


def test_values_that_nothing_reads_are_drawn():
    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            torch.rand(3)
            return self.b(self.a(x)) + torch.rand(4)

    model, x = Drawing(), torch.randn(2, 4)
    parts = framesmith.split(model, (x,), stages=2)
    torch.manual_seed(3)
    expected = model(x)
    torch.manual_seed(3)
    assert torch.equal(chained(parts, x), expected)


WRITES = {
    "element": lambda y, x: y.__setitem__((slice(None), 0), 0),
    "other dtype, broadcast": lambda y, x: y[:, 1:3].copy_(x[:1, :2].float()),
    "transposed": lambda y, x: y.t()[1:3].copy_(x.t()[:2]),
    "whole": lambda y, x: y.copy_(x * 2),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_within_the_model(write):
    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))

        def forward(self, x):
            y = self.a(x)
            write(y, self.b(x))
            return self.c(y.sin())

    same_gradients(Writing().double(), (torch.randn(6, 6).double(),))


def test_stages_are_copied_and_pickled():
    parts = framesmith.split(net(), (batch()[0],), stages=2)
    copies = pickle.loads(pickle.dumps(copy.deepcopy(parts)))
    assert torch.equal(chained(copies, batch()[0]), chained(parts, batch()[0]))
    assert not {id(p) for part in parts for p in part.parameters()} & {id(p) for c in copies for p in c.parameters()}


def test_another_size_is_refused():
    """Sizes are constants of the graph: a mean over the rows would be a wrong one."""
    part, = framesmith.split(net(), (batch()[0],), stages=1)
    with pytest.raises(ValueError, match=r"\(4, 5\) of torch.int64 where the stage takes one \(8, 5\)"):
        part(batch(rows=4)[0])


def test_names_of_a_stages_own():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs, self.memory = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.memory(self.inputs(x))

    class Clash(nn.Module):
        def __init__(self):
            super().__init__()
            self.example_inputs = nn.Linear(4, 4)

        def forward(self, x):
            return self.example_inputs(x)

    same_gradients(Named().double(), (torch.randn(2, 4).double(),))
    with pytest.raises(FramesmithError, match="an attribute example_inputs of its own"):
        framesmith.split(Clash(), (torch.ones(2, 4),), stages=1)


def test_what_stages_do_not_change_is_said():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.calls = nn.Linear(4, 4), 0

        def forward(self, x):
            self.calls += 1
            return self.a(x)

    model = Counting()
    with pytest.warns(UserWarning, match="does not change Counting.calls|does not change calls"):
        framesmith.split(model, (torch.ones(2, 4),), stages=1)
    assert model.calls == 0


# --- schedules --------------------------------------------------------------------------------------------------------
SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}
STEPS, MICRO = 5, 4


@pytest.fixture(scope="module", params=[2, 4], ids=["2 processes", "4 processes"])
def processes(request):
    made = World(request.param)
    yield made
    made.close()


def piped(schedule, masked):
    """Losses of steps of the pipeline in the last process, and gradients and parameters of each, by name."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = 2 * size if schedule == "interleaved" else size
    model, mask = net(), {"mask": torch.ones(8, 5, dtype=torch.float64).tril()} if masked else {}
    parts = framesmith.split(model, (batch()[0][:2],), {k: v[:2] for k, v in mask.items()}, stages=count)
    own = range(rank, count, size)
    stages = [PipelineStage(framesmith.compile(parts[k]), k, count, torch.device("cpu"),
                            input_args=parts[k].example_inputs, output_args=parts[k].example_outputs) for k in own]
    one = stages if schedule == "interleaved" else stages[0]
    run = SCHEDULES[schedule](one, n_microbatches=MICRO, loss_fn=loss_of)
    parameters = {name: p for k in own for name, p in parts[k].named_parameters()}
    optimiser = torch.optim.SGD(parameters.values(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        ids, target = batch(step)
        found = []
        run.step(*[ids] * (rank == 0), **mask, **({"target": target, "losses": found} if rank == size - 1 else {}))
        losses += [torch.stack(found).detach().mean()] if found else []
        optimiser.step()
        gradients = {name: p.grad for name, p in parameters.items()}
        optimiser.zero_grad()
    return losses, gradients, {name: p.detach() for name, p in parameters.items()}


def same_as_the_model(schedule, masked):
    losses, gradients, parameters = piped(schedule, masked)
    model = net()
    mask = torch.ones(8, 5, dtype=torch.float64).tril()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    expected = []
    for step in range(STEPS):
        ids, target = batch(step)
        optimiser.zero_grad()
        loss = loss_of(model(ids, mask) if masked else model(ids), target)
        loss.backward()
        optimiser.step()
        expected.append(loss.detach())
    if losses:
        torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    own = dict(model.named_parameters())
    for name, p in parameters.items():
        torch.testing.assert_close(p, own[name].detach(), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(gradients[name], own[name].grad, rtol=1e-10, atol=1e-12)
    return sorted(parameters), bool(losses)


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_train_as_the_model(processes, schedule, masked):
    if torch.__version__ < (2, 13) and (schedule == "interleaved" or len(processes.pipes) > 2):
        pytest.skip("PyTorch's schedules fail so before 2.13, without compiled stages, too")
    found = processes.run(same_as_the_model, schedule, masked)
    assert [last for _, last in found] == [False] * (len(found) - 1) + [True]
    assert sorted(name for names, _ in found for name in names) == sorted(name for name, _ in net().named_parameters())
