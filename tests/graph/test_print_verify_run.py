"""A graph prints, verifies and runs."""

import pytest
import torch
from torch.fx import Graph

from framesmith.graph.interpreter import bind_symbols, run
from framesmith.graph.printer import print_graph
from framesmith.graph.verifier import verify
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import eq
from framesmith.symbolic.node import symint
from framesmith.util.errors import GuardError, VerifyError

aten = torch.ops.aten


class Val:
    """Stands in for a fake tensor."""

    def __init__(self, *shape, dtype=torch.float32):
        self.shape, self.dtype, self.device = shape, dtype, torch.device("cpu")
        self.stride = None


def small_graph():
    graph = Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    x.meta["val"], w.meta["val"] = Val(2, 3), Val(4, 3)
    linear = graph.call_function(aten.linear.default, (x, w))
    linear.meta.update(val=Val(2, 4), stack=(("/home/me/model.py", 12, "forward"),))
    half = graph.call_function(aten.to.dtype, (linear, torch.bfloat16))
    half.meta["val"] = Val(2, 4, dtype=torch.bfloat16)
    graph.output((half, [x], None))
    return graph


def test_text():
    assert print_graph(small_graph()) == (
        "graph(x: f32[2, 3], w: f32[4, 3]):\n"
        "  linear_default = aten.linear(x, w)  # f32[2, 4]  model.py:12 forward\n"
        "  to_dtype = aten.to.dtype(linear_default, bf16)  # bf16[2, 4]\n"
        "  return (to_dtype, [x], None)\n"
    )


def test_runs():
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    half, (same,), nothing = run(verify(small_graph(), values=True, lowered=True), [x, w])
    assert torch.equal(half, torch.nn.functional.linear(x, w).bfloat16())
    assert same is x
    assert nothing is None
    with pytest.raises(TypeError):
        run(small_graph(), [x])


def test_runs_a_torch_level_graph():
    module = torch.nn.Sequential(torch.nn.Linear(3, 4))
    graph = Graph()
    y = graph.call_module("0", (graph.placeholder("x"),))
    bias = graph.get_attr("0.bias")
    graph.output(graph.call_method("sub", (y, bias), {"alpha": 2}))
    x = torch.randn(2, 3)
    assert torch.allclose(run(graph, [x], module), module(x) - 2 * module[0].bias)
    with pytest.raises(VerifyError):
        verify(graph, lowered=True)


def test_symbolic_sizes_are_read_off_the_inputs():
    env = ShapeEnv()
    a, b = env.new_symbol(4, "x.size()[0]"), env.new_symbol(4, "y.size()[0]")
    n, m = symint(a, env), symint(b, env)
    env.guard(eq(a, b))
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    x.meta["val"], y.meta["val"] = Val(n, 3), Val(m)
    full = graph.call_function(aten.full.default, ([a * 2, b + 1], 1.0))
    full.meta["val"] = Val(2 * n, m + 1)
    graph.output((full, m // 2))
    verify(graph, values=True)
    got, half = run(graph, [torch.ones(6, 3), torch.ones(6)])
    assert got.shape == (12, 7)
    assert half == 3
    assert bind_symbols(graph, [torch.ones(6, 3), torch.ones(6)])[a] == 6
    with pytest.raises(GuardError):
        run(graph, [torch.ones(6, 3), torch.ones(5)])
    assert "f32[s0, 3]" in print_graph(graph)


def test_verifier_refuses():
    graph = Graph()
    x = graph.placeholder("x")
    with pytest.raises(VerifyError, match="ends with"):
        verify(graph)
    y = graph.call_function(aten.neg.default, (x,))
    z = graph.call_function(aten.exp.default, (y,))
    graph.output((z,))
    verify(graph)
    with pytest.raises(VerifyError, match="meta"):
        verify(graph, values=True)
    z.append(y)
    with pytest.raises(VerifyError, match="before it is defined"):
        verify(graph)


def test_verifier_finds_unbound_symbols():
    env = ShapeEnv()
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = Val(3)
    y = graph.call_function(aten.neg.default, (x,))
    y.meta["val"] = Val(symint(env.new_symbol(7, "?"), env))
    graph.output((y,))
    with pytest.raises(VerifyError, match="s0"):
        verify(graph, values=True)
