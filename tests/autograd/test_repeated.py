"""A graph of many equal parts is differentiated by a few of them: what comes of it is what the whole graph gives."""

import dataclasses

import pytest
import torch
from torch import nn

import framesmith
from framesmith.autograd import node, repeated
from framesmith.autograd.joint import trace_joint
from framesmith.autograd.missing_tangents import _of_graph, without_tangents
from framesmith.autograd.partition import partition
from framesmith.autograd.value_numbering import numbered
from framesmith.graph.digest import digest_text
from framesmith.graph.repetition import HEAD, TAIL, RepeatedGraph

LAYERS = 11
OPTIONS = {"compiler_flags": "-O0", "suppress_errors": False}


class _Layer(nn.Module):
    def __init__(self, kind, width=8):
        super().__init__()
        self.kind = kind
        self.inner, self.outer, self.norm = nn.Linear(width, 12), nn.Linear(12, width), nn.LayerNorm(width)
        self.scale = 1.0

    def forward(self, x, mask):
        y = self.norm(x) if "first" in self.kind else x
        if "attention" in self.kind:
            q = y.view(2, -1, 2, 4).transpose(1, 2)
            y = nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask).transpose(1, 2).reshape(x.shape)
        if "mask" in self.kind:
            y = y.masked_fill((mask.sum(0) > 3)[:, None], 0.0)
        y = self.outer(torch.relu(self.inner(y))) * self.scale
        if "dropout" in self.kind:
            y = nn.functional.dropout(y, 0.25, self.training)
        if "in place" in self.kind:
            y = y.mul_(2.0).sigmoid_()
        y = y + x if "residual" in self.kind else y
        return y if "first" in self.kind else self.norm(y)


class _Model(nn.Module):
    def __init__(self, kind, results=1):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.layers = nn.ModuleList([_Layer(kind) for _ in range(LAYERS)])
        self.head = nn.Linear(8, 3)
        self.kind, self.results = kind, results

    def forward(self, tokens, mask):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        if "last" in self.kind:
            return x
        out = self.head(x)
        return (out, x.square().mean()) if self.results == 2 else out


