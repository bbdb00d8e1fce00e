"""Recurrent layers on a CUDA device get their casts in one piece of memory, once."""

import pytest
import torch

from framesmith.config import Config
from framesmith.fake.recorder import Recorder
from framesmith.fake.tensor import contiguous_strides, new_fake
from framesmith.graph.freeze import freeze
from framesmith.lower.contractions import flatten_rnn_weights
from framesmith.lower.contractions.pack_linear import worth_freezing
from framesmith.passes import Context, run_passes
from framesmith.pipeline import PASSES
from framesmith.targets import CudaTarget

from ..gpu.fakes import DEVICE, scheduled

aten = torch.ops.aten
LAYERS = {aten.lstm.input: 4, aten.gru.input: 3, aten.rnn_tanh.input: 1}


@pytest.fixture(autouse=True)
def _cudnn(monkeypatch):
    def size(dtype, device, shapes, geometry):
        return sum(torch.Size(shape).numel() for shape in shapes)

    monkeypatch.setattr(flatten_rnn_weights, "_size", size)


def rewritten(layer, cast=True, train=False, dropout=0.0):
    """The frozen parts of a graph of one layer over parameters."""
    rec, gates = Recorder(), LAYERS[layer]
    shapes = ((4, 12, 16), (1, 4, 32), (1, 4, 32), (gates * 32, 16), (gates * 32, 32), (gates * 32,), (gates * 32,))
    fakes = [rec.input_like(new_fake(s, contiguous_strides(s), torch.float32, DEVICE), f"x{i}") for i,
             s in enumerate(shapes)]
    for weight in fakes[3:]:
        rec.nodes(weight).meta["param"] = True
    with torch.no_grad(), rec:
        x, h, c, *weights = [f.to(torch.float16) for f in fakes] if cast else fakes
        state = [h, c] if gates == 4 else h
        out, *last = layer(x, state, weights, True, 1, dropout, train, False, True)
    graph = rec.finish([out, *last])
    run_passes(PASSES, "aten", graph, Context(Config(), CudaTarget(Config(), None, None, DEVICE)))
    return graph, freeze(graph, worth_freezing)


@pytest.mark.parametrize("layer", list(LAYERS))
def test_casts_of_parameters_are_brought_together_once(layer):
    _, frozen = rewritten(layer)
    once, main = ([n.target for n in part.nodes] for part in (frozen.constants, frozen.main))
    assert (once.count(aten._cudnn_rnn_flatten_weight.default) == 1
            and aten._cudnn_rnn_flatten_weight.default not in main)
    (call,) = [s for s in scheduled(frozen.main).steps if hasattr(s, "target")]
    assert call.target is aten._cudnn_rnn.default
    made = len([o for o in call.outputs if o is not None])
    assert made == (3 if layer is aten.lstm.input else 2)


def test_parameters_stay_where_they_are():
    graph, _ = rewritten(aten.lstm.input, cast=False)
    assert aten.lstm.input in [n.target for n in graph.nodes]


def test_dropout_stays_eagers():
    graph, _ = rewritten(aten.gru.input, train=True, dropout=0.5)
    assert aten.gru.input in [n.target for n in graph.nodes]
