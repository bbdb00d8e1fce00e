"""Compiling a list of sizes ahead."""

import copy

import pytest
import torch
from torch import nn

import framesmith


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 4))


def test_later_calls_compile_nothing(captures):
    model = framesmith.compile(net().eval())
    made = framesmith.warm_up(model, [(torch.randn(n, 8),) for n in (3, 5, 9)])
    assert made == len(captures) == 2
    for n in (3, 5, 7, 20):
        x = torch.randn(n, 8)
        torch.testing.assert_close(model(x), model._orig_mod(x))
    assert len(captures) == 2 and framesmith.warm_up(model, [(torch.randn(4, 8),)]) == 0


@torch.enable_grad()
def test_training_with_its_backward_and_without_traces(captures):
    plain = net().train()
    model = framesmith.compile(copy.deepcopy(plain))
    before, state = copy.deepcopy(plain.state_dict()), torch.get_rng_state()
    made = framesmith.warm_up(model, [lambda n=n: (torch.randn(n, 8),) for n in (4, 6)])
    assert made == len(captures) >= 1
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    seen, x = len(captures), torch.randn(5, 8)
    for f in (plain, model):
        torch.manual_seed(0)
        f(x).sum().backward()
    assert len(captures) == seen
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)


def test_functions_keywords_and_numbers(captures):
    @framesmith.compile
    def first(x, *, n):
        return x[:n] * 2

    x = torch.randn(12, 3)
    assert framesmith.warm_up(first, [{"x": x, "n": 3}, {"x": x, "n": 4}]) == 2
    assert torch.equal(first(x, n=7), x[:7] * 2) and len(captures) == 2


def test_what_is_not_compiled_is_refused():
    with pytest.raises(TypeError, match="framesmith.compile returned"):
        framesmith.warm_up(nn.Linear(2, 2), [(torch.randn(1, 2),)])