def _change(model, how):
    layer = model.layers[LAYERS // 2]
    {"frozen": lambda: layer.inner.requires_grad_(False), "scale": lambda: setattr(layer, "scale", 2.0),
     "tied": lambda: setattr(layer.inner, "weight", model.layers[2].inner.weight),
     "tied all": lambda: [setattr(one.inner, "weight", layer.inner.weight) for one in model.layers],
     "lower frozen": lambda: [one.requires_grad_(False) for one in (model.embedding, *model.layers[:3])]}[how]()


KINDS = {"post": ("residual",), "pre": ("first", "residual"), "plain": (), "dropout": ("residual", "dropout"),
         "attention": ("attention", "residual"), "mask of all": ("mask", "residual"), "last": ("residual", "last"),
         "in place": ("in place", "first", "residual"), "all": ("attention", "mask", "dropout", "first", "residual"),
         "most": ("mask", "dropout", "in place", "residual")}
CASES = [*[(kind, results, None) for kind in KINDS for results in (1, 2)],
         *[("pre", 1, how) for how in ("frozen", "scale", "tied", "tied all", "lower frozen")]]
WHOLE = {"frozen", "scale", "tied", "lower frozen"}
"""Changes after which the graph has no run of equal parts, or one that is differentiated part by part."""


def _given():
    return torch.arange(10).reshape(2, 5), torch.linspace(0, 1, 25).reshape(5, 5)


def _made(kind, results, how):
    torch.manual_seed(0)
    model = _Model(KINDS[kind], results)
    if how is not None:
        _change(model, how)
    return model


def _facts(joint, parts):
    """All that is said of a joint graph and its parts, before passes change them."""
    said = {f.name: getattr(joint, f.name) for f in dataclasses.fields(joint) if f.name != "graph"}
    said |= {f.name: getattr(parts, f.name) for f in dataclasses.fields(parts) if f.name != "computed"}
    for name in ("forward", "backward"):
        graph = said.pop(name)
        said[name] = digest_text(graph), [n.meta.get("stack") for n in graph.nodes if n.op != "output"]
    return {**said, "names": [n.name for n in parts.forward.nodes]}


@pytest.mark.parametrize("kind, results, how", CASES, ids=str)
def test_joint_and_parts_are_those_of_the_whole_graph(kind, results, how, monkeypatch):
    seen, of_some = [], []

    def both(graph, recompute, budget, by_parts):
        joint, parts = repeated.differentiated(graph, recompute, budget, by_parts)
        expected = trace_joint(graph)
        whole = partition(expected, recompute, budget)
        short = len(joint.graph.nodes) < len(expected.graph.nodes) * (HEAD + TAIL + 2) / LAYERS
        seen.append((short, _facts(joint, parts), _facts(expected, whole), parts, whole))
        for there in [(True, False), (False, True)] if len(joint.differentiable) == 2 else ():
            of_some.append((without_tangents(parts.backward, joint, there), _of_graph(whole.backward, there)))
        return joint, parts

    monkeypatch.setattr(node, "differentiated", both)
    framesmith.reset()
    framesmith.compile(_made(kind, results, how), options={**OPTIONS, "backend": "eager"}, fullgraph=True)(*_given())
    [(short, found, expected, parts, whole)] = seen
    assert short is (how not in WHOLE)
    for name, value in expected.items():
        assert found[name] == value, name
    for one, other in of_some:
        assert (one is None) == (other is None)
        if one is not None:
            assert isinstance(one[0], RepeatedGraph) and one[1] == other[1]
            assert digest_text(one[0]) == digest_text(other[0])
    assert not of_some or any(one for one, _ in of_some)
    table = {}
    (ours, own), (others, wanted) = parts.computed(), whole.computed()
    one, other = numbered(ours, table), numbered(others, table)
    assert [one[n] for n in own] == [other[n] for n in wanted]


def _steps(model, call, ask):
    """The gradients that `ask` asks for."""
    torch.manual_seed(7)
    out = call(*_given())
    return ask(model, out if isinstance(out, tuple) else (out,))


def _of_all(model, out):
    sum(x.square().sum() for x in out).backward()
    return [p.grad for p in model.parameters()]


def _of_some(model, out):
    wanted = [model.layers[k].inner.weight for k in (0, 5, LAYERS - 1)]
    return list(torch.autograd.grad(out[0].square().sum(), wanted))


def _of_the_last_result(model, out):
    return list(torch.autograd.grad(out[-1].square().sum(), [*model.layers.parameters()]))


def _one_after_another(model, out):
    first = torch.autograd.grad(out[0].sum(), model.layers[3].outer.weight, retain_graph=True)
    return [*first, *torch.autograd.grad(out[0].square().sum(), model.layers[7].outer.bias)]


def _of_second_order(model, out):
    first = torch.autograd.grad(out[0].square().sum(), [model.layers[4].inner.weight], create_graph=True)
    return list(torch.autograd.grad(first[0].square().sum(), [*model.layers.parameters()], allow_unused=True))


def _twice(model, out):
    out[0].sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out[0].sum().backward()
    return [p.grad for p in model.layers.parameters()]


ASKS = [_of_all, _of_some, _of_the_last_result, _one_after_another, _of_second_order, _twice]


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.__name__.strip("_"))
@pytest.mark.parametrize("kind, results", [("pre", 1), ("dropout", 2), ("most", 1), ("in place", 2)], ids=str)
def test_gradients_are_those_of_the_whole_graph_and_of_eager(kind, results, ask):
    found = {}
    for how in ("parts", "whole", "eager"):
        framesmith.reset()
        model = _made(kind, results, None)
        options = {**OPTIONS, "without": "repeat"} if how == "whole" else OPTIONS
        found[how] = _steps(model, model if how == "eager" else framesmith.compile(model, options=options), ask)
    for one, other, eager in zip(found["parts"], found["whole"], found["eager"], strict=True):
        assert (one is None) == (other is None) == (eager is None)
        if one is not None:
            assert torch.equal(one, other) and one.stride() == eager.stride()
            torch.testing.assert_close(one, eager, rtol=1e-4, atol=1e-5)
