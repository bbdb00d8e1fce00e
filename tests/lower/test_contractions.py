"""Contractions end to end: rewritten to the template, fused with what follows, against eager."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from framesmith.config import Config
from framesmith.fake import Recorder
from framesmith.lower.contractions import choice
from framesmith.pipeline import compile_graph


def compiled(module: nn.Module, x: torch.Tensor, config: Config):
    """The compiled graph of `module(x)` and its inputs."""
    parameters = dict(module.named_parameters()) | dict(module.named_buffers())
    recorder = Recorder()
    fakes = {name: recorder.input(p, name) for name, p in parameters.items()}
    fake = recorder.input(x, "x")
    with torch.no_grad(), recorder:
        out = torch.func.functional_call(module, fakes, (fake,))
    graph = recorder.finish([out])
    for node in [n for n in graph.nodes if n.op == "placeholder"][: len(parameters)]:
        node.meta["param"] = True
    inputs = (*parameters.values(), x)
    return compile_graph(graph, config, inputs), inputs


@pytest.fixture
def own(monkeypatch, tmp_path):
    """Every contraction by the template."""
    monkeypatch.setattr(choice.Chooser, "__call__", lambda self, request: "own")
    return Config(cache_dir=str(tmp_path))


def check(module: nn.Module, x: torch.Tensor, config: Config) -> None:
    module.eval()
    with torch.no_grad():
        result, inputs = compiled(module, x, config)
        for _ in range(2):
            (actual,) = result.call(inputs)
            expected = module(x)
            assert actual.stride() == expected.stride()
            torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)


class Conv(nn.Module):
    def __init__(self, after, norm: bool, *args, **kwargs) -> None:
        super().__init__()
        self.conv = nn.Conv2d(*args, **kwargs)
        self.norm = nn.BatchNorm2d(args[1]) if norm else nn.Identity()
        self.after = after

    def forward(self, x):
        return self.after(self.norm(self.conv(x)))


CONVOLUTIONS = [
    (2, 3, 17, 16, 3, 2, 1),
    (1, 16, 9, 8, 1, 1, 0),
    (1, 8, 1, 24, 1, 1, 0),
    (1, 96, 7, 576, 1, 1, 0),
    (1, 40, 14, 240, 1, 1, 0),
    (1, 24, 28, 72, 1, 1, 0),
    (3, 5, 8, 70, 5, 1, 2),
    (1, 64, 14, 64, 3, 1, 1),
]


@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("after", [F.relu, F.hardswish, lambda x: x], ids=["relu", "hardswish", "plain"])
def test_convolution(shape, after, own):
    images, c, size, o, k, stride, padding = shape
    check(Conv(after, True, c, o, k, stride, padding), torch.randn(images, c, size, size), own)


@pytest.mark.parametrize("m,k,n", [(1, 7, 5), (5, 10, 20), (13, 33, 100), (128, 64, 192), (7, 20, 1)])
@pytest.mark.parametrize("after", [F.gelu, torch.sigmoid], ids=["gelu", "sigmoid"])
def test_linear(m, k, n, after, own):
    check(nn.Sequential(nn.Linear(k, n), Lambda(after)), torch.randn(m, k), own)


class Lambda(nn.Module):
    def __init__(self, fn) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x)


DEPTHWISE = [
    (24, 9, 3, 1, 1, 1),
    (72, 14, 5, 2, 2, 1),
    (16, 7, 5, 1, 2, 1),
    (64, 12, 3, 1, 0, 1),
    (5, 8, 3, 1, 2, 2),
    (70, 3, 7, 1, 3, 1),
    (32, 11, 3, 2, 4, 3),
]


@pytest.mark.parametrize("c,size,k,stride,padding,dilation", DEPTHWISE)
def test_depthwise_convolution(c, size, k, stride, padding, dilation, own):
    conv = Conv(F.hardswish, True, c, c, k, stride, padding, dilation, c)
    check(conv, torch.randn(2, c, size, size + 1), own)


@pytest.mark.parametrize("c,o", [(4, 8), (16, 48)])
def test_depthwise_convolution_with_several_results_a_channel(c, o, own):
    check(Conv(F.relu, True, c, o, 3, 1, 1, 1, c), torch.randn(1, c, 9, 9), own)


@pytest.mark.parametrize("c,o,groups,stride,dilation", [(8, 32, 2, 1, 1), (24, 48, 3, 2, 1), (16, 80, 4, 1, 2)])
def test_grouped_convolution(c, o, groups, stride, dilation, own):
    check(Conv(F.relu, True, c, o, 3, stride, 1, dilation, groups), torch.randn(2, c, 9, 10), own)


LINES = [(16, 24, 3, 2, 1, 1, 1), (16, 16, 5, 1, 4, 2, 16), (12, 36, 1, 1, 0, 1, 2)]


@pytest.mark.parametrize("c,o,k,stride,padding,dilation,groups", LINES)
def test_convolution_of_a_line(c, o, k, stride, padding, dilation, groups, own):
    module = nn.Sequential(nn.Conv1d(c, o, k, stride, padding, dilation, groups), nn.ReLU(), nn.Conv1d(o, 16, 1))
    check(module, torch.randn(2, c, 31), own)


@pytest.mark.parametrize("c,o", [(48, 144), (24, 88)])
def test_panels_after_the_first_leave_their_tile_alone(c, o, own):
    """A tile's rows are addressed from inside of it: an address before its start let the compiler drop stores to it."""
    module = nn.Sequential(Conv(F.hardswish, True, c, o, 1), Conv(F.hardswish, True, o, o, 5, 1, 2, 1, o))
    check(module, torch.randn(1, c, 14, 14), own)


