"""Code for sizes that vary is what it is for fixed ones: kernels of our own with what follows them, merged loops,
memory that is used again."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import framesmith
from framesmith.config import Config
from framesmith.fake import Recorder
from framesmith.lower.contractions import choice
from framesmith.pipeline import compile_graph
from framesmith.schedule.memory import MemoryPlan
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Symbol, max_
from framesmith.symbolic.node import symint


def compiled(module: nn.Module, x: torch.Tensor, config: Config, varying: tuple[int, ...]):
    """A function of inputs whose dimensions `varying` have any sizes; and what `explain` would say of it."""
    parameters = dict(module.named_parameters()) | dict(module.named_buffers())
    recorder = Recorder(shape_env=ShapeEnv())
    fakes = {name: recorder.input(p, name) for name, p in parameters.items()}
    env = recorder.shape_env
    shape = tuple(symint(env.new_symbol(n, ("x", d)), env) if d in varying else n for d, n in enumerate(x.shape))
    fake = recorder.input(x, "x", shape=shape)
    with torch.no_grad(), recorder:
        out = torch.func.functional_call(module, fakes, (fake,))
    graph = recorder.finish([out])
    for node in [n for n in graph.nodes if n.op == "placeholder"][: len(parameters)]:
        node.meta["param"] = True
    result = compile_graph(graph, config, (*parameters.values(), x))
    return lambda y: result.call((*parameters.values(), y))[0], result.report


@pytest.fixture(params=["own", "mkldnn", "mkldnn_plain", "aten"])
def chosen(request, monkeypatch, tmp_path):
    """Every contraction by one kernel."""
    monkeypatch.setattr(choice.Chooser, "__call__", lambda self, r: request.param)
    return request.param, Config(cache_dir=str(tmp_path), verify=True)


@pytest.fixture
def own(monkeypatch, tmp_path):
    monkeypatch.setattr(choice.Chooser, "__call__", lambda self, request: "own")
    return Config(cache_dir=str(tmp_path), verify=True)


class Layers(nn.Module):
    """`depth` of inputs, between them `wide`; added to its input."""

    def __init__(self, depth: int, wide: int) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(depth, wide), nn.Linear(wide, depth), nn.LayerNorm(depth)

    def forward(self, x):
        return self.norm(self.down(F.gelu(self.up(x))) + x)


@pytest.mark.parametrize("depth,wide", [(64, 256), (48, 100), (512, 20)])
def test_linear_layers(depth, wide, chosen):
    kernel, config = chosen
    torch.manual_seed(0)
    module = Layers(depth, wide).eval()
    call, report = compiled(module, torch.randn(5, 9, depth), config, (0, 1))
    for batch, length in ((5, 9), (2, 2), (3, 7), (40, 33), (2, 211)):
        x = torch.randn(batch, length, depth)
        torch.testing.assert_close(call(x), module(x).detach(), rtol=2e-5, atol=2e-5)
    if kernel == "own":
        assert not report.externs and report.kernels == 3  # of each layer with what follows it, and of the norm


def test_a_row_does_not_depend_on_how_many_there_are(own):
    """But for how the compiler contracts multiplications and additions in tiles of fewer rows."""
    module = nn.Sequential(nn.Linear(96, 130), nn.Tanh())
    x = torch.randn(60, 96)
    call, _ = compiled(module, x, own, (0,))
    fixed, _ = compiled(copy.deepcopy(module), x, own, ())
    whole = call(x).clone()
    torch.testing.assert_close(whole, fixed(x), rtol=1e-6, atol=1e-6)
    for rows in range(2, 60):
        torch.testing.assert_close(call(x[:rows]), whole[:rows], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("rank", [1, 2])
def test_channels_of_a_dynamic_input_are_those_of_the_weight(rank, groups, chosen):
    """All sizes of an input are symbols; that the channels are the weight's is a guard."""
    config = dataclasses.replace(chosen[1], dynamic=True)
    convolution = (nn.Conv1d, nn.Conv2d)[rank - 1](3, 9, 3, 2, 1, groups=groups).eval()
    call, _ = compiled(convolution, torch.randn(2, 3, *[12] * rank), config, tuple(range(rank + 2)))
    for shape in ((2, 3, *[12] * rank), (5, 3, *[17] * rank)):
        x = torch.randn(shape)
        torch.testing.assert_close(call(x), convolution(x).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("between", [
    lambda x: F.adaptive_avg_pool2d(x, 2), lambda x: x.sort(3)[0],
    lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
])
def test_operators_of_pytorch_between_convolutions(between, own):
    """Our convolutions lay out channels innermost, and so may PyTorch's operator lay out its result."""
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 1)

        def forward(self, x):
            return self.last(between(self.first(x)))

    module = Model()
    call, _ = compiled(module, torch.randn(2, 16, 6, 8), own, (0, 2, 3))
    for shape in ((2, 16, 6, 8), (3, 16, 9, 5)):
        x = torch.randn(shape)
        torch.testing.assert_close(call(x), module(x).detach(), rtol=1e-5, atol=1e-5)


class Attention(nn.Module):
    def __init__(self, causal: bool, masked: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.causal, self.masked = nn.Linear(64, 192), nn.Linear(64, 64), causal, masked

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, 4, 16).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mask = (x[:, None, :1, :1] > x[:, None, None, :, 0]) if self.masked else None
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        return self.out(out.transpose(1, 2).reshape(batch, length, 64)) + x


