"""What a forward keeps for its backward: the cut itself, and that gradients do not depend on it."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import fx, nn

import framesmith
from framesmith.autograd.joint import trace_joint
from framesmith.autograd.min_cut import FREE, cheapest_cut
from framesmith.autograd.partition import Parts, partition
from framesmith.fake import Recorder
from framesmith.graph.digest import digest_text


@given(st.integers(2, 7), st.data())
def test_no_cut_is_cheaper(n, data):
    vertices = range(n)
    prices = {v: data.draw(st.integers(1, 9)) for v in vertices}
    edges = [(a, b) for a, b in itertools.combinations(vertices, 2) if data.draw(st.booleans())]
    sources, sinks = {0, data.draw(st.sampled_from(vertices))}, {n - 1, data.draw(st.sampled_from(vertices))}

    def separates(cut):
        reached = sources - cut
        while more := {b for a, b in edges if a in reached} - cut - reached:
            reached |= more
        return not reached & sinks

    found = cheapest_cut(prices, edges, sources, sinks)
    assert separates(found)
    every = [set(c) for k in range(n + 1) for c in itertools.combinations(vertices, k) if separates(set(c))]
    assert sum(prices[v] for v in found) == min(sum(prices[v] for v in c) for c in every)


def test_a_path_without_a_price_cannot_be_cut():
    with pytest.raises(ValueError, match="no cut"):
        cheapest_cut({"a": FREE, "b": FREE}, [("a", "b")], ["a"], ["b"])


def parts(fn, *inputs, budget=1.0) -> Parts:
    recorder = Recorder()
    with recorder:
        fakes = [recorder.input(x, f"x{k}") for k, x in enumerate(inputs)]
        for fake in fakes:
            fake._alias.node.meta["requires_grad"] = fake.requires_grad
        out = fn(*fakes)
    return partition(trace_joint(recorder.finish([out])), True, budget)


def test_a_backward_says_what_it_is_given_up():
    """What it has from its forward alone, and tangents, but neither inputs of that nor results."""
    found = parts(lambda x, w: (torch.mm(torch.mm(x, w).cos(), w)).exp(), X, W)
    places = [n for n in found.backward.nodes if n.op == "placeholder"]
    ways = [way for way, _ in found.kept] + ["tangent"]
    assert {"input", "result", "extra"} <= set(ways)
    assert [bool(n.meta.get("given up")) for n in places] == [way in ("extra", "tangent") for way in ways]
    assert digest_text(found.backward).count("given up") == sum(way in ("extra", "tangent") for way in ways)
    assert not any(n.meta.get("given up") for n in found.forward.nodes if n.op == "placeholder")


def operators(graph: fx.Graph) -> list[str]:
    return [n.target.__name__.split(".")[0] for n in graph.nodes if n.op == "call_function"]


X = torch.randn(8, 16)
W = torch.randn(16, 16, requires_grad=True)


def test_pointwise_work_is_done_again():
    found = parts(lambda x, w: torch.sin(torch.cos(x * w[0])).sum(), X, W)
    assert all(way == "input" for way, _ in found.kept)
    assert "cos" in operators(found.backward)


def test_what_a_product_reads_is_kept():
    found = parts(lambda x, w: (torch.tanh(x @ w) @ w).sum(), X, W)
    assert operators(found.backward).count("mm") == 3 and "tanh" not in operators(found.backward)


def test_a_result_is_kept_rather_than_what_it_is_computed_of():
    found = parts(lambda x, w: torch.tanh(x @ w + x), X, W)
    assert "tanh" not in operators(found.backward) and ("result", 0) in found.kept
    assert all(way != "extra" for way, _ in found.kept)


def test_what_several_layers_read_is_kept_once():
    def fn(x, w):
        y = torch.tanh(x @ w)
        return sum((y.double() @ w.double()).square().sum() * k for k in range(1, 4))

    found = parts(fn, X, W)
    doubles = [n for n in found.backward.nodes if n.op == "placeholder" and n.meta["val"].dtype is torch.float64]
    assert sum(n.meta["val"].shape == (8, 16) for n in doubles) <= 2
    assert operators(found.forward).count("mm") == 2


def test_random_values_are_kept_under_any_budget():
    found = parts(lambda x, w: (F.dropout(x @ w, 0.5) @ w).sum(), X, W, budget=0.0)
    assert not {"bernoulli", "native_dropout"} & set(operators(found.backward))
    assert len(found.drawn) == 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16))
                                     for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


@pytest.mark.parametrize("options", [{"activation_budget": b} for b in (0.0, 0.3, 0.7, 1.0)] + [{"partitioner": False}],
                         ids=str)
def test_gradients_do_not_depend_on_what_is_kept(options):
    torch.manual_seed(0)
    net = Net()
    net(X).backward()
    want = [p.grad for p in net.parameters()]
    net.zero_grad()
    framesmith.compile(net, backend="eager", options=options, fullgraph=True)(X).backward()
    for p, grad in zip(net.parameters(), want, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=0, atol=0)


def test_a_smaller_budget_keeps_less():
    recorder = Recorder()
    net = Net()
    names = dict(net.named_parameters())
    with recorder:
        fakes = {k: recorder.input(p, k.replace(".", "_")) for k, p in names.items()}
        for fake in fakes.values():
            fake._alias.node.meta["requires_grad"] = True
        out = torch.func.functional_call(net, fakes, (recorder.input(X, "x"),))
    graph = recorder.finish([out])
    sizes = []
    for budget in (1.0, 0.6, 0.2, 0.0):
        joint = trace_joint(graph)
        extras = list(partition(joint, True, budget).forward.nodes)[-1].args[0][joint.results:]
        sizes.append(sum(n.meta["val"].numel() for n in extras))
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] == 0
    assert sizes[1] <= 0.6 * sizes[0] and sizes[2] <= 0.2 * sizes[0]


@pytest.mark.filterwarnings("error:.*internal fault")
def test_saved_tensors_hooks_of_the_program_may_be_disabled():
    x = torch.linspace(-1, 1, 12).requires_grad_()
    with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
        framesmith.compile(lambda x: x.square() * 2, fullgraph=True)(x).sum().backward()
        with pytest.raises(RuntimeError, match="none here"), torch.autograd.graph.save_on_cpu():
            pass
    torch.testing.assert_close(x.grad, 4 * x.detach(), rtol=0, atol=0)


def of_the_program(fn, *inputs, budget=1.0) -> Parts:
    recorder = Recorder()
    with recorder:
        fakes = [recorder.input(x, f"x{k}") for k, x in enumerate(inputs)]
        for fake in fakes:
            fake._alias.node.meta.update(requires_grad=fake.requires_grad, source=f"L['{fake._alias.node}']")
        out = fn(*fakes)
    return partition(trace_joint(recorder.finish([out])), True, budget)


V = torch.linspace(-1, 1, 16).requires_grad_()


def test_what_a_forward_computes_of_the_programs_tensors_is_not_done_again():
    """They may be written through `x.data`: eager reads its own values then, and the tensors only in its formulas."""
    found = of_the_program(lambda x: (x.sin() * x.exp()).sum(), V)
    assert [way for way, _ in found.kept] == ["input", "extra", "extra"]
    assert operators(found.backward).count("cos") == 1 and not {"sin", "exp"} & set(operators(found.backward))
    found = of_the_program(lambda x: (x.sin() + x.cos()).sum(), V)  # formulas compute both again
    assert found.kept == (("input", 0),)
    assert "sin" in operators(of_the_program(lambda x: (x.sin() * x.exp()).sum(), V, budget=0.5).backward)


WRITES = {"data": lambda x: x.data.mul_(-2), "NumPy": lambda x: x.detach().numpy().fill(2)}
UNSEEN = {
    "pointwise": lambda x, w: x.sin() * x.exp() * w, "formula": lambda x, w: (x.sin() + x.cos()) * w.exp(),
    "view": lambda x, w: (x.view(-1).exp() * 2).view(4, 4) @ w.t().exp(), "norm": lambda x, w: x.exp() * w / w.norm(),
    "cast": lambda x, w: (x.double() ** 3).float() * w.double().sin(),
    "where": lambda x, w: torch.where(x > 0, x.exp(), w.sin()) * (w > 0),
}


@pytest.mark.parametrize("fn", UNSEEN.values(), ids=list(UNSEEN))
@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_a_write_that_no_version_counts_reaches_what_it_does_in_eager(fn, write):
    got = []
    for call in (fn, framesmith.compile(fn, backend="eager", fullgraph=True)):
        x, w = (torch.linspace(a, 1, 16).view(4, 4).requires_grad_() for a in (-1, 0.1))
        y = call(x, w)
        write(x), write(w), y.data.mul_(0.5)
        y.sum().backward()
        got.append((y.detach(), x.grad, w.grad))
    torch.testing.assert_close(got[1], got[0], rtol=0, atol=0)
