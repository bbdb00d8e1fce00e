"""Steps of optimisers, and whole training steps, against eager: parameters, gradients and the optimisers' state."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn
from torch.optim.adam import _single_tensor_adam

import framesmith
from framesmith.testing import CompileCounter

X, Y = torch.linspace(-1, 1, 20).reshape(5, 4), torch.linspace(0, 1, 10).reshape(5, 2)
FOREACH, FUSED = {"foreach": True}, {"fused": True}
DECAY = {"lr": 0.01, "weight_decay": 0.1}
CASES = [
    ("SGD", {"lr": 0.1}, ({}, FOREACH, FUSED)),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}, ({}, FUSED)),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, ({}, FOREACH, FUSED)),
    ("Adam", DECAY, ({}, FOREACH, FUSED)),
    ("Adam", {"lr": 0.01, "amsgrad": True, "maximize": True}, ({}, FOREACH, FUSED)),
    ("AdamW", DECAY, ({}, FOREACH, FUSED)), ("NAdam", DECAY, ({}, FOREACH)), ("Adamax", DECAY, ({}, FOREACH)),
    ("NAdam", {**DECAY, "decoupled_weight_decay": True}, ({},)),
    ("Adagrad", {**DECAY, "lr_decay": 0.1}, ({}, FOREACH, FUSED)),
    ("Adadelta", DECAY, ({}, FOREACH)), ("RMSprop", {**DECAY, "centered": True, "momentum": 0.9}, ({}, FOREACH)),
    ("Rprop", {}, ({}, FOREACH)), ("Adafactor", DECAY, ({}, FOREACH)),
    ("RAdam", DECAY, ({}, FOREACH)), ("RAdam", {**DECAY, "decoupled_weight_decay": True, "maximize": True}, ({},)),
    ("ASGD", DECAY, ({}, FOREACH)), ("ASGD", {**DECAY, "t0": 3}, ({}, FOREACH)),
]


class Net(nn.Module):
    """With tied weights and a parameter without a gradient."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2), nn.Parameter(
            torch.ones(3))
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.c(self.b(self.a(x).relu()).relu())


def same(model, opt, other, fast):
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=1e-5, atol=1e-7)
        assert (p.grad is None) == (q.grad is None) and q.is_leaf and q.requires_grad == p.requires_grad
    assert opt.state_dict()["param_groups"] == fast.state_dict()["param_groups"]
    for s, t in zip(opt.state.values(), fast.state.values(), strict=True):
        assert list(s) == list(t) and [type(v) for v in s.values()] == [type(v) for v in t.values()]
        for v, w in zip(s.values(), t.values(), strict=True):
            if isinstance(v, torch.Tensor):
                assert (v.dtype, v.shape, v.stride(), v.requires_grad) == (w.dtype, w.shape, w.stride(),
                                                                           w.requires_grad)
        torch.testing.assert_close(t, s, rtol=1e-5, atol=1e-7)


def trained(make, backend, calls=5, between=None):
    """Steps of two copies of a net, one of them compiled; eager is the oracle after each."""
    torch.manual_seed(0)
    nets = Net()
    pairs = [(m, make(m)) for m in (nets, copy.deepcopy(nets))]
    steps = [pairs[0][1].step, framesmith.compile(pairs[1][1].step, backend=backend)]
    for k in range(calls):
        for (model, opt), step in zip(pairs, steps):
            opt.zero_grad(set_to_none=k % 2 == 0)
            nn.functional.mse_loss(model(X), Y).backward()
            step()
            if between is not None:
                between(k, model, opt)
        same(*pairs[0], *pairs[1])


@pytest.mark.parametrize("name, options", [(n, {**o, **mode}) for n, o, modes in CASES for mode in modes], ids=str)
def test_captured_whole(name, options):
    counter = CompileCounter()
    trained(lambda m: getattr(torch.optim, name)(m.parameters(), **options), counter)
    assert 1 <= counter.frame_count <= 2  # the first step makes the state


@pytest.mark.parametrize("name, options", [("RAdam", DECAY), ("ASGD", {**DECAY, "t0": 3})], ids=str)
def test_branches_on_the_count_of_steps(name, options):
    """The eighth step goes another way than the first."""
    counter = CompileCounter()
    trained(lambda m: getattr(torch.optim, name)(m.parameters(), **options), counter, 8)
    assert counter.frame_count <= 2


NATIVE = [("SGD", {"momentum": 0.9, "lr": 0.1}), ("AdamW", {"amsgrad": True}), ("AdamW", FUSED), ("NAdam", {})]
SCHEDULED = [("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", FOREACH), ("AdamW", FUSED), ("Adagrad", {})]


@pytest.mark.parametrize("name, options", NATIVE, ids=str)
def test_native_code(name, options):
    trained(lambda m: getattr(torch.optim, name)(m.parameters(), **options), "native", 3)


def _groups(m):
    return [{"params": list(m.a.parameters()), "lr": 0.05, "weight_decay": 0.1},
            {"params": [m.b.bias, *m.c.parameters(), m.unused], "betas": (0.8, 0.9)}]


@pytest.mark.parametrize("options", [{}, FOREACH, FUSED], ids=str)
def test_parameter_groups(options):
    trained(lambda m: torch.optim.Adam(_groups(m), lr=0.01, **options), CompileCounter())


