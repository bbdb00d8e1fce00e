"""Purity, dead code, common subexpressions."""

import operator

import pytest
import torch
from torch.fx import Graph

from framesmith.graph.cse import cse
from framesmith.graph.dce import dce
from framesmith.graph.interpreter import run
from framesmith.graph.purity import EFFECT, PURE, RANDOM, is_view, kind_of
from framesmith.graph.verifier import verify

aten = torch.ops.aten


@pytest.fixture
def graph():
    return Graph()


def names(graph):
    return [n.name for n in graph.nodes]


@pytest.mark.parametrize(("target", "kind"), [
    (aten.add.Tensor, PURE), (aten.add_.Tensor, EFFECT), (aten.rand.default, RANDOM), (aten.copy_.default, EFFECT),
    (aten.view.default, PURE), (operator.getitem, PURE), (operator.setitem, EFFECT), (print, EFFECT),
    (torch.relu, EFFECT),
    (aten.add.out, EFFECT), (aten.bernoulli.default, RANDOM),
])
def test_kinds(target, kind):
    assert kind_of(target) == kind


def test_views():
    assert is_view(aten.view.default)
    assert not is_view(aten.add.Tensor)
    assert not is_view(aten.add_.Tensor)


def test_dce_keeps_writes_and_random_draws(graph):
    x = graph.placeholder("x")
    y = graph.call_function(aten.relu.default, (x,))
    graph.call_function(aten.neg.default, (graph.call_function(aten.exp.default, (y,)),))
    graph.call_function(aten.rand.default, ([2],))
    graph.call_function(aten.copy_.default, (x, y))
    graph.output((y,))
    assert dce(graph) == 2
    assert names(graph) == ["x", "relu_default", "rand_default", "copy__default", "output"]
    assert dce(graph) == 0
    verify(graph)


def test_dropout_that_is_off_is_pure(graph):
    x = graph.placeholder("x")
    graph.call_function(aten.dropout.default, (x, 0.5, False))
    graph.call_function(aten.dropout.default, (x, 0.5, True))
    graph.output((x,))
    assert dce(graph) == 1


def test_cse_shares_equal_calls_and_their_users(graph):
    x = graph.placeholder("x")
    a, b = (graph.call_function(aten.add.Tensor, (x, 1)) for _ in range(2))
    c, d = (graph.call_function(aten.mul.Tensor, (v, v), {}) for v in (a, b))
    graph.output((graph.call_function(aten.sub.Tensor, (c, d)),))
    assert cse(graph) == 2
    verify(graph)
    assert run(graph, [torch.ones(2)])[0].tolist() == [0, 0]


def test_cse_tells_types_apart(graph):
    x = graph.placeholder("x")
    calls = [graph.call_function(aten.add.Tensor, (x, value))
             for value in (1, 1.0, True, 0.0, -0.0, 0j, complex(0.0, -0.0))]
    graph.output(tuple(graph.call_function(aten.neg.default, (c,)) for c in calls))
    assert cse(graph) == 0


def test_cse_does_not_cross_a_write(graph):
    x = graph.placeholder("x")
    a = graph.call_function(aten.neg.default, (x,))
    graph.call_function(aten.add_.Tensor, (x, 1))
    b = graph.call_function(aten.neg.default, (x,))
    graph.output((graph.call_function(aten.sub.Tensor, (a, b)),))
    assert cse(graph) == 0
    assert run(graph, [torch.zeros(1)])[0].tolist() == [1]


def test_two_outputs_stay_two_tensors(graph):
    x = graph.placeholder("x")
    a, b = (graph.call_function(aten.clone.default, (x,)) for _ in range(2))
    graph.output((a, graph.call_function(aten.view.default, (b, [2]))))
    assert cse(graph) == 0


def test_random_draws_are_not_shared(graph):
    draws = [graph.call_function(aten.rand.default, ([2],)) for _ in range(2)]
    graph.output((graph.call_function(aten.sub.Tensor, tuple(draws)),))
    assert cse(graph) == 0
