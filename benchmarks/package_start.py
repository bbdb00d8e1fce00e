"""Loads a file of another runtime in a process of its own and computes one answer, without PyTorch.

    python benchmarks/package_start.py RUNTIME FILE

Inputs are ones, integers zeros. Prints the bytes of the shared libraries that the runtime has mapped.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

THREADS = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))


def filled(shape: Any, dtype: Any) -> np.ndarray:
    return (np.ones if np.issubdtype(dtype, np.floating) else np.zeros)(tuple(shape), dtype)


def onnxruntime(path: str) -> Any:
    """Return the module after one answer."""
    import onnxruntime as module

    options = module.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = module.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
    session.run(None, {x.name: filled(x.shape, types[x.type]) for x in session.get_inputs()})
    return module


def openvino(path: str) -> Any:
    """Return the module after one answer."""
    import openvino as module

    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": THREADS}
    compiled = module.Core().compile_model(path, "CPU", config)
    compiled([filled(x.shape, x.element_type.to_dtype()) for x in compiled.inputs])
    return module


def framesmith_runtime(path: str) -> Any:
    """Return the module after one answer. FRAMESMITH_RUNTIME names the library."""
    import framesmith_runtime as module

    package = module.load(path)
    package(*[filled(x["shape"], x["dtype"]) for x in package.model.manifest["inputs"]])
    return module


def mapped(module: Any) -> int:
    """Return the bytes of the shared libraries of a package that this process has mapped."""
    folder, named = str(Path(module.__file__).parent), os.environ.get("FRAMESMITH_RUNTIME")
    found = {line.split(maxsplit=5)[5].strip() for line in Path("/proc/self/maps").read_text().splitlines()
             if line.count("/") and ".so" in line}
    return sum(os.path.getsize(p) for p in found if p.startswith(folder) or p == named)


if __name__ == "__main__":
    print(mapped({f.__name__: f for f in (onnxruntime, openvino, framesmith_runtime)}[sys.argv[1]](sys.argv[2])))
