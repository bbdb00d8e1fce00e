"""Runs of equal parts, and programs that are made of a few of them."""

import copy
import random
import re

import pytest
import torch
from torch import nn

import framesmith
from framesmith import pipeline
from framesmith.graph.repetition import HEAD, TAIL, find_repetition
from framesmith.loops.text import program_text
from tests.fake.harness import record

LAYERS = 10


def _residual(x, layers):
    for w, b in layers:
        x = torch.relu(x @ w + b) + x.sin()
    return x


def _layers(count=LAYERS, width=8):
    return [(torch.randn(width, width), torch.randn(width)) for _ in range(count)]


def _found(fn, *inputs):
    return find_repetition(record(fn, list(inputs))[0])


def _on(fn, layers):
    flat = [t for layer in layers for t in layer]
    pairs = [(2 * k + 1, 2 * k + 2) for k in range(len(layers))]
    return lambda *given: fn(given[0], [(given[a], given[b]) for a, b in pairs]), torch.randn(4, 8), *flat


def test_a_run_of_layers_is_found():
    found = _found(*_on(_residual, _layers()))
    assert len(found.short.nodes) < (HEAD + TAIL + 2) * 8
    assert [len(chain.places) - len(chain.short) for chain in found.input_chains] == [found.left_out] * 2
    assert sum(place is None for place in found.inputs) == 2 * found.left_out


def test_few_layers_are_none():
    assert _found(*_on(_residual, _layers(6))) is None


def test_what_reaches_into_the_middle_is_none():
    def skips(x, layers):
        kept = []
        for w, b in layers:
            kept.append(x := torch.relu(x @ w + b))
        return sum(kept[::3]) + x

    assert _found(*_on(skips, _layers(12))) is None


def test_nodes_before_the_run_that_its_parts_read_one_by_one_are_none():
    assert _found(lambda x: sum([x[k] for k in range(12)]), torch.randn(12, 4)) is None
    assert _found(lambda x: [row * 2 for row in x.unbind()], torch.randn(12, 4)) is None


def test_weights_that_take_turns_are_none():
    def turns(x, layers):
        for k in range(12):
            w, b = layers[k % 2]
            x = torch.relu(x @ w + b)
        return x

    found = _found(*_on(turns, _layers(2)))
    assert found is None or not found.input_chains


# --------------------------------------------------------------------------------------------------------------- models


class _Layer(nn.Module):
    """A layer with parts to be chosen; what is chosen may differ in one layer of a model."""

    def __init__(self, kind, width=16):
        super().__init__()
        self.kind = dict(kind)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)
        self.scale = 1.0

    def forward(self, x, mask):
        kind = self.kind
        y = self.norm(x) if kind["first"] else x
        if kind["attention"]:
            q = y.view(2, -1, 2, 8).transpose(1, 2)
            y = nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask).transpose(1, 2).reshape(x.shape)
        y = self.outer(getattr(nn.functional, kind["activation"])(self.inner(y))) * self.scale
        if kind["dropout"]:
            y = nn.functional.dropout(y, 0.25, self.training)
        y = y + x if kind["residual"] else y
        return y if kind["first"] else self.norm(y)


class _Model(nn.Module):
    def __init__(self, layers, every):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.every = every

    def forward(self, x, mask):
        found = []
        for layer in self.layers:
            x = layer(x, mask)
            found.append(x)
        return (x, *found) if self.every else x.tanh()


def _change_attribute(layers, at):
    layers[at].scale = 2.0


def _change_hook(layers, at):
    layers[at].register_forward_hook(lambda module, given, result: result * 1.5)


def _change_shape(layers, at):
    layers[at].inner, layers[at].outer = nn.Linear(16, 8), nn.Linear(8, 16)


def _share_weight(layers, at):
    layers[at].inner.weight = layers[at - 1].inner.weight


def _share_with_all(layers, at):
    for layer in layers:
        layer.outer.weight = layers[0].outer.weight


CHANGES = [None, _change_attribute, _change_hook, _change_shape, _share_weight, _share_with_all]


def _random_model(seed):
    draw = random.Random(seed)
    kind = {name: draw.random() < share for name, share in
            (("first", 0.5), ("attention", 0.5), ("dropout", 0.25), ("residual", 0.8))}
    kind["activation"] = draw.choice(("relu", "gelu", "silu"))
    layers = [_Layer(kind) for _ in range(draw.randint(12, 18))]
    change = CHANGES[seed % len(CHANGES)]
    if change is not None:
        change(layers, draw.randrange(1, len(layers)))
    return _Model(layers, every=draw.random() < 0.3)


def _results(model, x, mask, training, **options):
    framesmith.reset()
    torch.manual_seed(0)
    compiled = framesmith.compile(model, options={"cache": False, "compiler_flags": "-O0", **options})
    if not training:
        with torch.no_grad():
            return list(torch.utils._pytree.tree_leaves(compiled(x, mask)))
    results = list(torch.utils._pytree.tree_leaves(compiled(x, mask)))
    sum(r.square().mean() for r in results).backward()
    grads = [p.grad for p in model.parameters()]
    model.zero_grad()
    return [*results, *grads]


