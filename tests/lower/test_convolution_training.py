"""Convolutions as training's graphs have them: the operators against float64, and the graphs that they come into."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import framesmith
from framesmith import pipeline
from framesmith.config import Config
from framesmith.lower.contractions.choice import CANDIDATES, Chooser
from framesmith.lower.contractions.pack_linear import Request, choose_contractions

library = torch.ops.framesmith
aten = torch.ops.aten
FORMS = [  # images, channels, height, width, results, kernel, stride, padding, dilation, groups
    (2, 3, 17, 19, 8, 3, 3, 1, 1, 1, 1, 1, 1, 1), (1, 6, 9, 8, 4, 3, 2, 2, 1, 0, 2, 1, 2, 2),
    (2, 8, 7, 7, 20, 1, 1, 1, 1, 0, 0, 1, 1, 1), (3, 5, 33, 40, 5, 5, 3, 2, 3, 4, 1, 2, 1, 5),
    (1, 16, 30, 30, 33, 7, 7, 2, 2, 3, 3, 1, 1, 1), (1, 40, 5, 5, 50, 3, 3, 1, 1, 1, 1, 1, 1, 1),
    (2, 6, 9, 9, 12, 3, 3, 1, 1, 1, 1, 1, 1, 6), (1, 100, 3, 2, 300, 3, 3, 1, 1, 2, 2, 1, 1, 1),
    (2, 24, 40, 40, 24, 5, 5, 2, 2, 2, 2, 1, 1, 24), (1, 4, 3, 3, 4, 3, 3, 1, 1, 5, 6, 1, 1, 4),
    (1, 16, 20, 20, 16, 3, 3, 3, 4, 0, 1, 2, 3, 16),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def exact_gradients(tangent, x, weight, window, groups):
    mask = (True, True, False)
    return aten.convolution_backward(tangent.double(), x.double(), weight.double(), None, *window, False, (0, 0),
                                     groups, mask)[:2]


@pytest.mark.parametrize("threads", (1, 3))
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_operators(form, threads) -> None:
    n, c, h, w, o, kh, kw, *rest, groups = form
    window = tuple(rest[i : i + 2] for i in (0, 2, 4))
    x, weight, bias = torch.randn(n, c, h, w), torch.randn(o, c // groups, kh, kw), torch.randn(o)
    exact = aten.convolution(x.double(), weight.double(), bias.double(), *window, False, (0, 0), groups)
    tangent = torch.randn(exact.shape)
    dx, dw = exact_gradients(tangent, x, weight, window, groups)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours = (
            library.convolution(x, weight, bias, *window, groups),
            library.convolution_images(tangent, weight, x.shape, *window, groups),
            library.convolution_weights(tangent, x, weight.shape, *window, groups),
        )  # fmt: skip
    finally:
        torch.set_num_threads(before)
    for actual, expected in zip(ours, (exact, dx, dw), strict=True):
        assert (actual - expected).abs().max() <= 1e-6 * expected.abs().max()


def test_the_errors_of_long_sums_do_not_grow_with_them() -> None:
    x, tangent = torch.rand(4, 3, 70, 70), torch.rand(4, 8, 70, 70)
    ours = library.convolution_weights(tangent, x, (8, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1)
    exact = exact_gradients(tangent, x, torch.zeros(8, 3, 3, 3), ((1, 1),) * 3, 1)[1]
    assert ((ours - exact).abs().mean() / exact.mean()) < 2e-7


KINDS = ("convolution", "convolution images", "convolution weights")


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_measured_and_agrees(kind) -> None:
    chooser = Chooser(Config(packing=False), {})
    for shape in ((2, 16, 30, 30, 24, 3, 3, 1, 1, 1, 1, 1, 1, 1), (1, 300, 9, 9, 200, 3, 3, 1, 1, 1, 1, 1, 1, 1)):
        request = Request(kind, torch.float32, shape)
        results = [run() for run in CANDIDATES[kind](request).values()]
        theirs = results[0] if torch.is_tensor(results[0]) else next(t for t in results[0] if t is not None)
        torch.testing.assert_close(results[1], theirs)
        assert chooser(request) in ("aten", "own")
    assert not chooser.measured  # each is far from the middle
    assert chooser(Request(kind, torch.float32, (1, 64, 16, 16, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1))) in ("aten", "own")
    assert len(chooser.measured) == 1


@pytest.mark.parametrize("own", [KINDS, ("convolution weights",), ("convolution images",)], ids=str)
@pytest.mark.parametrize("bias", (False, True))
def test_training_as_eager(own, bias, tmp_path, monkeypatch) -> None:
    layers = nn.Conv2d(3, 8, 3, 2, 1, bias=bias), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8,
                                                                       bias=bias), nn.Conv2d(8, 5, 1, bias=bias)
    module = nn.Sequential(*layers)
    x = torch.randn(2, 3, 20, 20, requires_grad=True)
    leaves = [x, *module.parameters()]
    expected = torch.autograd.grad(module(x).square().mean(), leaves)
    seen: list[str] = []

    def rewrite(graph, choose):
        choose_contractions(graph, lambda request: "own" if request.kind in own else "aten")
        seen.extend(str(n.target) for n in graph.nodes if n.op == "call_function")

    monkeypatch.setattr(pipeline, "choose_contractions", rewrite)
    compiled = framesmith.compile(lambda x: module(x).square().mean(), options={"cache_dir": str(tmp_path)})
    torch.testing.assert_close(torch.autograd.grad(compiled(x), leaves), expected, rtol=1e-4, atol=1e-7)
    counts = [seen.count(f"framesmith.{kind.replace(' ', '_')}.default") for kind in KINDS]
    assert counts == [2 * ("convolution" in own), 2 * ("convolution images" in own), 3 * ("convolution weights" in own)]
