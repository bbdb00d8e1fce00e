"""Eager, framesmith and its peers side by side: each a row of `PEERS`, which makes a callable `() -> output` of a model
and its arguments, in inference.

This is the one file that names other compilers, and nothing but a benchmark imports it. What is not installed is left
out; what fails on a model says why.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from framesmith.api import compile  # noqa: A004

Call = Callable[[], Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
READ, GUARDED, FROZEN = "read in each call", "frozen until one is written", "frozen for good"


@dataclass(frozen=True, slots=True)
class Peer:
    """`build(model, args, kwargs)`: the callable. `how`: the call that a user makes. `weights`: when they may change.
    `needs`: modules that must be installed."""

    build: Callable[[Any, Args, Kwargs], Call]
    how: str
    weights: str
    needs: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """Return whether it can be imported here."""
        return all(importlib.util.find_spec(name) is not None for name in self.needs)


def flat_tensors(out: Any) -> list[torch.Tensor]:
    """Return every tensor in a nested output, in order."""
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, dict):
        return [t for v in out.values() for t in flat_tensors(v)]
    if isinstance(out, list | tuple):
        return [t for v in out for t in flat_tensors(v)]
    return []


class _TensorsOnly(nn.Module):
    """The model with positional tensors in and a tuple of tensors out, as exporters want it. The last of the tensors
    are its arguments `names`."""

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *tensors: torch.Tensor) -> Any:
        count = len(tensors) - len(self.names)
        return tuple(flat_tensors(self.model(*tensors[:count], **dict(zip(self.names, tensors[count:])))))


def _exportable(model: Any, args: Args, kwargs: Kwargs) -> tuple[_TensorsOnly, Args]:
    return _TensorsOnly(model, [*kwargs]).eval(), (*args, *kwargs.values())


def _eager(model: Any, args: Args, kwargs: Kwargs) -> Call:
    return lambda: model(*args, **kwargs)


def framesmith_call(model: Any, args: Args, kwargs: Kwargs, **options: Any) -> Call:
    """Framesmith's own callable, with its options."""
    compiled = compile(model, options=options or None)
    return lambda: compiled(*args, **kwargs)


def _torch_compile(model: Any, args: Args, kwargs: Kwargs, **options: Any) -> Call:
    compiled = torch.compile(model, options=options or None)
    return lambda: compiled(*args, **kwargs)


FROZEN_OPTIONS: dict[str, Any] = {"freezing": True}
BEST_OPTIONS: dict[str, Any] = {**FROZEN_OPTIONS, "max_autotune": True, "coordinate_descent_tuning": True}
"""The options of `mode="max-autotune-no-cudagraphs"`, and frozen weights: modes and options exclude each other."""


def _jit(model: Any, args: Args, kwargs: Kwargs) -> Call:
    wrapped, tensors = _exportable(model, args, kwargs)
    traced = torch.jit.freeze(torch.jit.trace(wrapped, tensors, check_trace=False))
    return lambda: traced(*tensors)


def _onnx(model: Any, args: Args, kwargs: Kwargs) -> tuple[bytes, dict[str, Any]]:
    """Return the model as ONNX, and its inputs by name."""
    wrapped, tensors = _exportable(model, args, kwargs)
    names = [f"x{i}" for i in range(len(tensors))]
    buffer = io.BytesIO()
    torch.onnx.export(wrapped, tensors, buffer,  # type: ignore[arg-type]
                      input_names=names, opset_version=17, dynamo=False)
    return buffer.getvalue(), {n: t.numpy() for n, t in zip(names, tensors, strict=True)}


def _onnxruntime(model: Any, args: Args, kwargs: Kwargs) -> Call:
    import onnxruntime

    data, feed = _onnx(model, args, kwargs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return lambda: tuple(map(torch.from_numpy, session.run(None, feed)))


def _openvino(model: Any, args: Args, kwargs: Kwargs) -> Call:
    import openvino

    data, feed = _onnx(model, args, kwargs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(data)
        core = openvino.Core()
        config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        compiled = core.compile_model(core.read_model(path), "CPU", config)
    request = compiled.create_infer_request()
    return lambda: tuple(map(torch.from_numpy, request.infer(feed).values()))


PEERS: dict[str, Peer] = {
    "eager": Peer(_eager, "model(*inputs)", READ),
    "framesmith": Peer(framesmith_call, "framesmith.compile(model)", GUARDED),
    "torch.compile": Peer(_torch_compile, "torch.compile(model)", READ),
    "torch.compile, frozen": Peer(functools.partial(_torch_compile, **FROZEN_OPTIONS), "options: freezing", FROZEN),
    "torch.compile, best": Peer(functools.partial(_torch_compile, **BEST_OPTIONS),
                                "options: freezing, max_autotune, coordinate_descent_tuning", FROZEN),
    "jit.trace": Peer(_jit, "torch.jit.freeze(torch.jit.trace(model, inputs))", FROZEN),
    "onnxruntime": Peer(_onnxruntime, "CPU, all optimisations", FROZEN, ("onnxruntime", "onnx")),
    "openvino": Peer(_openvino, "CPU, float32, latency", FROZEN, ("openvino", "onnx")),
}
