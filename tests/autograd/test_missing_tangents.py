"""The backward of some results, derived from that of all, is the one that is traced for them."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import framesmith
from framesmith.autograd import node
from framesmith.autograd.joint import trace_joint
from framesmith.autograd.missing_tangents import bits, without_tangents
from framesmith.autograd.operators import evaluated
from framesmith.autograd.partition import backward_of
from framesmith.graph.traversal import placeholders_of


def one_computed_from_the_other(x, w):
    y = (x * w).sin()
    return y, y.exp()


def of_one_norm(x, w):
    h = F.layer_norm(x @ w, (4,))
    return h.tanh(), (h * x).relu()


def halves(x, w):
    p, q = (x @ w).split(2, -1)
    return p.sin(), q.cos()


def of_nothing_in_common(x, w):
    return x @ w, x.sin()


def written_in_between(x, w):
    y = x @ w
    z = y.sigmoid()
    y = y.clone()
    y[0] = 3.0
    return y, z * w, torch.where(y > 0, y, w)


def views(x, w):
    return x.cumsum(0) * w, x.view(-1)[:4] + w[0], x.t() @ w, x.unsqueeze(0).expand(3, 4, 4)


def joined(x, w):
    p, q = x.chunk(2)
    return torch.cat([p * w[:2], q]), q.abs(), torch.stack([x, w])


def read_often(x, w):
    return x * w + x, x.exp() * x, F.softmax(x, -1) @ w


def two_results_of_an_operator(x, w):
    v, m = torch.var_mean(x @ w, -1)
    return v * 2, m * 3


def a_sum_of_an_expanded_gradient(x, w):
    h = (x @ w).sin()
    return h * w, h.sum()


def _compiled(program, monkeypatch):
    made = []

    class Differentiable(node.Differentiable):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr("framesmith.graph_compiler.Differentiable", Differentiable)
    torch.manual_seed(0)
    x, w = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
    framesmith.compile(program, backend="eager", fullgraph=True)(x, w)
    return made[0]


def _patterns(count):
    return [p for p in itertools.product((False, True), repeat=count) if any(p) and not all(p)]


def _values(graph):
    """Some elements for each input, in its layout."""
    vals = [n.meta["val"] for n in placeholders_of(graph)]
    made = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) for v in vals]
    return [m.copy_(torch.rand(m.shape) + 0.1 if m.is_floating_point() else torch.ones(m.shape)) for m in made]


@pytest.mark.parametrize("program", [one_computed_from_the_other, of_one_norm, halves, of_nothing_in_common,
                                     written_in_between, views, joined, read_often])
def test_it_is_the_traced_one(program, monkeypatch):
    whole = _compiled(program, monkeypatch)
    joint, parts = whole.joint, whole.parts
    values, count = _values(parts.backward), len(joint.differentiable)
    for there in _patterns(count):
        graph, reads = without_tangents(parts.backward, joint, there)
        traced = trace_joint(whole.graph, there, list(joint.wanted))
        other, expected = backward_of(traced, parts, there, (True,) * len(joint.wanted))
        assert reads == expected
        assert set(node._saved(joint, bits(there))) == set(node._saved(traced))
        assert {k for k, by in joint.read.items() if by & bits(there)} == set(traced.read)
        given = [*itertools.compress(values[:-count], reads), *values[-count:]]
        for a, b in zip(evaluated(graph, given), evaluated(other, given), strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b) and a.stride() == b.stride()


@pytest.mark.parametrize("program, there", [(two_results_of_an_operator, (True, False)),
                                            (a_sum_of_an_expanded_gradient, (False, True))])
def test_it_is_traced_where_a_formula_or_a_layout_would_differ(program, there, monkeypatch):
    whole = _compiled(program, monkeypatch)
    assert without_tangents(whole.parts.backward, whole.joint, there) is None


@pytest.mark.parametrize("program", [one_computed_from_the_other, of_one_norm, halves, joined, read_often,
                                     two_results_of_an_operator, a_sum_of_an_expanded_gradient])
def test_gradients_are_those_of_eager(program):
    def gradients(f, there):
        torch.manual_seed(0)
        x, w = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
        results = f(x, w)
        sum(r.square().sum() for r in itertools.compress(results, there)).backward()
        return x.grad, w.grad

    count = len(program(torch.ones(4, 4), torch.ones(4, 4)))
    compiled = framesmith.compile(program, backend="eager", fullgraph=True)
    # all of them first: its graph is changed by passes then
    for there in [(True,) * count, *_patterns(count)]:
        for a, b in zip(gradients(compiled, there), gradients(program, there), strict=True):
            assert (a is None) == (b is None) and (a is None or torch.equal(a, b))