POOLS = [(3, 2, 1, False), (2, 2, 0, True), (3, 1, 1, False), ((3, 2), (2, 1), (0, 1), False)]


@pytest.mark.parametrize("kernel,stride,padding,ceil", POOLS)
def test_max_pool_of_a_convolution(kernel, stride, padding, ceil, own):
    module = nn.Sequential(nn.Conv2d(3, 24, 3), nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil),
                           nn.Conv2d(24, 8, 3, 1, 1))
    check(module, torch.randn(2, 3, 14, 13), own)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1)

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))) + x)


def test_residual(own):
    check(Residual(), torch.randn(1, 16, 11, 11), own)


class Squeeze(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 1)

    def forward(self, x):
        s = x.mean((2, 3), keepdim=True)
        return x * F.hardsigmoid(self.up(F.relu(self.down(s))))


def test_squeeze_and_excite(own):
    check(Squeeze(), torch.randn(1, 16, 8, 8), own)


def test_a_written_weight_is_seen(own):
    module = nn.Linear(8, 4).eval()
    x = torch.randn(3, 8)
    with torch.no_grad():
        result, inputs = compiled(module, x, own)
        torch.testing.assert_close(result.call(inputs)[0], module(x))
        module.weight.mul_(2)
        module.bias.add_(1)
        torch.testing.assert_close(result.call(inputs)[0], module(x))


def test_bfloat16_rounds_no_worse_than_eager(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 48)).eval()
    x = torch.randn(32, 64)
    with torch.no_grad():
        exact = module(x)
        module, x = module.to(torch.bfloat16), x.to(torch.bfloat16)
        result, inputs = compiled(module, x, Config(cache_dir=str(tmp_path)))
        (actual,) = result.call(inputs)
    assert actual.dtype is torch.bfloat16
    assert (actual.float() - exact).abs().mean() <= (module(x).float() - exact).abs().mean() * 1.05


class Scaled(nn.Module):
    """A convolution of several pictures, times a parameter that is one number for all, or one for each picture."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 8, 3, padding=1)
        self.scale = nn.Parameter(torch.randn(shape))

    def forward(self, x):
        return torch.sigmoid(self.conv(x)) * self.scale


@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 1, 1)])
def test_numbers_that_stand_before_the_tiles(shape, own):
    check(Scaled(*shape), torch.randn(3, 16, 12, 12), own)


LONG = [
    (nn.Linear(20000, 40), (3, 20000)),
    (nn.Conv1d(700, 24, 3), (2, 700, 12)),
    (nn.Conv2d(96, 24, (5, 6)), (1, 96, 9, 9)),
    (nn.Conv2d(5, 24, (70, 40), dilation=2), (1, 5, 145, 90)),
]


@pytest.mark.parametrize("module,shape", LONG, ids=str)
def test_the_errors_of_long_sums_do_not_grow_with_them(module, shape, own):
    torch.manual_seed(0)
    module.reset_parameters()
    module.requires_grad_(False)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    result, inputs = compiled(module, x, own)
    (actual,) = result.call(inputs)
    exact = copy.deepcopy(module).double()(x.double())
    assert ((actual - exact).abs().mean() / exact.std()) < 4e-7
