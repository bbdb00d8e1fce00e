"""The contenders: each makes a callable `() -> output` from a model and its inputs, in inference.

A peer that is not installed is left out; one that fails on a model says why.
"""

from __future__ import annotations

import importlib.util
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import framesmith

Call = Callable[[], Any]


def _eager(model: Any, args: tuple[Any, ...]) -> Call:
    return lambda: model(*args)


def _framesmith(model: Any, args: tuple[Any, ...], **options: Any) -> Call:
    compiled = framesmith.compile(model, options=options or None)
    return lambda: compiled(*args)


def _torch_compile(model: Any, args: tuple[Any, ...]) -> Call:
    compiled = torch.compile(model)
    return lambda: compiled(*args)


def _torch_compile_frozen(model: Any, args: tuple[Any, ...]) -> Call:
    """Its weights are constants for good, as its documentation advises for inference."""
    compiled = torch.compile(model, options={"freezing": True})
    return lambda: compiled(*args)


class _TensorsOnly(torch.nn.Module):
    """The model with positional tensors in and a tuple of tensors out, as exporters want it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: torch.Tensor) -> Any:
        return tuple(flat_tensors(self.model(*tensors)))


def flat_tensors(out: Any) -> list[torch.Tensor]:
    """Every tensor in a nested output, in order."""
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, dict):
        return [t for v in out.values() for t in flat_tensors(v)]
    if isinstance(out, list | tuple):
        return [t for v in out for t in flat_tensors(v)]
    return []


def _exportable(model: Any, args: tuple[Any, ...]) -> tuple[_TensorsOnly, tuple[Any, ...]]:
    return _TensorsOnly(model).eval(), args


def _jit(model: Any, args: tuple[Any, ...]) -> Call:
    wrapped, tensors = _exportable(model, args)
    traced = torch.jit.freeze(torch.jit.trace(wrapped, tensors, check_trace=False))
    return lambda: traced(*tensors)


def _onnx_bytes(model: Any, args: tuple[Any, ...]) -> tuple[bytes, tuple[Any, ...], list[str]]:
    wrapped, tensors = _exportable(model, args)
    names = [f"x{i}" for i in range(len(tensors))]
    buffer = io.BytesIO()
    torch.onnx.export(wrapped, tensors, buffer, input_names=names, opset_version=17, dynamo=False)
    return buffer.getvalue(), tensors, names


def _onnxruntime(model: Any, args: tuple[Any, ...]) -> Call:
    import onnxruntime

    data, tensors, names = _onnx_bytes(model, args)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    feed = {n: t.numpy() for n, t in zip(names, tensors, strict=True)}
    return lambda: session.run(None, feed)


def _openvino(model: Any, args: tuple[Any, ...]) -> Call:
    import openvino

    data, tensors, names = _onnx_bytes(model, args)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(data)
        core = openvino.Core()
        config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        compiled = core.compile_model(core.read_model(path), "CPU", config)
    request = compiled.create_infer_request()
    feed = {n: t.numpy() for n, t in zip(names, tensors, strict=True)}
    return lambda: request.infer(feed)


# name -> (builder, module that must be installed)
PEERS: dict[str, tuple[Callable[..., Call], str]] = {
    "eager": (_eager, "torch"),
    "framesmith": (_framesmith, "framesmith"),
    "torch.compile": (_torch_compile, "torch"),
    "torch.compile, frozen": (_torch_compile_frozen, "torch"),
    "jit.trace": (_jit, "torch"),
    "onnxruntime": (_onnxruntime, "onnxruntime"),
    "openvino": (_openvino, "openvino"),
}

# Which single option each ablation turns off.
ABLATIONS: dict[str, dict[str, Any]] = {
    "all on": {},
    "no fusion": {"fusion": False},
    "no library choice": {"library_choice": False},
    "no packing": {"packing": False},
    "no vectors": {"vectorize": False},
}


def installed(name: str) -> bool:
    """Whether the peer's package can be imported here."""
    needs = PEERS[name][1]
    extra = ["onnx"] if name in ("onnxruntime", "openvino") else []
    return all(importlib.util.find_spec(m) is not None for m in (needs, *extra))


def build(name: str, model: Any, args: tuple[Any, ...], **options: Any) -> Call:
    """The peer's callable; options are framesmith's alone."""
    return PEERS[name][0](model, args, **options)
