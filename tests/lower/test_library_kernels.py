"""Our own operators (LSTM, GRU, attention) against eager, and the rewrites that put them into a graph."""

import itertools

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from framesmith.config import Config
from framesmith.fake.recorder import Recorder
from framesmith.graph.interpreter import run
from framesmith.lower.contractions.choice import Chooser, OwnKernels
from framesmith.lower.contractions.geometry import HOST
from framesmith.lower.contractions.pack_linear import choose_contractions
from framesmith.lower.lower import lower
from framesmith.prims.decompose import decompose

CELLS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
FORMS = [
    {},
    {"num_layers": 3, "batch_first": True},
    {"bidirectional": True, "num_layers": 2, "bias": False},
    {"bidirectional": True, "batch_first": True},
]
# width, hidden, steps, batch
SIZES = [(16, 32, 5, 3), (20, 37, 7, 9), (3, 8, 300, 2), (8, 70, 1, 1), (130, 96, 12, 17)]


@pytest.fixture(autouse=True)
def _inference():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


own = OwnKernels(HOST)


def recorded(fn, inputs, parameters=0):
    """The graph of fn(*inputs), whose first `parameters` inputs are parameters of a module."""
    rec = Recorder()
    fakes = [rec.input(t, f"i{n}") for n, t in enumerate(inputs)]
    with rec:
        out = fn(*fakes)
    graph = rec.finish(list(torch.utils._pytree.tree_leaves(out)))
    for n, node in enumerate(n for n in graph.nodes if n.op == "placeholder"):
        node.meta["param"] = n < parameters
    return graph


def targets(graph):
    return [str(n.target) for n in graph.nodes if n.op == "call_function"]


def recurrent(cell, width, hidden, form, given):
    """A module, and a function of (*its parameters, x, *states)."""
    module = CELLS[cell](width, hidden, **form)
    names = [n for n, _ in module.named_parameters()]

    def fn(*args):
        x, *states = args[len(names) :]
        hx = None if not given else tuple(states) if cell == "lstm" else states[0]
        return torch.func.functional_call(module, dict(zip(names, args)), (x, hx))

    return module, fn


@pytest.mark.parametrize("form", range(len(FORMS)))
@pytest.mark.parametrize("cell", CELLS)
def test_recurrent_layers_as_eager(cell, form):
    form = FORMS[form]
    for (width, hidden, steps, batch), given in itertools.product(SIZES, (False, True)):
        module, fn = recurrent(cell, width, hidden, form, given)
        x = torch.randn(batch, steps, width) if module.batch_first else torch.randn(steps, batch, width)
        layers = module.num_layers * (2 if module.bidirectional else 1)
        states = [torch.randn(layers, batch, hidden) for _ in range(2 if cell == "lstm" else 1)] if given else []
        parameters = list(module.parameters())
        graph = choose_contractions(recorded(fn, [*parameters, x, *states], len(parameters)), own)
        assert f"framesmith.{cell}.default" in targets(graph)
        expected = torch.utils._pytree.tree_leaves(fn(*parameters, x, *states))
        for ours, theirs in zip(run(graph, [*parameters, x, *states]), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)
            assert ours.stride() == theirs.stride()


def test_recurrent_input_of_any_layout():
    module = torch.nn.LSTM(24, 40, batch_first=True)
    packed = [torch.ops.framesmith.pack_rnn(module.all_weights[0], 4)]
    for x in (torch.randn(24, 9, 5).permute(2, 1, 0), torch.randn(5, 18, 48)[:, ::2, ::2],
              torch.randn(5, 1, 24).expand(5, 9, 24)):
        ours = torch.ops.framesmith.lstm(x, [], packed, 40, False, True)[0]
        torch.testing.assert_close(ours, module(x)[0], rtol=1e-5, atol=2e-6)


