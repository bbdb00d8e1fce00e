"""Whole programs whose every graph is recorded, on the CPU: a recording is played by running it again at its
addresses."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith
import framesmith.pipeline
from tests.gpu.agree import with_changing_weights

from .test_recordings import Again


@pytest.fixture(autouse=True)
def recorders(monkeypatch, one_thread):
    """Graphs and their recorders."""
    found, load = [], framesmith.pipeline.load

    def loaded(*args):
        graph, recorder = load(*args), Again()
        graph.record(recorder, 4)
        found.append((graph, recorder))
        return graph

    monkeypatch.setattr(framesmith.pipeline, "load", loaded)
    yield found
    framesmith.reset()


def replayed(recorders):
    return [graph.recordings[1] for graph, _ in recorders]


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))


def convnet():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2),
                         nn.Flatten(1))


def agree(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


MODELS = pytest.mark.parametrize("make, shape", [(mlp, (4, 16)), (convnet, (2, 3, 8, 8))])


@MODELS
@pytest.mark.parametrize("hold", [0, 1, 3, 100])
def test_inference(recorders, make, shape, hold):
    model, kept = make().eval(), []
    c = framesmith.compile(model)
    with torch.no_grad():
        for _ in range(12):
            x = torch.randn(shape)
            kept = [*kept, (x, c(x))][-hold:] if hold else [(x, c(x))]
            for x, out in kept:
                agree(out, model(x))
    assert len(recorders) == 1 and replayed(recorders)[0] >= 4


@MODELS
@pytest.mark.parametrize("zero", ["before forward", "before backward", "never", "in place"])
def test_training(recorders, make, shape, zero):
    mine, theirs = make(), make()
    c = framesmith.compile(mine)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9) for m in (mine, theirs)]
    for _ in range(10):
        x = torch.randn(shape)
        for call, optimizer in zip((c, theirs), optimizers):
            if zero in ("before forward", "in place"):
                optimizer.zero_grad(set_to_none=zero != "in place")
            loss = call(x).square().mean()
            if zero == "before backward":
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for a, b in zip(mine.parameters(), theirs.parameters()):
            agree(a.grad, b.grad)
    assert len(recorders) == 2 and min(replayed(recorders)) >= 4
    for a, b in zip(mine.state_dict().values(), theirs.state_dict().values()):
        agree(a, b)


@MODELS
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_forwards_before_their_backwards(make, shape, order):
    mine, theirs = make(), make()
    c = framesmith.compile(mine)
    for _ in range(6):
        xs = [torch.randn(shape) for _ in range(3)]
        for model, call in ((mine, c), (theirs, theirs)):
            model.zero_grad()
            losses = [call(x).square().mean() for x in xs]
            for k in order:
                losses[k].backward()
        for a, b in zip(mine.parameters(), theirs.parameters()):
            agree(a.grad, b.grad)


def test_gradients_of_inputs_and_several_results():
    def fn(x, y):
        h = (x @ y).tanh()
        return h.sum(0), (h * y.sum()).relu(), h[:2]

    c = framesmith.compile(fn)
    for _ in range(8):
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        grads = []
        for call in (c, fn):
            a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
            one, two, three = call(a, b)
            (one.sum() + two.square().sum() + three.sum()).backward()
            grads.append((a.grad, b.grad))
        agree(*grads)


def test_a_state_goes_round():
    cell = nn.GRUCell(8, 8)
    c = framesmith.compile(lambda x, h: cell(x, cell(x, h)))
    with torch.no_grad():
        mine = theirs = torch.zeros(2, 8)
        for _ in range(12):
            x = torch.randn(2, 8)
            mine, theirs = c(x, mine), cell(x, cell(x, theirs))
            agree(mine, theirs)


def test_graphs_around_breaks(recorders):
    def fn(x):
        y = (x @ x.t()).relu()
        framesmith.graph_break()
        z = y.softmax(-1)
        framesmith.graph_break()
        return z @ x + y.sum(), y

    c, kept = framesmith.compile(fn), []
    for _ in range(10):
        x = torch.randn(6, 6)
        kept = [*kept, (c(x), fn(x))][-3:]
        for got, expected in kept:
            agree(got, expected)
    assert len(recorders) >= 3 and min(replayed(recorders)) >= 4


def test_writes_and_views():
    def fn(x, state):
        state[1:].mul_(2).add_(x[1:])
        return state.t(), x[0], state.sum()

    c = framesmith.compile(fn)
    for step in range(10):
        x, mine = torch.randn(4, 4), torch.ones(4, 4)
        theirs = mine.clone()
        agree(c(x, mine), fn(x, theirs))
        agree(mine, theirs)
        if step == 5:
            gc.collect()


def test_sizes_that_vary():
    model = mlp().eval()
    c, kept = framesmith.compile(model, dynamic=True), []
    with torch.no_grad():
        for step in range(24):
            x = torch.randn(2 + step % 3, 16)
            kept = [*kept, (x, c(x))][-4:]
            for x, out in kept:
                agree(out, model(x))


def test_weights_that_change():
    model = mlp().eval()
    with_changing_weights(framesmith.compile(model), model, torch.randn(4, 16), agree)


def test_draws_go_on():
    def fn(x):
        return F.dropout(x, 0.4) + torch.rand_like(x)

    c, x = framesmith.compile(fn), torch.randn(4, 4)
    for seed in range(6):
        results = []
        for call in (fn, c):
            torch.manual_seed(seed)
            results.append((call(x), call(x)))
        agree(*results)
