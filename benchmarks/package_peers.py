"""Other compilers' files of a model: each a row of `PEERS`, which writes the file, runs it here, and has the command
that starts it in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch.utils._pytree import tree_leaves

import framesmith
import framesmith.onnx

HERE = Path(__file__).parent
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """`write(model, tensors, folder)`: the file. `call(file, tensors)`: a function that computes an answer.
    `command(tools, file, tensors)`: of a process that loads the file and computes one answer; `tools`: see
    `build_tools`. `runtime`: the bytes of what the process needs, given the command."""

    write: Callable[[Any, Tensors, Path], Path]
    call: Callable[[Path, Tensors], Callable[[], Any]]
    command: Callable[[Path, Path, Tensors], list[str]]
    runtime: Callable[[list[str]], int]


class TensorsOnly(torch.nn.Module):
    """A model whose result is a tuple of tensors, which all exporters take."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: torch.Tensor) -> Any:
        return tuple([x for x in tree_leaves(self.model(*tensors)) if isinstance(x, torch.Tensor)])


def bytes_of(file: Path) -> int:
    """Return the bytes of a model's file, and of files of weights beside it."""
    return sum(p.stat().st_size for p in file.parent.iterdir() if p.stem == file.stem)


# --- AOTInductor ------------------------------------------------------------------------------------------------------
def _aot_file(model: Any, tensors: Tensors, folder: Path) -> Path:
    path = folder / f"aoti-{torch.__version__}-{torch.backends.cpu.get_cpu_capability()}.pt2"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / "part.pt2"
        program = torch.export.export(model, tensors)
        torch._inductor.aoti_compile_and_package(program, package_path=str(made), inductor_configs={"freezing": True})
        made.rename(path)
    return path


def _aot_call(file: Path, tensors: Tensors) -> Callable[[], Any]:
    loaded = torch._inductor.aoti_load_package(str(file))
    return lambda: loaded(*tensors)


def _aot_command(tools: Path, file: Path, tensors: Tensors) -> list[str]:
    shapes = [f"{str(x.dtype).removeprefix('torch.')}:{','.join(map(str, x.shape))}" for x in tensors]
    return [str(tools / "package_start"), str(file), *shapes]


def _linked(command: list[str]) -> int:
    """Return the bytes of the libraries of PyTorch's that a program needs."""
    needs = subprocess.run(["ldd", command[0]], check=True, capture_output=True, text=True).stdout
    paths = {line.split()[2] for line in needs.splitlines() if "=>" in line and "/torch/lib/" in line}
    return sum(os.path.getsize(p) for p in paths)


def build_tools(folder: Path) -> None:
    """Build the program that starts packages of AOTInductor."""
    root = Path(torch.__file__).parent
    lib, include = root / "lib", root / "include"
    subprocess.run(["g++", "-O1", "-std=c++20", HERE / "package_start.cpp", "-o", folder / "package_start",
                    f"-I{include}", f"-I{include / 'torch/csrc/api/include'}", f"-L{lib}", f"-Wl,-rpath,{lib}",
                    "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"], check=True, capture_output=True)


# --- ONNX Runtime and OpenVINO, from Python: their wheels have no other interface -------------------------------------
def _onnx_file(model: Any, tensors: Tensors, folder: Path, name: str = "ort") -> Path:
    """The file, and beside it the state that a call writes, which the file takes and gives."""
    program = framesmith.export(model, tensors, operators="onnx")
    framesmith.onnx.export(program, folder / f"{name}.onnx")
    if state := framesmith.onnx.initial_state(program):
        np.savez(folder / f"{name}.npz", **{key: x.numpy() for key, x in state.items()})
    return folder / f"{name}.onnx"


def _state_of(file: Path) -> dict[str, np.ndarray]:
    found = file.with_suffix(".npz")
    return dict(np.load(found)) if found.exists() else {}


def _onnx_call(file: Path, tensors: Tensors) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    state, outputs = _state_of(file), [x.name for x in session.get_outputs()]
    given = [*[x.numpy() for x in tensors], *state.values()]
    of_array = onnxruntime.OrtValue.ortvalue_from_numpy
    feed = {x.name: of_array(v) for x, v in zip(session.get_inputs(), given, strict=True)}

    def call() -> list[torch.Tensor]:
        found = dict(zip(outputs, session.run_with_ort_values(outputs, feed), strict=True))
        feed.update({name: found[f"new_{name}"] for name in state})
        return [torch.from_numpy(x.numpy()) for name, x in found.items() if not name.startswith("new_")]

    return call


def _openvino_file(model: Any, tensors: Tensors, folder: Path) -> Path:
    import openvino
    from openvino._offline_transformations import apply_make_stateful_transformation

    source = _onnx_file(model, tensors, folder, "openvino")
    made = openvino.convert_model(source)
    results = [x.name for x in onnx.load(source, load_external_data=False).graph.output if x.name[:4] != "new_"]
    apply_make_stateful_transformation(made, {name: f"new_{name}" for name in _state_of(source)})
    for state in made.get_results()[len(results):]:
        made.remove_result(state)
    source.unlink()
    openvino.save_model(made, folder / "openvino.xml", compress_to_fp16=False)
    return folder / "openvino.xml"


def _openvino_call(file: Path, tensors: Tensors) -> Callable[[], Any]:
    import openvino

    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    request = openvino.Core().compile_model(file, "CPU", config).create_infer_request()
    state = _state_of(file)
    for variable in request.query_state():
        variable.state = openvino.Tensor(state[variable.name.partition("new_")[0]])
    given = [t.numpy() for t in tensors]
    return lambda: [torch.from_numpy(x.copy()) for x in request.infer(given).values()]


def python_command(runtime: str) -> Callable[[Path, Path, Tensors], list[str]]:
    """Return what makes the command of a runtime that is started from Python."""
    return lambda tools, file, tensors: [sys.executable, str(HERE / "package_start.py"), runtime, str(file)]


def _said(command: list[str]) -> int:
    """Return the bytes that the program itself has found."""
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


PEERS = {
    "AOTInductor": Peer(_aot_file, _aot_call, _aot_command, _linked),
    "ONNX Runtime": Peer(_onnx_file, _onnx_call, python_command("onnxruntime"), _said),
    "OpenVINO": Peer(_openvino_file, _openvino_call, python_command("openvino"), _said),
}
