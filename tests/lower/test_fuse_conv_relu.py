"""Convolutions whose bias, residual and ReLU the library computes with them."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.graph.interpreter import run
from framesmith.lower.contractions.fuse_conv_relu import Layer, fuse_conv_relu
from tests.fake.harness import record

BF16, F32 = torch.bfloat16, torch.float32
aten = torch.ops.aten
RELU, ADDED = aten.cudnn_convolution_relu.default, aten.cudnn_convolution_add_relu.default
MEANING = {
    RELU: lambda x, w, b, *window: F.conv2d(x, w, b, *window).relu(),
    ADDED: lambda x, w, z, alpha, b, *window: (F.conv2d(x, w, b, *window) + alpha * z).relu(),
}


def fused(fn, dtype, shape, is_apt=lambda layer: True):
    """The graph of `fn` of an image, a weight of `shape` and its bias, both frozen, and another of each."""
    torch.manual_seed(0)
    inputs = [torch.randn(s, dtype=dtype)
              for s in ((2, shape[1], 6, 6), shape, shape[:1], (2, shape[1], 6, 6), shape, shape[:1])]
    graph, _ = record(fn, inputs)
    for k, node in enumerate(list(graph.nodes)[:6]):
        node.meta["param"] = k not in (0, 3)
    fuse_conv_relu(graph, is_apt)
    graph.lint()
    return graph, inputs


@pytest.mark.parametrize(
    ("fn", "dtype", "shape", "count"),
    [
        (lambda x, w, b, *_: F.conv2d(x, w, b, 2, 1).relu(), BF16, (16, 8, 3, 3), 1),
        (lambda x, w, b, *_: F.conv2d(x, w, b).relu(), torch.float16, (8, 8, 3, 1), 1),
        (lambda x, w, b, *_: F.conv2d(x, w, b).relu(), F32, (24, 16, 3, 3), 1),
        (lambda x, w, b, *_: F.conv2d(x, w, b).relu(), F32, (16, 3, 1, 1), 1),
        (lambda x, w, b, *_: F.conv2d(x, w, b).relu(), F32, (16, 8, 3, 3), 0),
        (lambda x, w, b, *_: F.conv2d(x, w, b).relu(), F32, (16, 20, 3, 3), 0),
        (lambda x, w, b, *_: F.conv2d(x, w, b).relu(), torch.float64, (16, 8, 3, 3), 0),
        (lambda x, w, b, *_: F.conv2d(x, w, b).relu(), BF16, (16, 8, 1, 1), 0),
        (lambda x, w, b, *_: F.conv2d(x, w, b).relu(), BF16, (12, 8, 3, 3), 0),
        (lambda x, w, b, *_: F.conv2d(x, w).relu(), BF16, (16, 8, 3, 3), 0),
        (lambda x, w, b, *_: F.conv2d(x, w, b).sigmoid(), BF16, (16, 8, 3, 3), 0),
        (lambda x, w, b, *_: (y := F.conv2d(x, w, b)) + y.relu(), BF16, (16, 8, 3, 3), 0),
        (lambda x, w, b, *_: F.conv2d(x.repeat(1, 8, 1, 1), w, b, 1, 1, 1, 8).relu(), BF16, (8, 1, 3, 3), 0),
    ],
)
def test_convolutions_are_rectified_by_the_library(fn, dtype, shape, count):
    graph, _ = fused(fn, dtype, shape)
    calls = [n for n in graph.nodes if n.target is RELU]
    assert len(calls) == count and all(len(n.args) == 7 and n.meta["val"].shape[1] == shape[0] for n in calls)


@pytest.mark.parametrize(
    ("fn", "dtype", "added", "plain"),
    [
        (lambda x, w, b, z, *_: (F.conv2d(x, w, b, 1, 1) + z).relu(), F32, 1, 0),
        (lambda x, w, b, z, *_: (z + F.conv2d(x, w, b, 1, 1)).relu(), F32, 1, 0),
        (lambda x, w, b, y, v, c: (F.conv2d(x, w, b, 1, 1) + F.conv2d(y, v, c, 1, 1)).relu(), F32, 1, 1),
        (lambda x, w, b, y, v, c: (F.conv2d(x, w, b, 1, 1) + F.conv2d(y, v, None, 1, 1)).relu(), F32, 1, 1),
        (lambda x, w, b, z, *_: (F.conv2d(x, w, b, 1, 1) + z[:1]).relu(), F32, 0, 1),
        (lambda x, w, b, z, *_: (F.conv2d(x, w, b, 1, 1) + 1.0).relu(), F32, 0, 1),
        (lambda x, w, b, z, *_: torch.add(F.conv2d(x, w, b, 1, 1), z, alpha=2).relu(), F32, 0, 1),
        (lambda x, w, b, z, *_: (y := F.conv2d(x, w, b, 1, 1) + z).relu() * y, F32, 0, 1),
        (lambda x, w, b, z, *_: (F.conv2d(x, w, b, 1, 1) + z).relu(), BF16, 0, 1),
    ],
)
def test_residuals_are_added_by_the_library(fn, dtype, added, plain):
    graph, inputs = fused(fn, dtype, (16, 16, 3, 3))
    calls = [n.target for n in graph.nodes]
    assert (calls.count(ADDED), calls.count(aten.conv2d.default)) == (added, plain)
    for node in graph.nodes:
        node.target = MEANING.get(node.target, node.target)
    torch.testing.assert_close(run(graph, inputs)[0], fn(*inputs), rtol=1e-5, atol=1e-5)


def test_convolutions_that_the_library_is_slow_at_with_a_relu_are_left():
    asked = []
    graph, _ = fused(lambda x, w, b, *_: F.conv2d(x, w, b, 1, (1, 0)).relu(), BF16, (16, 8, 3, 3), asked.append)
    assert asked == [Layer((2, 8, 6, 6), (16, 8, 3, 3), BF16, (1, 1), (1, 0), (1, 1))]
    graph, _ = fused(lambda x, w, b, z, *_: (F.conv2d(x, w, b, 1, 1) + z).relu(), F32, (16, 16, 3, 3), asked.append)
    assert asked[1:] == [Layer((2, 16, 6, 6), (16, 16, 3, 3), F32, (1, 1), (1, 1), (1, 1), True)]
    assert not {RELU, ADDED} & {n.target for n in graph.nodes}
