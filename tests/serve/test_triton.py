"""The model repository for Triton Inference Server: its configuration by tritonclient's protobuf, and its model by a
stand-in for the server's Python backend."""

import importlib
import runpy
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import framesmith
from framesmith.__main__ import main
from framesmith.package import binding
from framesmith.package.loading import library_path
from framesmith.serve.triton import write_repository
from framesmith.util.errors import PackageError
from tests.serve.models import Counting, encoder, mixing_rows
from tests.serve.test_service import TARGET


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    model = encoder(folder / "encoder.fsm", TARGET)
    assert main(["triton", str(folder / "encoder.fsm"), str(folder / "models"), "--instances", "2"]) == 0
    return folder / "models" / "encoder", model


def parsed(text):
    messages = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    return importlib.import_module("google.protobuf.text_format").Parse(text, messages.ModelConfig()), messages


def test_the_configuration_is_a_message_of_triton(repository):
    found, messages = parsed((repository[0] / "config.pbtxt").read_text())
    assert (found.name, found.backend, found.max_batch_size) == ("encoder", "python", 16)
    assert [(t.name, t.data_type, list(t.dims)) for t in found.input] == [
        ("ids", messages.TYPE_INT64, [-1]), ("mask", messages.TYPE_INT64, [-1])]
    assert [(t.name, t.data_type, list(t.dims)) for t in found.output] == [
        ("hidden", messages.TYPE_FP32, [-1, 16]), ("mean", messages.TYPE_FP32, [16])]
    assert found.dynamic_batching.max_queue_delay_microseconds == 2000
    assert found.instance_group[0].count == 2 and found.instance_group[0].kind == messages.ModelInstanceGroup.KIND_CPU


def test_a_model_without_batches_and_without_dimensions(tmp_path):
    framesmith.package(lambda x: x.sum(), (torch.ones(3, 4),), path=tmp_path / "sum.fsm", targets=[TARGET])
    write_repository(tmp_path / "sum.fsm", tmp_path, "sum")
    found, _ = parsed((tmp_path / "sum" / "config.pbtxt").read_text())
    assert found.max_batch_size == 0 and not found.HasField("dynamic_batching")
    assert list(found.input[0].dims) == [3, 4] and list(found.output[0].reshape.shape) == []
    assert list(found.output[0].dims) == [1] and found.output[0].HasField("reshape")


def test_a_model_that_keeps_state_is_refused(tmp_path, capsys):
    framesmith.package(Counting(), (torch.ones(2, 3),), path=tmp_path / "m.fsm", targets=[TARGET])
    assert main(["triton", str(tmp_path / "m.fsm"), str(tmp_path / "models")]) == 1
    assert "calls write calls, which later calls read" in capsys.readouterr().err
    with pytest.raises(PackageError):
        write_repository(tmp_path / "m.fsm", tmp_path / "models", "m")
    assert not (tmp_path / "models").exists()


class Backend(types.ModuleType):
    """What the server's Python backend gives to a model."""

    class Tensor:
        def __init__(self, name, array):
            self.name, self.array = name, array

        def as_numpy(self):
            return self.array

    class TritonError(Exception):
        INVALID_ARG = 3

    class InferenceResponse:
        def __init__(self, output_tensors, error=None):
            self.outputs, self.error = {t.name: t.array for t in output_tensors}, error

    @staticmethod
    def get_input_tensor_by_name(request, name):
        return request.inputs[name]


class Request:
    def __init__(self, wanted=("hidden", "mean"), **arrays):
        self.inputs, self.wanted = {name: Backend.Tensor(name, x) for name, x in arrays.items()}, wanted

    def requested_output_names(self):
        return self.wanted


@pytest.fixture
def served(repository, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "native" / "python")
    monkeypatch.setenv("FRAMESMITH_RUNTIME", library_path())
    monkeypatch.setitem(sys.modules, "framesmith_runtime.binding", binding)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", Backend("triton_python_backend_utils"))
    folder, model = repository
    instance = runpy.run_path(folder / "1" / "model.py")["TritonPythonModel"]()
    instance.initialize({"model_repository": str(folder), "model_version": "1",
                         "model_config": '{"max_batch_size": 16}'})
    return instance, model


def test_requests_of_one_batch_are_answered_each_by_its_own(served):
    instance, model = served
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 50, shape) for shape in ((2, 6), (1, 9), (3, 6), (1, 6))]
    ids[3][0, 0] = 50  # beyond the table: the others of its group are answered
    requests = [Request(ids=x, mask=np.ones_like(x)) for x in ids]
    requests[2].wanted = ["mean"]
    runs = []
    run = instance._package.model.run
    instance._package.model.run = lambda *args: (runs.append(1), run(*args))
    answers = instance.execute(requests)
    for x, answer in zip(ids[:3], answers):
        with torch.no_grad():
            expected = model(torch.from_numpy(x), torch.ones(x.shape, dtype=torch.int64))
        assert answer.error is None
        for name, array in answer.outputs.items():
            torch.testing.assert_close(torch.from_numpy(array), expected[name])
    assert answers[2].outputs.keys() == {"mean"} and "index" in str(answers[3].error)
    assert len(instance.execute([requests[0], requests[2]])) == 2
    assert len(runs) == 6  # a batch, its three one by one, one of another length; then a batch


def test_rows_that_depend_on_each_other_are_not_joined(tmp_path, capsys):
    mixing_rows(tmp_path / "m.fsm", TARGET)
    command = ["triton", str(tmp_path / "m.fsm"), str(tmp_path / "models")]
    assert main(command) == 1 and "rows depend on each other" in capsys.readouterr().err
    assert main([*command, "--no-batching"]) == 0
    assert "max_batch_size: 0\n" in (tmp_path / "models" / "m" / "config.pbtxt").read_text()
