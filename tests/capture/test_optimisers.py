"""Steps of optimisers inside of captured code, against plain PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import framesmith
from framesmith.testing import CompileCounter

X, Y = torch.linspace(-1, 1, 20).reshape(5, 4), torch.linspace(0, 1, 10).reshape(5, 2)
WHOLE = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    "RMSprop": {"lr": 0.01, "momentum": 0.9}, "Adadelta": {},
    "Rprop": {}, "Adam": {"lr": 0.01, "amsgrad": True}, "AdamW": {}, "Adagrad": {"lr": 0.1, "lr_decay": 0.1},
    "NAdam": {}, "Adamax": {},
}
BROKEN: dict = {"RAdam": {}, "ASGD": {}}


def pair(name, options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    return [(m, getattr(torch.optim, name)(m.parameters(), **options)) for m in (model, copy.deepcopy(model))]


def agree(name, options, backend, calls=5):
    (plain, opt), (mine, fast_opt) = pair(name, options)
    step = framesmith.compile(lambda opt: opt.step(), backend=backend)
    clear = framesmith.compile(lambda opt: opt.zero_grad(), backend="eager")
    for _ in range(calls):
        opt.zero_grad()
        clear(fast_opt)
        assert all(p.grad is None for p in mine.parameters())
        for m in (plain, mine):
            nn.functional.mse_loss(m(X), Y).backward()
        opt.step()
        assert step(fast_opt) is None
        for p, q in zip(plain.parameters(), mine.parameters(), strict=True):
            torch.testing.assert_close(p, q)
            assert q.requires_grad and q.is_leaf and type(q) is nn.Parameter
    state, same = opt.state_dict(), fast_opt.state_dict()
    torch.testing.assert_close(state["state"], same["state"])
    assert state["param_groups"] == same["param_groups"]


@pytest.mark.parametrize("name", WHOLE)
def test_captured_whole(name):
    counter = CompileCounter()
    agree(name, WHOLE[name], counter, 6)
    assert 1 <= counter.frame_count <= 2


@pytest.mark.parametrize("name", BROKEN)
def test_with_breaks(name):
    agree(name, BROKEN[name], "eager")


def test_native_code():
    agree("SGD", WHOLE["SGD"], "native", 3)


def test_a_closure_and_hooks_of_steps():
    def run(opt, calls):
        opt.step()
        return calls

    (plain, opt), (mine, fast_opt) = pair("SGD", {"lr": 0.1})
    fast = framesmith.compile(run, backend="eager")
    seen: list = []
    for m, o in ((plain, opt), (mine, fast_opt)):
        m(X).sum().backward()
        o.register_step_pre_hook(lambda o, args, kwargs: seen.append(("pre", len(args))))
        o.register_step_post_hook(lambda o, args, kwargs: seen.append("post"))
    run(opt, seen)
    want, seen[:] = list(seen), []
    fast(fast_opt, seen)
    assert seen == want
    assert all(map(torch.equal, plain.parameters(), mine.parameters()))


def test_gradients_are_cleared_in_place():
    (model, opt), _ = pair("SGD", {"lr": 0.1})
    model(X).sum().backward()
    grads = [p.grad for p in model.parameters()]
    framesmith.compile(lambda opt: opt.zero_grad(set_to_none=False), backend="eager")(opt)
    assert all(p.grad is g and not g.any() for p, g in zip(model.parameters(), grads, strict=True))


def test_a_training_step_is_left_to_eager():
    def run(model, opt):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(X), Y)
        loss.backward()
        opt.step()
        return loss.item()

    (plain, opt), (mine, fast_opt) = pair("SGD", WHOLE["SGD"])
    fast = framesmith.compile(run, backend="eager")
    for _ in range(3):
        assert fast(mine, fast_opt) == run(plain, opt)
    assert all(map(torch.equal, plain.parameters(), mine.parameters()))


def test_parameters_looked_at_in_grad_mode_are_no_training():
    def run(model, x):
        return x * sum(p.numel() for p in model.parameters() if p.requires_grad)

    model = nn.Linear(4, 2)
    counter = CompileCounter()
    assert torch.equal(framesmith.compile(run, backend=counter, fullgraph=True)(model, X), run(model, X))
    assert counter.frame_count == 1


def test_a_write_to_a_parameter_in_grad_mode_is_eagers_error():
    def run(p):
        p.fill_(1)

    with pytest.raises(RuntimeError, match="leaf Variable"):
        framesmith.compile(run, backend="eager")(nn.Parameter(torch.ones(2)))


def test_tensors_from_outside_as_keys_of_a_dict_from_outside():
    def run(state, a, b, x):
        state[b] = state.get(b, 0) + 1
        return (x * (2 if a in state else 3), state.setdefault(a, 5))

    a, b = torch.ones(1), torch.ones(1)
    fast = framesmith.compile(run, backend="eager")
    for start in ({a: 1}, {}, {b: 4}, {a: 1, b: 2}):
        want, got = dict(start), dict(start)
        assert str(run(want, a, b, X)) == str(fast(got, a, b, X))
        assert want == got and [k is a for k in want] == [k is a for k in got]
