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

import torch
from torch.utils._pytree import tree_leaves

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
def _onnx_file(model: Any, tensors: Tensors, folder: Path) -> Path:
    framesmith.onnx.export(model, folder / "ort.onnx", tensors)
    return folder / "ort.onnx"


def _onnx_call(file: Path, tensors: Tensors) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    feed = {x.name: t.numpy() for x, t in zip(session.get_inputs(), tensors, strict=True)}
    return lambda: [torch.from_numpy(x) for x in session.run(None, feed)]


def _openvino_file(model: Any, tensors: Tensors, folder: Path) -> Path:
    import openvino

    framesmith.onnx.export(model, folder / "source.onnx", tensors)
    openvino.save_model(openvino.convert_model(folder / "source.onnx"), folder / "openvino.xml", compress_to_fp16=False)
    return folder / "openvino.xml"


def _openvino_call(file: Path, tensors: Tensors) -> Callable[[], Any]:
    import openvino

    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    request = openvino.Core().compile_model(file, "CPU", config).create_infer_request()
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
