"""Captures that need gradients in the cache: a variant of what the disk has trains as eager does."""

import copy
import dataclasses
import gc

import pytest
import torch
from torch import nn

import framesmith
from framesmith.autograd import segments
from framesmith.capture_cache.gradients import Stored
from framesmith.util import events


class Net(nn.Module):
    def __init__(self, rate=0.5):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.drop, self.scale = nn.Dropout(rate), 2.0

    def forward(self, x):
        h = self.drop(self.norm(self.first(x)).tanh()) * self.scale
        return self.second(h), h.exp().sum()


X = torch.arange(24, dtype=torch.float64).reshape(6, 4).sin()


def of_both(call, model, x):
    out, total = call(x)
    (out.square().mean() + total).backward()


def of_one(call, model, x):
    call(x)[0].square().mean().backward()


def of_the_other(call, model, x):
    call(x)[1].backward()


def of_some_parameters(call, model, x):
    return torch.autograd.grad(call(x)[0].sum(), [model.second.weight, model.first.bias])


def of_each_in_turn(call, model, x):
    out, total = call(x)
    out.sum().backward(retain_graph=True)
    total.backward()


def of_second_order(call, model, x):
    (found,) = torch.autograd.grad(call(x)[0].square().sum(), [model.first.weight], create_graph=True)
    found.square().sum().backward()


def twice_without_retaining(call, model, x):
    loss = call(x)[0].sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def of_an_input(call, model, x):
    x = x.clone().requires_grad_()
    call(x)[0].sum().backward()
    return x.grad


def with_hooks(call, model, x):
    seen = []
    handles = [p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
               for p in model.parameters()]
    call(x)[0].sum().backward()
    for handle in handles:
        handle.remove()
    return seen


def after_a_write_of_what_is_saved(call, model, x):
    loss = call(x)[0].square().sum()
    with torch.no_grad():
        model.second.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()


STEPS = [of_both, of_one, of_the_other, of_some_parameters, of_each_in_turn, of_second_order, twice_without_retaining,
         of_an_input, with_hooks, after_a_write_of_what_is_saved]


def shown(step, call, model):
    torch.manual_seed(0)
    found = step(call, model, X)
    return found, [p.grad for p in model.parameters()], [*model.buffers()]


@pytest.fixture
def trained(tmp_path):
    """Runs a step as a new process would, compares it with eager, and returns the ends of the compiles."""

    def run(step, model=None):
        torch.manual_seed(0)
        mine, ends = (Net() if model is None else model).double(), []
        other = copy.deepcopy(mine)
        framesmith.reset()
        compiled = framesmith.compile(mine, options={"keep_captures": True, "cache_dir": str(tmp_path / "cache")})
        with events.on_event(lambda e: ends.append(e.outcome) if isinstance(e, events.CompileEnded) else None):
            got = shown(step, compiled, mine)
        torch.testing.assert_close(got, shown(step, other, other), rtol=1e-9, atol=1e-9)
        return ends

    return run


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_variant_of_the_disk_trains_as_eager_does(trained, step):
    first, second, third = [trained(step) for _ in range(3)]
    assert first[0] == "compiled" and second[0] == third[0] == "loaded"


@pytest.mark.parametrize("step", [of_both, of_one, of_the_other, of_some_parameters, of_an_input],
                         ids=lambda step: step.__name__)
def test_nothing_is_compiled_again(trained, step):
    assert [trained(step) for _ in range(2)] == [["compiled"] * 2, ["loaded"] * 2]


def test_another_backward_is_made_of_the_captured_graph(trained):
    assert [trained(of_one) for _ in range(2)] == [["compiled"] * 2, ["loaded"] * 2]
    for step in (of_both, of_the_other, of_some_parameters):
        assert [trained(step) for _ in range(2)] == [["loaded", "compiled"], ["loaded", "loaded"]]