@pytest.mark.parametrize("seed", [*range(10), 113])  # 113: one kernel adds up the gradients of all layers
def test_results_are_bit_for_bit_those_of_all_parts_compiled(seed):
    torch.manual_seed(seed)
    model, x, mask = _random_model(seed), torch.randn(2, 5, 16), torch.zeros(5, 5)
    model.train(training := seed % 4 != 3)
    few = _results(model, x, mask, training)
    every = _results(copy.deepcopy(model), x, mask, training, without="repeat")
    assert all(map(torch.equal, few, every))


def _canonical(program):
    """The program as text, with buffers named as steps come to them."""
    text, names = program_text(program), {}
    body = text[text.index("\nsteps\n"):]
    for word in re.findall(r"\w+", body):
        if word in program.buffers:
            names.setdefault(word, f"buffer{len(names)}")
    buffers = sorted(line for line in text.splitlines() if re.match(r"  \w+: \S+ strides", line))
    given = [names.get(n) for n in program.inputs]
    held = {names[n]: id(t) for n, t in program.constants.items() if n in names}
    origins = [[(o.op, o.node) for o in getattr(step, "origins", ())] for step in program.steps]
    def renamed(line):
        return re.sub(r"\w+", lambda m: names.get(m[0], m[0]), line)
    return renamed(body), sorted(map(renamed, buffers)), given, held, origins, program.arena_bytes


@pytest.mark.parametrize("training", [False, True])
def test_the_program_is_that_of_all_parts(monkeypatch, training):
    made, whole, by_part, generate = [], [], pipeline._scheduled_by_part, pipeline._generate

    def kept(main, *rest):
        whole.append(main)
        return generate(main, *rest)

    def both(parts, context):
        found = by_part(parts, context)
        assert found is not None
        made.append((_canonical(found[1]), _canonical(pipeline._scheduled(whole[-1].graph, context)[1])))
        return found

    monkeypatch.setattr(pipeline, "_generate", kept)
    monkeypatch.setattr(pipeline, "_scheduled_by_part", both)
    kind = {"first": False, "attention": True, "dropout": False, "residual": True, "activation": "gelu"}
    model = _Model([_Layer(kind) for _ in range(LAYERS)], every=False).train(training)
    _results(model, torch.randn(2, 5, 16), torch.zeros(5, 5), training)
    assert len(made) == 1 + training
    for few, every in made:
        assert few == every


class _Scaled(nn.Module):
    """A layer with a buffer and a choice by the mode, without random numbers."""

    def __init__(self, width=16):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(width))
        self.steps = 1

    def forward(self, x):
        y = self.linear(x) * self.scale
        for _ in range(self.steps):
            y = y.tanh()
        return x + (y if self.training else y * 0.5).to(x.dtype)


def _new_forward(layer):
    layer.forward = lambda x: x - layer.linear(x).sigmoid()


DIFFERENCES = {
    "attribute": lambda layer: setattr(layer, "steps", 3),
    "mode": lambda layer: layer.eval(),
    "hook": lambda layer: layer.register_forward_hook(lambda module, given, result: result * 1.5),
    "hook before": lambda layer: layer.linear.register_forward_pre_hook(lambda module, given: (given[0] + 1,)),
    "hook of gradients": lambda layer: layer.linear.weight.register_hook(lambda grad: grad * 3),
    "buffer of another shape": lambda layer: setattr(layer, "scale", torch.full((1,), 2.0)),
    "buffer of another dtype": lambda layer: setattr(layer, "scale", torch.full((16,), 2.0, dtype=torch.float64)),
    "no bias": lambda layer: setattr(layer.linear, "bias", None),
    "frozen": lambda layer: layer.linear.requires_grad_(False),
    "another forward": _new_forward,
    "another class": lambda layer: setattr(layer, "linear", nn.Identity()),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_a_layer_that_differs_is_compiled_as_it_is(difference, training):
    torch.manual_seed(0)
    model, x = nn.Sequential(*[_Scaled() for _ in range(20)]), torch.randn(3, 16)
    DIFFERENCES[difference](model[9])

    def results(call):
        if not training:
            with torch.no_grad():
                return [call(x)]
        model.zero_grad(set_to_none=True)
        out = call(x)
        out.square().mean().backward()
        return [out.detach(), *[p.grad for p in model.parameters() if p.requires_grad]]

    framesmith.reset()
    expected = results(model)
    compiled = framesmith.compile(model, options={"cache": False, "compiler_flags": "-O0"}, fullgraph=True)
    torch.testing.assert_close(results(compiled), expected)


def test_a_layer_that_changes_later_is_seen():
    torch.manual_seed(0)
    model, x = nn.Sequential(*[_Scaled() for _ in range(20)]), torch.randn(3, 16)
    framesmith.reset()
    compiled = framesmith.compile(model, options={"cache": False, "compiler_flags": "-O0"})
    with torch.no_grad():
        compiled(x)
        for change in (lambda: setattr(model[7], "steps", 2), lambda: model[11].eval(),
                       lambda: setattr(model[12].linear, "weight", model[3].linear.weight),
                       lambda: model[15].scale.mul_(2)):
            change()
            torch.testing.assert_close(compiled(x), model(x))
