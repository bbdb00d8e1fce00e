"""Passes of a CUDA device rewrite graphs of varying sizes as those of fixed ones; the same graph is right at others."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.fake import Recorder
from framesmith.graph.interpreter import run
from framesmith.lower.contractions.fuse_conv_relu import Layer, fuse_conv_relu
from framesmith.lower.contractions.libraries import choose_library_calls
from framesmith.lower.contractions.merge_parallel_matmuls import merge_parallel_matmuls
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.node import symint

aten = torch.ops.aten
MEANING = {
    aten.cudnn_convolution_relu.default: lambda x, w, b, *window: F.conv2d(x, w, b, *window).relu(),
    aten.cudnn_convolution_add_relu.default:
        lambda x, w, z, alpha, b, *window: (F.conv2d(x, w, b, *window) + alpha * z).relu(),
}


def recorded(fn, x, varying, *parameters, least=1):
    """The graph of `fn` of an input whose sizes at `varying` are symbols of at least `least`, and of parameters."""
    recorder = Recorder(shape_env=ShapeEnv())
    env = recorder.shape_env
    shape = tuple(symint(env.new_symbol(n, ("x", d), lo=least, specialise=False), env) if d in varying else n
                  for d, n in enumerate(x.shape))
    fakes = [recorder.input(x, "x", shape=shape), *(recorder.input(p, f"p{k}") for k, p in enumerate(parameters))]
    with torch.no_grad(), recorder:
        graph = recorder.finish(list(fn(*fakes)))
    for node in list(graph.nodes)[1:1 + len(parameters)]:
        node.meta["param"] = True
    return graph


def right_at(graph, fn, inputs, parameters):
    for node in graph.nodes:
        node.target = MEANING.get(node.target, node.target)
    for x in inputs:
        for got, want in zip(run(graph, (x, *parameters)), fn(x, *parameters), strict=True):
            assert got.shape == want.shape
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def targets(graph):
    return [n.target for n in graph.nodes if n.op == "call_function"]


def layers(x, w, b, v):
    return F.linear(x, w, b), x @ v, F.linear(torch.relu(x[0]), w)


@pytest.mark.parametrize(("least", "layers_left"), [(1, 0), (0, 2)])
def test_layers_are_products_of_matrices_unless_they_may_be_empty(least, layers_left):
    x, *parameters = torch.randn(3, 5, 16), torch.randn(24, 16), torch.randn(24), torch.randn(16, 8)
    graph = recorded(layers, x, (0, 1), *parameters, least=least)
    choose_library_calls(graph)
    graph.lint()
    found = targets(graph)
    assert found.count(aten.linear.default) == layers_left
    assert layers_left or found.count(aten.mm.default) + found.count(aten.addmm.default) == 3
    right_at(graph, layers, (x, torch.randn(1, 7, 16), torch.randn(4, 1, 16)), parameters)


def test_a_column_times_a_row_is_a_multiplication():
    def outer(x):
        return (x.unsqueeze(-1) @ x.unsqueeze(-2),)

    graph = recorded(outer, torch.randn(3, 5), (0, 1), least=0)
    choose_library_calls(graph)
    assert aten.mul.Tensor in targets(graph) and aten.matmul.default not in targets(graph)
    right_at(graph, outer, (torch.randn(2, 4), torch.randn(0, 1)), ())


def test_layers_that_read_one_value_are_merged():
    def three(x, q, k, v, b):
        x, q, k, v = (t.to(torch.bfloat16) for t in (x, q, k, v))
        return tuple(y.float() for y in (F.linear(x, q, b.to(torch.bfloat16)), F.linear(x, k), F.linear(x, v)))

    x, *parameters = torch.randn(3, 5, 16), *(torch.randn(n, 16) for n in (16, 8, 24)), torch.randn(16)
    graph = recorded(three, x, (0, 1), *parameters)
    choose_library_calls(graph)
    merge_parallel_matmuls(graph)
    graph.lint()
    assert [n.meta["val"].shape[1] for n in graph.nodes if n.target is aten.addmm.default] == [48]
    right_at(graph, three, (x, torch.randn(2, 1, 16)), parameters)


def block(x, w, b, v, c):
    y = F.conv2d(x, w, b, 1, 1).relu()
    return (F.conv2d(y, v, c, 1, 1) + x).relu(), F.conv2d(x, w, b, 2, 1).relu()


@pytest.mark.parametrize(("least", "counts"), [(1, (2, 1)), (0, (0, 0))])
def test_convolutions_with_a_relu_are_one_call_unless_images_may_be_empty(least, counts):
    asked = []

    def ask(layer):
        asked.append(layer)
        return True

    torch.manual_seed(0)
    x, *parameters = torch.randn(3, 16, 9, 7), *(torch.randn(s) / 8 for s in ((16, 16, 3, 3), (16,)) * 2)
    graph = recorded(block, x, (0, 2, 3), *parameters, least=least)
    fuse_conv_relu(graph, ask)
    graph.lint()
    found = targets(graph)
    assert tuple(map(found.count, MEANING)) == counts
    assert all(layer == Layer((3, 16, 9, 7), (16, 16, 3, 3), torch.float32, layer.stride, (1, 1), (1, 1), layer.added)
               for layer in asked) and len(asked) == sum(counts)
    right_at(graph, block, (x, torch.randn(1, 16, 4, 12)), parameters)