class Written(nn.Module):
    """Writes views of a value, and a buffer that a frozen parameter scales."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        h = self.inner(x) * self.frozen
        h[:, :2] *= 2
        h.add_(self.inner.bias)
        self.mean.lerp_(h.detach().mean(0), 0.5)
        return h.sigmoid() - self.mean, (x * self.inner.weight.sum()).sum()


@pytest.mark.parametrize("step", [of_both, of_the_other, of_an_input], ids=lambda step: step.__name__)
def test_writes_are_those_of_eager(trained, step):
    assert [trained(step, Written()) for _ in range(2)] == [["compiled"] * 2, ["loaded"] * 2]


def _frozen():
    net = Net()
    net.first.weight.requires_grad_(False)
    return net


@pytest.mark.parametrize("other", [
    _frozen, lambda: Net().eval(), lambda: Net(0.25), lambda: Net().requires_grad_(False),
], ids=["a frozen parameter", "evaluation", "another rate", "nothing to train"])
def test_the_capture_of_another_model_is_not_used(trained, other):
    trained(of_an_input)
    assert trained(of_an_input, other())[0] == "compiled"
    assert trained(of_an_input, other())[0] == "loaded"
    assert trained(of_an_input) == ["loaded", "loaded"]


def test_a_backward_that_is_damaged_is_made_again(trained, tmp_path):
    trained(of_one)
    for path in (tmp_path / "cache").rglob("*.capture"):
        if b'"facts":{"reads"' in (data := path.read_bytes()):
            path.write_bytes(data[:-1] + b"!")
    assert trained(of_one) == ["loaded", "compiled"]
    assert trained(of_one) == ["loaded", "loaded"]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0] * 3


class OfItsOwn(nn.Module):
    def forward(self, x):
        return Square.apply(x), x.sum()


def test_a_derivative_of_the_program_s_own_is_not_kept(trained):
    for _ in range(2):
        assert trained(of_an_input, OfItsOwn())[0] == "compiled"
        assert any("derivative" in e.reason for e in events.recent() if isinstance(e, events.NotCached))


def test_a_loaded_variant_dies_with_its_last_reference(trained):
    for _ in range(2):
        trained(of_some_parameters)
    trained(of_second_order)
    framesmith.reset()
    gc.collect()
    assert not any(type(x) is Stored for x in gc.get_objects())


@pytest.fixture
def hooked(trained, monkeypatch):
    """The same, where hooks see gradients as they are accumulated, in small segments."""
    def run(step):
        net = Net()
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: None)
        return trained(step, net)

    monkeypatch.setattr(segments, "LEAST", 1)
    return run


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_segments_of_the_disk_give_what_eager_gives(hooked, step):
    first, second, third = [hooked(step) for _ in range(3)]
    assert first[0] == "compiled" and second[0] == third[0] == "loaded"


def test_segments_are_loaded(hooked):
    first, second = [hooked(of_both) for _ in range(2)]
    assert len(first) == len(second) > 2 and {*second} == {"loaded"}


def segment_files(folder):
    return {path for path in folder.rglob("*.capture") if b'"cut"' in path.read_bytes()}


def test_segments_of_which_one_is_gone_are_made_again(hooked, tmp_path):
    first = hooked(of_both)
    parts = segment_files(tmp_path)
    assert len(parts) == len(first) - 1
    parts.pop().unlink()
    assert "compiled" in hooked(of_both)
    assert {*hooked(of_both)} == {"loaded"}


def test_segments_of_two_divisions_are_not_mixed(hooked, tmp_path, monkeypatch):
    cut = segments._cut
    hooked(of_both)
    before = segment_files(tmp_path)
    one = min(before)
    data, number = one.read_bytes(), one.name.partition("-")[0]
    one.unlink()
    monkeypatch.setattr(segments, "_cut", lambda graph, of: [
        (dataclasses.replace(part, dead=part.dead[::-1]), inner) for part, inner in cut(graph, of)])
    hooked(of_both)
    one.write_bytes(data)
    (other,) = [path for path in segment_files(tmp_path) - before if path.name.startswith(number)]
    other.unlink()
    assert "compiled" in hooked(of_both)
