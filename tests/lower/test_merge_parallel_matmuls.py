"""Layers that read one value are one product; what each gives is a part of its columns."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.graph.freeze import freeze
from framesmith.graph.interpreter import run
from framesmith.lower.contractions.cancel_casts import cancel_casts
from framesmith.lower.contractions.libraries import choose_library_calls
from framesmith.lower.contractions.merge_parallel_matmuls import merge_parallel_matmuls
from framesmith.lower.contractions.pack_linear import worth_freezing
from tests.fake.harness import record

aten = torch.ops.aten
BF16 = torch.bfloat16


def half(x):
    return x.to(BF16)


def three(x, wq, wk, wv, b):
    x = half(x)
    return F.linear(x, half(wq), half(b)), torch.relu(F.linear(x, half(wk))), F.linear(x, half(wv), half(b))


def cross(x, wq, wk, wv, b):
    """What another matrix is read for in between ends a run."""
    x, y = half(x), half(x) * 2
    return F.linear(y, half(wq)), F.linear(x, half(wk)), F.linear(x, half(wv)), F.linear(y, half(wq).clone())


def lying(x, wq, wk, wv, b):
    x = half(x)[0]
    return torch.addmm(half(b), x, half(wq)), x @ half(wk)


def as_they_lie(x, wq, wk, wv, b):
    return F.linear(x, wq), F.linear(x, wk)


def kept_twice(x, wq, wk, wv, b):
    x, w = half(x), half(wq)
    return F.linear(x, w), F.linear(x, half(wk)), w * 2


CASES = {"three": (three, 1, [48]), "cross": (cross, 3, [16, 32, 16]), "lying": (lying, 1, [32]),
         "as they lie": (as_they_lie, 2, [16, 16]),
         "kept twice": (kept_twice, 2, [16, 16])}


@pytest.mark.parametrize("name", CASES)
def test_joins(name):
    fn, count, widths = CASES[name]
    torch.manual_seed(0)
    inputs = [torch.randn(2, 5, 16), *[torch.randn(16, 16) for _ in range(3)], torch.randn(16)]
    graph, _ = record(fn, inputs)
    for place in list(graph.nodes)[1:5]:
        place.meta["param"] = True
    choose_library_calls(graph)
    merge_parallel_matmuls(graph)
    graph.lint()
    products = [n for n in graph.nodes if n.target in (aten.mm.default, aten.addmm.default)]
    assert [n.meta["val"].shape[1] for n in products] == widths and len(products) == count
    for got, want in zip(run(graph, inputs), fn(*inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    if name == "three":  # the weights are kept side by side, and no more than once
        frozen = freeze(graph, worth_freezing)
        kept = [n.meta["val"] for n in frozen.main.nodes if n.op == "placeholder" and n.meta.get("constant")]
        assert sorted(tuple(v.shape) for v in kept) == [(16, 48), (48,)]


@pytest.mark.parametrize(
    ("fn", "casts"),
    [
        (lambda x: torch.relu(x).float().bfloat16() * 2, 0),
        (lambda x: torch.relu(x).float().half() * 2, 2),
        (lambda x: torch.relu(x).float().bfloat16(), 2),
        (lambda x: x.float().bfloat16() * 2, 2),
        (lambda x: (y := torch.relu(x).float(), y.bfloat16() * 2), 1),
    ],
)
def test_casts_there_and_back(fn, casts):
    x = torch.randn(8, 8).to(BF16)
    graph, _ = record(fn, [x])
    cancel_casts(graph)
    graph.lint()
    assert sum(n.target is aten._to_copy.default for n in graph.nodes) == casts
    for got, want in zip(run(graph, [x]), torch.utils._pytree.tree_leaves(fn(x)), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
