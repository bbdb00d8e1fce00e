"""Layers of torch.ao with dynamic quantisation are captured: what eager computes, to the last integer."""

import pytest
import torch
from torch import nn
from torch.ao.nn import intrinsic
from torch.ao.quantization import float16_dynamic_qconfig, per_channel_dynamic_qconfig, quantize_dynamic

import framesmith

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning",
                                        "ignore:torch.quantize_per_tensor:UserWarning")


def quantised(layer, spec, dtype=torch.qint8):
    torch.manual_seed(0)
    return quantize_dynamic(nn.Sequential(layer, nn.Linear(32, 16)).eval(), spec, dtype)


MODELS = {
    "by tensor": lambda: quantised(nn.Linear(64, 32), {nn.Linear}),
    "by rows": lambda: quantised(nn.Linear(64, 32, bias=False), {nn.Linear: per_channel_dynamic_qconfig}),
    "relu": lambda: quantised(intrinsic.LinearReLU(nn.Linear(64, 32), nn.ReLU()), {intrinsic.LinearReLU}),
    "float16": lambda: quantised(nn.Linear(64, 32), {nn.Linear: float16_dynamic_qconfig}, torch.float16),
}
INPUTS = [torch.randn(5, 64), torch.randn(2, 3, 64) * 100, torch.zeros(2, 64), torch.rand(4, 64) * 1e-6,
          -torch.rand(4, 64)]


@pytest.mark.parametrize("name", MODELS)
def test_dynamic_layers(name):
    model = MODELS[name]()
    compiled = framesmith.compile(model, fullgraph=True)
    for x in INPUTS:
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))


def test_another_packed_weight_is_another_graph():
    model, x = MODELS["by tensor"](), torch.randn(5, 64)
    compiled = framesmith.compile(model, fullgraph=True)
    with torch.no_grad():
        compiled(x)
        model[0].set_weight_bias(torch.quantize_per_tensor(torch.randn(32, 64), 0.02, 0, torch.qint8), torch.ones(32))
        torch.testing.assert_close(compiled(x), model(x))


def test_a_weight_with_a_zero_point_runs_in_eager():
    model, x = MODELS["by tensor"](), torch.randn(5, 64)
    model[0].set_weight_bias(torch.quantize_per_tensor(torch.randn(32, 64), 0.02, 3, torch.qint8), None)
    with torch.no_grad():
        torch.testing.assert_close(framesmith.compile(model)(x), model(x))
        with pytest.raises(framesmith.exc.Unsupported, match="zero point"):
            framesmith.compile(model, fullgraph=True)(x)
