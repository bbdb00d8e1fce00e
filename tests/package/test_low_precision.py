"""Packages of models whose weights are pruned or of low precision: the same as eager of the same model."""

import shutil
import zipfile

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import framesmith
from tests.package.test_package import TARGETS, packaged


def members(path):
    with zipfile.ZipFile(path) as archive:
        return archive.infolist()


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)).eval()


def pruned(removed):
    model = perceptron()
    for layer in (model[0], model[2]):
        prune.l1_unstructured(layer, "weight", 0.5)
        if removed:
            prune.remove(layer, "weight")
    return model


@pytest.mark.parametrize("removed", [False, True], ids=["masked", "removed"])
def test_pruned_weights(removed, tmp_path):
    model, x = pruned(removed), torch.randn(5, 64)
    loaded = packaged(tmp_path, model, (x,), targets=["x86-64-v3"])
    torch.testing.assert_close(loaded(x), model(x).detach())
    assert loaded.notes == ([] if removed else ["0.weight", "2.weight"])


def test_weights_of_which_two_of_four_are_zero(tmp_path):
    from torch.ao.pruning import WeightNormSparsifier

    model, x = perceptron(), torch.randn(5, 64)
    sparsifier = WeightNormSparsifier(sparsity_level=1.0, sparse_block_shape=(1, 4), zeros_per_block=2)
    sparsifier.prepare(model, [{"tensor_fqn": "0.weight"}, {"tensor_fqn": "2.weight"}])
    sparsifier.step()
    assert (model[0].weight.unflatten(1, (-1, 4)) == 0).sum(2).eq(2).all()
    loaded = packaged(tmp_path, model, (x,), targets=["x86-64-v3"])
    torch.testing.assert_close(loaded(x), model(x).detach())


def test_a_tensor_that_a_later_call_reads_is_refused(tmp_path):
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.zeros(3)

        def forward(self, x):
            out = x + self.last
            self.last = x * 2
            return out

    with pytest.raises(framesmith.exc.ExportError, match="keeps a tensor in .*last"):
        packaged(tmp_path, Keeps(), (torch.ones(3),), targets=["x86-64-v3"])


def quantized(config):
    """The perceptron with weights of torchao's."""
    quantization = pytest.importorskip("torchao.quantization")
    model = perceptron()
    quantization.quantize_(model, config(quantization))
    return model


CONFIGS = {
    "int8": lambda q: q.Int8WeightOnlyConfig(),
    "int4 by rows": lambda q: q.IntxWeightOnlyConfig(weight_dtype=torch.int4),
    "int4 by groups": lambda q: q.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=q.PerGroup(32)),
    "int8, dynamic": lambda q: q.Int8DynamicActivationInt8WeightConfig(),
    "int4, dynamic": lambda q: q.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4),
}


@pytest.mark.parametrize("name, target", [
    *((name, "x86-64-v3") for name in CONFIGS),
    *(pytest.param("int8, dynamic", *target.values, marks=target.marks) for target in TARGETS),
])
def test_weights_of_torchao(name, target, tmp_path):
    model = quantized(CONFIGS[name])
    loaded = packaged(tmp_path, model, (torch.randn(5, 64),), targets=[target],
                      dynamic_shapes=[{0: framesmith.Dim("batch", max=64)}])
    for batch in (5, 1, 33):
        x = torch.randn(batch, 64)
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), model(x))
    weights, bits = sum(layer.weight.numel() for layer in (model[0], model[2])), 4 if "int4" in name else 8
    constants = sum(info.file_size for info in members(tmp_path / "model.fsm") if "constants" in info.filename)
    assert constants < weights * bits / 8 + 6000  # scales, zero points and biases


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-g++") is None, reason="no cross compiler")
def test_quantized_weights_on_another_processor(tmp_path):
    framesmith.package(quantized(CONFIGS["int8, dynamic"]), (torch.randn(5, 64),), path=tmp_path / "m",
                       targets=["aarch64"])


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning", "ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
def test_dynamic_layers_of_torch_ao(dtype, tmp_path):
    model = torch.ao.quantization.quantize_dynamic(perceptron(), {nn.Linear}, dtype)
    loaded = packaged(tmp_path, model, (torch.randn(5, 64),), targets=["x86-64-v3"],
                      dynamic_shapes=[{0: framesmith.Dim("batch", max=64)}])
    for batch in (5, 1, 33):
        x = torch.randn(batch, 64)
        torch.testing.assert_close(loaded(x), model(x).detach())