@pytest.mark.parametrize("causal,masked", [(True, False), (False, True), (False, False)])
def test_attention(causal, masked, own):
    module = Attention(causal, masked).eval()
    call, report = compiled(module, torch.randn(3, 40, 64), own, (0, 1))
    assert report.externs == ("framesmith::attention",)
    for batch, length in ((3, 40), (2, 2), (7, 17), (2, 600)):
        x = torch.randn(batch, length, 64)
        if masked:
            x[:, :, 0] = torch.arange(length).neg()
        torch.testing.assert_close(call(x), module(x).detach(), rtol=2e-5, atol=2e-5)


def test_memory_is_used_again():
    n, m = Symbol("n", 2), Symbol("m", 2)
    plan = MemoryPlan()
    plan.take("static", 128)
    plan.take_slot("a", 64 * n)
    plan.take_slot("b", 64 * n * m)
    plan.give_slot("a")
    plan.take_slot("c", 64 * n)
    plan.give_slot("b")
    plan.take_slot("d", 128 * n * m)
    plan.give_slot("d")
    plan.take_slot("e", 64 * m * m)
    plan.place_slots()
    assert plan.offset["static"] == 0 and plan.offset["a"] == plan.offset["c"] == 128
    assert plan.offset["b"] is plan.offset["d"] is plan.offset["e"] is 64 * n + 128
    assert plan.size is max_(128 * n * m, 64 * m * m) + 64 * n + 128


def test_dimensions_side_by_side_are_one_loop(own):
    class Pointwise(nn.Module):
        def forward(self, x):
            return torch.sigmoid(x) * 2 + x

    call, report = compiled(Pointwise(), torch.randn(4, 5, 32), own, (0, 1))
    assert report.source.count("for (i64 i") == 1 and "live" not in report.source.split("using namespace fs;")[1]
    for shape in ((4, 5, 32), (2, 2, 32), (30, 40, 32)):
        x = torch.randn(shape)
        torch.testing.assert_close(call(x), Pointwise()(x))


def test_a_row_of_a_table_for_each_column_is_added_in_the_loop_of_all(own):
    """One reads rows of two dimensions, the other of their product: the longer is split."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Parameter(torch.randn(50, 32)), nn.LayerNorm(32)

        def forward(self, x):
            return self.norm(x + self.table[:x.shape[1]])

    module = Positions()
    call, report = compiled(module, torch.randn(4, 5, 32), own, (0, 1))
    assert report.kernels == 1
    for shape in ((4, 5, 32), (2, 50, 32), (9, 2, 32)):
        x = torch.randn(shape)
        torch.testing.assert_close(call(x), module(x).detach(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kernel", ["own", "aten"])
def test_training(kernel, monkeypatch, captures):
    monkeypatch.setattr(choice.Chooser, "__call__", lambda self, request: kernel)
    monkeypatch.setenv("FRAMESMITH_CACHE", "0")
    framesmith.reset()
    plain = nn.Sequential(nn.Linear(64, 64), Attention(True, False))
    fast = copy.deepcopy(plain)
    step = framesmith.compile(fast, dynamic=True)
    for shape in ((3, 40, 64), (2, 2, 64), (5, 130, 64)):
        x = torch.randn(shape)
        for net, call in ((plain, plain), (fast, step)):
            net.zero_grad()
            call(x).square().sum().backward()
        for p, q in zip(plain.parameters(), fast.parameters()):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-3)
    assert len(captures) == 1


class Images(nn.Module):
    def __init__(self, *args, **kwargs) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(*args, **kwargs), nn.BatchNorm2d(args[1])

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


CONVOLUTIONS = {
    "stem": (lambda: Images(3, 32, 7, 2, 3), 3),
    "three by three": (lambda: Images(16, 24, 3, 1, 1, bias=False), 16),
    "one by one": (lambda: Images(16, 64, 1), 16),
    "strided": (lambda: Images(16, 40, 1, 2), 16),
    "dilated": (lambda: Images(8, 32, 3, 1, 2, 2), 8),
    "grouped": (lambda: Images(16, 64, 3, 1, 1, groups=2), 16),
    "depthwise": (lambda: Images(24, 24, 3, 2, 1, groups=24), 24),
    "residual": (lambda: Residual(), 16),
}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.skip = Images(16, 32, 3, 2, 1), Images(32, 32, 3, 1, 1), Images(16, 32, 1, 2)

    def forward(self, x):
        return F.max_pool2d(F.relu(self.second(self.first(x)) + self.skip(x)), 3, 2, 1).mean((2, 3))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, own):
    make, channels = CONVOLUTIONS[name]
    module = make().eval()
    call, report = compiled(module, torch.randn(2, channels, 20, 20), own.with_(dynamic=True), (0, 2, 3))
    assert not {"aten::conv2d", "aten::convolution"} & {*report.externs}
    for images, h, w in ((2, 20, 20), (3, 15, 33), (5, 8, 9)):
        x = torch.randn(images, channels, h, w)
        torch.testing.assert_close(call(x), module(x).detach(), rtol=2e-5, atol=2e-5)


def test_signals(own):
    module = nn.Sequential(nn.Conv1d(12, 32, 5, 2, 2), nn.GELU()).eval()
    call, report = compiled(module, torch.randn(2, 12, 40), own.with_(dynamic=True), (0, 2))
    assert not report.externs
    for images, width in ((2, 40), (3, 77), (9, 6)):
        x = torch.randn(images, 12, width)
        torch.testing.assert_close(call(x), module(x).detach(), rtol=2e-5, atol=2e-5)
