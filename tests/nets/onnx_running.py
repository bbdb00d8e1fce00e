"""Exported ONNX files, run by other engines and compared with eager."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from framesmith.export import Program
from framesmith.export.trees import flatten
from framesmith.onnx import initial_state
from framesmith.onnx.exporter import inputs_of_file
from framesmith.tools.difference import distance, mismatch

DRAWS = frozenset(("RandomUniformLike", "RandomNormalLike", "Bernoulli", "Multinomial", "Dropout"))
CANCELLING = frozenset(("Sigmoid",))
"""Nodes that an engine computes as a sum with numbers about one: ONNX Runtime has sigmoid(x) = 1/2 + p(x) / q(x), whose
results near 0 have the rounding of 1/2."""
Run = Callable[[dict[str, np.ndarray]], list[np.ndarray]]


class NoKernel(Exception):
    """An engine has no kernel for a node, or none for its dtypes."""


def of_onnxruntime(path: Path) -> Run:
    """The file as a function of its inputs. Raises `NoKernel`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as e:
        if "NOT_IMPLEMENTED" in str(e) or type(e).__name__ == "NotImplemented":
            raise NoKernel(str(e)) from e
        raise
    names = {i.name for i in session.get_inputs()}
    if any("bfloat16" in o.type for o in session.get_outputs()):
        raise NoKernel("NumPy has no bfloat16")
    return lambda given: session.run(None, {k: x for k, x in given.items() if k in names})


def of_openvino(path: Path) -> Run:
    """The file as a function of its inputs, without the engine's rounding to bfloat16. Raises `NoKernel`."""
    import openvino
    core = openvino.Core()
    try:
        model = core.read_model(path)
    except Exception as e:
        if "not supported" in str(e).lower() or "unsupported" in str(e).lower() or "No conversion" in str(e):
            raise NoKernel(str(e)) from e
        raise
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1})
    names = {n for i in compiled.inputs for n in i.names}

    def run(given: dict[str, np.ndarray]) -> list[np.ndarray]:
        found = compiled({k: x for k, x in given.items() if k in names})
        return [found[o] for o in compiled.outputs]

    return run


def inputs_of(program: Program, leaves: Sequence[Any]) -> dict[str, np.ndarray]:
    """The arguments of a call and the state that it writes, by the names that the file has for them."""
    given = {name: leaves[i.target] for name, i in inputs_of_file(program).items() if i.kind == "input"}
    return {name: x.detach().contiguous().numpy() for name, x in (given | initial_state(program)).items()}


def expected(program: Program, result: Any) -> list[torch.Tensor]:
    """What of an eager result is an output of the file, in order."""
    leaves = flatten(result)[0]
    return [torch.as_tensor(x).detach() for x, r in zip(leaves, program.results, strict=True) if r.kind != "constant"]


def difference(want: list[torch.Tensor], got: list[np.ndarray], exact: list[Any], uncompared: Collection[int] = (),
               least: float = 0.0) -> str:
    """What differs; of `uncompared` outputs, in dtype and shape alone. `least`: see `tools.difference.mismatch`."""
    if len(got) < len(want):
        return f"{len(want)} outputs became {len(got)}"
    for k, (a, b) in enumerate(zip(want, got, strict=False)):
        y = torch.from_numpy(np.array(b))
        if k in uncompared:
            a = y.clone() if a.dtype is y.dtype and a.shape == y.shape else a
        if found := mismatch(a, y, exact[k] if k < len(exact) else None, least):
            return f"output {k}: {found}"
    return ""


def least_of(made: Any) -> float:
    """As how large the results of a file are to be taken, for their rounding."""
    return float(any(n.op_type in CANCELLING for n in made.graph.all_nodes()))


def drawn(made: Any) -> bool:
    """Return whether a file draws random numbers."""
    return any(n.op_type in DRAWS for n in made.graph.all_nodes())


def as_near(want: list[torch.Tensor], got: list[np.ndarray], exact: list[Any]) -> bool:
    """Return whether results are about as near to those in float64 as eager's own, where these are far from them."""
    return len(exact) == len(want) and all(
        _far(torch.from_numpy(np.array(b)), c) <= 1.5 * _far(a, c) for a, b, c in zip(want, got, exact, strict=False))


def _far(x: torch.Tensor, exact: torch.Tensor) -> float:
    return distance(x, exact) / max(float(exact.double().abs().max()), 1e-6) if exact.numel() else 0.0
