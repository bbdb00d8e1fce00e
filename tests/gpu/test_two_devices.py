"""Two devices: models over both, copies between peers, one function for either."""

import warnings

import pytest
import torch
from torch import nn

import framesmith

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")]


class Halves(nn.Module):
    """A model whose first half is on one device and whose second is on the other."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64)).to("cuda:0")
        self.second = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to("cuda:1")

    def forward(self, x):
        return self.second(self.first(x).to("cuda:1"))


def strict():
    warnings.filterwarnings("error", message="framesmith")
    framesmith.reset()


@pytest.mark.parametrize("training", [False, True])
def test_a_model_over_two_devices(training):
    torch.manual_seed(0)
    model = Halves().train(training)
    x = torch.randn(16, 32, device="cuda:0")
    with warnings.catch_warnings(), torch.set_grad_enabled(training):
        strict()
        compiled = framesmith.compile(model)
        for _ in range(3):
            results = []
            for call in (model, compiled):
                model.zero_grad()
                y = call(x)
                assert y.device == torch.device("cuda", 1)
                if training:
                    y.square().mean().backward()
                results.append([y.detach(), *[p.grad for p in model.parameters() if training]])
            torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_copies_between_peers():
    def fn(x):
        y = (x * 2).to("cuda:1", non_blocking=True) + 1
        return y.exp().to(x.device) + x, y

    x = torch.randn(1 << 20, device="cuda:0")
    with warnings.catch_warnings():
        strict()
        compiled = framesmith.compile(fn)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), fn(x))


def test_one_function_for_either_device():
    def fn(x, w):
        return torch.softmax((x @ w).relu() * 2, -1)

    with warnings.catch_warnings():
        strict()
        compiled = framesmith.compile(fn)
        for index in (0, 1, 0, 1):
            x, w = (torch.randn(8, 8, device=f"cuda:{index}") for _ in range(2))
            y = compiled(x, w)
            assert y.device == x.device and torch.cuda.current_device() == 0
            torch.testing.assert_close(y, fn(x, w), rtol=1e-4, atol=1e-5)


def test_a_device_that_is_not_the_current_one():
    def fn(x):
        return torch.dropout(x.sin() + 1, 0.5, True), x.cumsum(0), x.sum()

    x = torch.randn(4096, device="cuda:1")
    with warnings.catch_warnings():
        strict()
        compiled = framesmith.compile(fn, options={"numerics": "eager"})
        for _ in range(2):
            torch.manual_seed(3)
            expected = fn(x)
            torch.manual_seed(3)
            torch.testing.assert_close(compiled(x), expected)


def test_each_devices_stream_is_followed():
    x = torch.randn(1 << 18, device="cuda:1")
    side = torch.cuda.Stream("cuda:1")
    framesmith.reset()
    compiled = framesmith.compile(lambda x: (x * 2).exp())
    compiled(x)
    torch.cuda.synchronize(1)
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        y = compiled(x)
        assert not side.query()
    side.synchronize()
    torch.testing.assert_close(y, (x * 2).exp())


def test_guards_of_the_current_device():
    def fn():
        return torch.arange(5, device="cuda") * 2

    framesmith.reset()
    compiled = framesmith.compile(fn)
    for index in (0, 1, 0, 1):
        with torch.cuda.device(index):
            assert compiled().device.index == index


def test_tensors_of_two_devices_in_one_operator_are_eagers_error():
    a, b = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
    framesmith.reset()
    compiled = framesmith.compile(lambda a, b: a + b)
    for call in (lambda a, b: a + b, compiled):
        with pytest.raises(RuntimeError, match="two devices"):
            call(a, b)


def test_a_guard_inside():
    def fn(x):
        y = x * 2
        with torch.cuda.device(1):
            z = torch.ones(3, device="cuda") + 1
        return y, z

    x = torch.randn(3, device="cuda:0")
    framesmith.reset()
    compiled = framesmith.compile(fn)
    for _ in range(2):
        got, expected = compiled(x), fn(x)
        assert [t.device for t in got] == [t.device for t in expected]
        torch.testing.assert_close(got, expected)
