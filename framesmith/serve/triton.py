"""`python -m framesmith triton MODEL.fsm REPOSITORY`: a package as a model of Triton Inference Server.

    REPOSITORY/NAME/config.pbtxt    names, types and sizes; batches, where the package has a batch dimension
                    1/model.fsm
                    1/model.py      the runtime's class for the Python backend: pip install framesmith-runtime there
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import shutil
import sys
from pathlib import Path

from framesmith.serve.interface import Interface, Tensor
from framesmith.serve.padding import Padding
from framesmith.serve.probe import check_joining
from framesmith.serve.protocol import DATATYPES
from framesmith.serve.running import load, run
from framesmith.serve.workers import ThreadWorker
from framesmith.util.errors import PackageError

MODEL = "from framesmith_runtime.triton import TritonPythonModel  # noqa: F401\n"
UNBOUNDED = 64
"""Rows of a batch of a package whose batch dimension has no greatest size."""


def main(arguments: list[str]) -> int:
    """Write the repository; the exit status."""
    parser = argparse.ArgumentParser("python -m framesmith triton", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="what framesmith.package has written")
    parser.add_argument("repository", type=Path, help="a folder, which is made if it is missing")
    parser.add_argument("--name", help="of the model in requests (default: that of the file)")
    parser.add_argument("--delay", type=float, default=2, metavar="MS", help="to wait for more requests of a batch")
    parser.add_argument("--instances", type=int, default=1, help="that run at once")
    parser.add_argument("--no-batching", action="store_true", help="run requests one by one")
    given = parser.parse_args(arguments)
    try:
        write_repository(given.package, given.repository, given.name or given.package.stem, given.delay,
                         given.instances, not given.no_batching)
    except (PackageError, OSError) as e:
        print(f"{given.package}: {e}", file=sys.stderr)
        return 1
    return 0


def write_repository(package: Path, repository: Path, name: str, delay: float = 2, instances: int = 1,
                     batching: bool = True) -> None:
    """Write `package` as version 1 of the model `name`. `delay`: in milliseconds. Raises `PackageError` for a file that
    is none, for a model that keeps state (Triton may give any request to any instance), and for one whose rows depend
    on each other, unless `batching` is off."""
    model = load(package)
    interface = Interface.from_manifest(model.manifest)
    batch = interface.batch_dimension() if batching else None
    worker = ThreadWorker(functools.partial(run, model))
    asyncio.run(check_joining(Padding(interface, batch), worker.run, {}))
    text = config(interface, batch, name, delay, instances)
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copy(package, version / "model.fsm")
    (version / "model.py").write_text(MODEL)
    (repository / name / "config.pbtxt").write_text(text)


def config(interface: Interface, batch: str | None, name: str, delay: float, instances: int) -> str:
    """Return the text of `config.pbtxt`, a message of Triton's `ModelConfig`; requests are joined along `batch`."""
    least, most = interface.dimensions[batch] if batch is not None else (0, 0)
    joins = least == 1  # Triton takes any number of rows from one on
    lines = [f"name: {json.dumps(name)}", 'backend: "python"',
             f"max_batch_size: {(UNBOUNDED if most is None else most) if joins else 0}"]
    lines += [_tensor("input", t, joins) for t in interface.inputs]
    lines += [_tensor("output", t, joins) for t in interface.outputs]
    if joins:
        lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {round(delay * 1e3)} }}")
    return "\n".join([*lines, f"instance_group [ {{ count: {instances} kind: KIND_CPU }} ]", ""])


def _tensor(kind: str, tensor: Tensor, joins: bool) -> str:
    """Describe a tensor for Triton: a size that varies is -1; that of the batch is left out. Triton has no tensors
    without dimensions: they are of one element on the way."""
    sizes = [size if isinstance(size, int) else -1 for size in tensor.shape[joins:]]
    datatype = DATATYPES[tensor.dtype]
    shape = f"dims: {sizes}" if sizes else "dims: [1] reshape { shape: [] }"
    return f"{kind} [ {{ name: {json.dumps(tensor.name)} data_type: TYPE_{datatype} {shape} }} ]"