@pytest.mark.parametrize("name, options", [("Adam", {}), ("AdamW", FUSED), ("SGD", {}), ("RMSprop", {})], ids=str)
def test_a_learning_rate_that_is_a_tensor(name, options):
    def between(k, model, opt):
        opt.param_groups[0]["lr"].mul_(0.5)

    counter = CompileCounter()
    trained(lambda m: getattr(torch.optim, name)(m.parameters(), lr=torch.tensor(0.01), **options), counter,
            between=between)
    assert 1 <= counter.frame_count <= 2


@pytest.mark.parametrize("name, options", SCHEDULED, ids=str)
def test_schedules_compile_once_more_at_most(name, options):
    counter = CompileCounter()

    def between(k, model, opt):
        opt.param_groups[0]["lr"] *= 0.9

    trained(lambda m: getattr(torch.optim, name)(m.parameters(), lr=0.01, **options), counter, 8, between)
    assert counter.frame_count <= 2


def test_state_that_is_loaded():
    def between(k, model, opt):
        if k == 2:
            opt.load_state_dict(copy.deepcopy(opt.state_dict()))

    trained(lambda m: torch.optim.Adam(m.parameters(), lr=0.01), CompileCounter(), between=between)


@pytest.mark.parametrize("name, options", [("SparseAdam", {}), ("SGD", {"lr": 0.1})], ids=str)
def test_sparse_gradients(name, options):
    plain = nn.Embedding(10, 3, sparse=True)
    pairs = [(m, getattr(torch.optim, name)(m.parameters(), **options)) for m in (plain, copy.deepcopy(plain))]
    steps = [pairs[0][1].step, framesmith.compile(pairs[1][1].step)]
    for k in range(3):
        for (model, opt), step in zip(pairs, steps):
            opt.zero_grad()
            model(torch.tensor([1, 2, k])).sum().backward()
            step()
        torch.testing.assert_close(pairs[0][0].weight, pairs[1][0].weight)


def test_lbfgs():
    def closure(model, opt):
        def run():
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(X), Y)
            loss.backward()
            return loss

        return run

    model = nn.Linear(4, 2)
    pairs = [(m, torch.optim.LBFGS(m.parameters(), max_iter=4)) for m in (model, copy.deepcopy(model))]
    step = framesmith.compile(pairs[1][1].step, backend="eager")
    for _ in range(2):
        want, got = pairs[0][1].step(closure(*pairs[0])), step(closure(*pairs[1]))
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(pairs[1][0].weight, pairs[0][0].weight)


def _by_norm(model, opt, x, y):
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step()
    return loss


def _by_value(model, opt, x, y):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    opt.step()
    opt.zero_grad(set_to_none=False)
    return loss.detach()


@pytest.mark.parametrize("backend", ["count", "native"])
@pytest.mark.parametrize("program", [_by_norm, _by_value])
@pytest.mark.parametrize("options", [{}, FUSED], ids=str)
def test_a_whole_step(program, options, backend):
    """One graph before the backward, one after it; the second call sees gradients or state that the first did not, then
    the rate varies."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    other = copy.deepcopy(model)
    opt, fast = (torch.optim.AdamW(m.parameters(), lr=0.01, **options) for m in (model, other))
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 10) for o in (opt, fast)]
    counter = CompileCounter() if backend == "count" else None
    step = framesmith.compile(program, backend=counter or backend)
    seen = []
    for _ in range(6):
        torch.testing.assert_close(step(other, fast, X, Y), program(model, opt, X, Y), rtol=1e-5, atol=1e-7)
        same(model, opt, other, fast)
        for s in schedules:
            s.step()
        seen.append(counter.frame_count if counter is not None else 0)
    assert seen[-1] == seen[2]
    gc.collect()


def test_the_update_of_many_parameters_is_a_few_kernels():
    shapes = [(64, 64), (64,), (7, 9, 3), (1,), (130, 257), ()] * 4
    torch.manual_seed(0)
    params = [[nn.Parameter(torch.randn(s, generator=torch.Generator().manual_seed(k))) for k, s in enumerate(shapes)]
              for _ in range(2)]
    opts = [torch.optim.AdamW(ps, lr=0.01) for ps in params]
    for ps in params:
        for k, p in enumerate(ps):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 + k))
    opts[0].step()
    opts[1].step()
    steps = [opts[0].step, framesmith.compile(opts[1].step)]
    for _ in range(2):
        for s in steps:
            s()
    for p, q in zip(*params, strict=True):
        torch.testing.assert_close(q, p, rtol=1e-5, atol=1e-7)
    explained = framesmith.explain(lambda: opts[1].step())()
    assert explained.graph_count == 1 and explained.kernel_count <= 4


def test_what_torch_keeps_from_its_own_compiler_is_captured() -> None:
    """An optimiser whose counts are on the device, not to be recorded by torch.compile: the function behind is
    followed."""
    hidden = torch._disable_dynamo(_single_tensor_adam)

    def update(x: torch.Tensor) -> torch.Tensor:
        p, first, second = x.clone(), torch.zeros_like(x), torch.zeros_like(x)
        hidden([p], [x * 2], [first], [second], [], [torch.ones(())], grad_scale=None, found_inf=None, amsgrad=False,
               has_complex=False,
               beta1=0.9, beta2=0.99, lr=0.1, weight_decay=0.0, eps=1e-8, maximize=False, capturable=False,
               differentiable=False,
               decoupled_weight_decay=False)
        return p

    x = torch.randn(5)
    told = framesmith.explain(update)(x)
    assert told.graph_count == 1 and not told.break_count and not told.refusals, str(told)
    torch.testing.assert_close(told.output, update(x))
