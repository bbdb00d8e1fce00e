"""Sums of products become products of longer operands."""

import torch

from framesmith.fake.recorder import Recorder
from framesmith.graph.interpreter import run
from framesmith.lower.contractions.merge_summed_matmuls import MOST, merge_summed_matmuls

aten = torch.ops.aten


def joined(fn, *inputs):
    """How many products are left of the graph of `fn`, which computes the same."""
    rec = Recorder()
    with torch.no_grad(), rec:
        out = fn(*[rec.input(x, f"x{i}") for i, x in enumerate(inputs)])
    graph = rec.finish([out] if isinstance(out, torch.Tensor) else list(out))
    expected = run(graph, inputs)
    merge_summed_matmuls(graph)
    graph.eliminate_dead_code()
    graph.lint()
    for got, want in zip(run(graph, inputs), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)
        assert got.shape == want.shape
    return sum(n.target in (aten.mm.default, aten.addmm.default) for n in graph.nodes)


def total(terms):
    whole = terms[0]
    for term in terms[1:]:
        whole = whole + term
    return whole


X, Y = torch.randn(40, 2, 64), torch.randn(40, 2, 48)


def test_gradients_of_a_weight_that_is_used_again_and_again():
    assert joined(lambda x, y: total([torch.mm(x[t].t(), y[t]) for t in range(8)]), X, Y) == 1
    assert joined(lambda x, y: total([(torch.mm(x[t].t(), y[t])).t() for t in range(8)]), X, Y) == 1
    assert joined(lambda x, y: total([(torch.mm(x[t].t(), y[t])).t().t() for t in range(40)]), X, Y) == -(-40 // MOST)


def test_operands_wait_only_where_they_are_small_beside_the_result():
    x, y = torch.randn(24, 8, 48), torch.randn(24, 8, 48)
    assert joined(lambda x, y: total([torch.mm(x[t].t(), y[t]) for t in range(24)]), x, y) == 24


def test_other_terms_stay():
    assert joined(lambda x, y, z: total([z, *[torch.mm(x[t].t(), y[t]) for t in range(5)], z * 2]), X, Y,
                  torch.randn(64, 48)) == 1
    assert joined(lambda x, y: total([torch.mm(x[t].t(), y[t]) for t in range(3)]), X, Y) == 3


def test_a_product_that_somebody_else_wants_stays():
    def fn(x, y):
        products = [torch.mm(x[t].t(), y[t]) for t in range(6)]
        return total(products), products[2]

    assert joined(fn, X, Y) == 2


def test_long_products_stay():
    assert joined(lambda x, y: total([torch.mm(x[t].t(), y[t]) for t in range(5)]), torch.randn(5, 400, 8),
                  torch.randn(5, 400, 8)) == 5


def test_a_term_may_stand_twice():
    def fn(x, y):
        product = torch.mm(x[0].t(), y[0])
        return product + product + total([torch.mm(x[t].t(), y[t]) for t in range(1, 6)])

    assert joined(fn, X, Y) == 1