def test_recurrent_out_form_fills_any_memory():
    module, x = torch.nn.GRU(16, 24), torch.randn(6, 3, 16)
    packed = [torch.ops.framesmith.pack_rnn(module.all_weights[0], 3)]
    out, hn = torch.zeros(3, 6, 30).transpose(0, 1)[:, :, :24], torch.empty(1, 3, 24)
    torch.ops.framesmith.gru.out(x, [], packed, 24, False, False, out0=out, out1=hn)
    torch.testing.assert_close((out, hn), tuple(module(x)), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("form", [{"proj_size": 4}, {"num_layers": 2, "dropout": 0.5}], ids=str)
def test_recurrence_stays_eagers_where_it_must(form):
    module, fn = recurrent("lstm", 8, 16, form, False)
    parameters = list(module.parameters())
    graph = choose_contractions(recorded(fn, [*parameters, torch.randn(3, 2, 8)], len(parameters)), own)
    assert not any("framesmith" in t for t in targets(graph))


def test_weights_that_are_no_parameters_stay():
    module, fn = recurrent("lstm", 8, 16, {}, False)
    graph = recorded(fn, [*module.parameters(), torch.randn(3, 2, 8)], parameters=2)
    assert "aten.lstm.input" in targets(choose_contractions(graph, own))


def heads(batch, rows, count, width):
    return torch.randn(batch, rows, count, width).transpose(1, 2)


SHAPES = [  # batch, queries, keys, heads, width, value width
    (1, 128, 128, 3, 64, 64), (2, 197, 197, 2, 64, 64), (1, 17, 33, 2, 20, 24),
    (2, 3, 1200, 2, 64, 64), (1, 600, 1100, 2, 32, 16), (1, 1, 77, 4, 80, 80),
    (2, 1, 1300, 2, 64, 64), (1, 2, 530, 2, 128, 36), (2, 2, 31, 3, 20, 24), (1, 1, 1, 1, 5, 3),  # few rows: no packing
]


def masks(batch, count, queries, keys):
    lowest = torch.finfo(torch.float32).min
    some = torch.rand(batch, 1, queries, keys) > 0.5
    without = some & (torch.arange(queries) != queries // 2)[:, None]  # a query without any key
    transposed = torch.zeros(keys, queries).t()
    floats = [torch.randn(queries, keys), torch.randn(batch, 1, 1, keys), torch.randn(batch, count, queries, 1),
              transposed]
    extremes = [some * lowest, torch.full((1, 1, 1, 1), lowest),
                torch.zeros(without.shape).masked_fill(without, float("-inf"))]
    return [*floats, *extremes, some, some[:, :, :1], without]


def own_attention(inputs, **kwargs):
    graph = choose_contractions(recorded(lambda *a: scaled_dot_product_attention(*a, **kwargs), inputs), own)
    assert targets(graph) == ["framesmith.attention.default"]
    return run(graph, inputs)[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_as_eager(shape):
    batch, queries, keys, count, width, value_width = shape
    inputs = heads(batch, queries, count, width), heads(batch, keys, count, width), heads(batch, keys, count,
                                                                                          value_width)
    for mask in masks(batch, count, queries, keys):
        torch.testing.assert_close(own_attention([*inputs, mask]), scaled_dot_product_attention(*inputs, mask),
                                   rtol=1e-5, atol=4e-6)
    for form in ({}, {"is_causal": True}, {"is_causal": True, "scale": 0.3}):
        torch.testing.assert_close(own_attention(inputs, **form), scaled_dot_product_attention(*inputs, **form),
                                   rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("queries", [1, 20])
def test_attention_propagates_nan(queries):
    q, k, v = heads(1, queries, 2, 16), heads(1, 20, 2, 16), heads(1, 20, 2, 16)
    q[0, 1, queries // 5, 2] = float("nan")
    ours, theirs = torch.ops.framesmith.attention(q, k, v, None, False, None), scaled_dot_product_attention(q, k, v)
    assert torch.equal(ours.isnan(), theirs.isnan())


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_grouped_heads(causal, queries):
    inputs = torch.randn(2, 8, queries, 64), torch.randn(2, 2, 40, 64), torch.randn(2, 2, 40, 64)
    expected = scaled_dot_product_attention(*inputs, is_causal=causal, enable_gqa=True)
    torch.testing.assert_close(own_attention(inputs, is_causal=causal, enable_gqa=True), expected, rtol=1e-5, atol=4e-6)


def test_repeated_heads_are_shared():
    def repeat(t):
        return t[:, :, None, :, :].expand(2, 2, 4, 40, 64).reshape(2, 8, 40, 64)

    def fn(q, k, v):
        return scaled_dot_product_attention(q, repeat(k), repeat(v), is_causal=True)

    inputs = [torch.randn(2, 8, 40, 64), torch.randn(2, 40, 2, 64).transpose(1, 2),
              torch.randn(2, 40, 2, 64).transpose(1, 2)]
    graph = choose_contractions(recorded(fn, inputs), own)
    [call] = [n for n in graph.nodes if str(n.target) == "framesmith.attention.default"]
    assert [a.op for a in call.args[:3]] == ["placeholder"] * 3
    torch.testing.assert_close(run(graph, inputs)[0], fn(*inputs), rtol=1e-5, atol=4e-6)


def test_attention_joins_heads_without_a_copy():
    def fn(q, k, v):
        return scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 40, 128).relu()

    # eager's result is laid out as the query: the reshape copies
    graph = recorded(fn, [torch.randn(2, 2, 40, 64) for _ in range(3)])
    items = lower(decompose(choose_contractions(graph, own))).items
    assert len(items) == 2


def test_the_choice_is_measured_and_remembered():
    memory = {}
    chooser = Chooser(Config(), memory)
    inputs = [heads(1, 33, 2, 16) for _ in range(3)]
    choose_contractions(recorded(scaled_dot_product_attention, inputs), chooser)
    module, fn = recurrent("gru", 8, 16, {}, False)
    parameters = list(module.parameters())
    choose_contractions(recorded(fn, [*parameters, torch.randn(3, 2, 8)], len(parameters)), chooser)
    assert len(memory) == len(chooser.measured) == 2
    assert all(set(seconds) == {"aten", "own"} for seconds in chooser.measured.values())
