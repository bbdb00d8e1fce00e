"""Models behind one engine: packages beside eager, torch.compile and ONNX Runtime, at several concurrencies.

    python -m benchmarks.serving [models ...] [--ways W,...] [--concurrency N,...] [--seconds S] [--out FILE]

Each way is a server of its own, `framesmith.serve` with the same batches, padding and limits; only what runs a batch
differs. A client in another process sends requests by gRPC from as many threads as the concurrency; each thread waits
for its answer.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import framesmith
from benchmarks import machine, models
from framesmith.serve.batcher import Limits
from framesmith.serve.metrics import Metrics
from framesmith.serve.running import load, run
from framesmith.serve.service import Options, Service
from framesmith.serve.workers import ThreadWorker

RESULTS = Path(__file__).parent / "results"
Function = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


@dataclass(frozen=True)
class Served:
    """A model for serving. `request(random)`: the arrays of one request, in order."""

    build: Callable[[], nn.Module]
    request: Callable[[np.random.Generator], list[np.ndarray]]
    dynamic: list[dict[int, Any]]
    options: Options = field(default_factory=Options)


def bert(layers: int, hidden: int) -> nn.Module:
    """A classifier of texts."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=hidden // 64,
                        intermediate_size=4 * hidden)
    return BertForSequenceClassification(config).eval()


def text(random: np.random.Generator) -> list[np.ndarray]:
    """Tokens of a text of 16 to 128, and their mask."""
    ids = random.integers(0, 30_000, (1, random.integers(16, 129)))
    return [ids, np.ones_like(ids)]


def mlp() -> nn.Module:
    """A model that takes microseconds, so that the engine is what is measured."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()


BATCH, LENGTH = framesmith.Dim("batch", max=64), framesmith.Dim("length", min=2, max=128)
TEXTS = Options(padded=["length"], buckets={"length": [32, 64, 96, 128]}, limits=Limits(rows=8))
MODELS = {
    "mlp": Served(mlp, lambda random: [random.standard_normal((1, 64)).astype("float32")], [{0: BATCH}]),
    "bert_tiny": Served(lambda: bert(2, 128), text, [{0: BATCH, 1: LENGTH}] * 2, TEXTS),
    "bert": Served(lambda: bert(12, 768), text, [{0: BATCH, 1: LENGTH}] * 2, TEXTS),
    "resnet50": Served(lambda: models.named()["resnet50"]()[0],
                       lambda random: [random.standard_normal((1, 3, 224, 224)).astype("float32")], [{0: BATCH}],
                       Options(limits=Limits(rows=8))),
}


def arguments(served: Served) -> tuple[torch.Tensor, ...]:
    """Two requests as one batch."""
    return tuple([torch.from_numpy(x).repeat(2, *[1] * (x.ndim - 1)) for x in served.request(np.random.default_rng(0))])


def _packaged(served: Served, package: Path) -> Function:
    model = load(package)
    return lambda inputs: run(model, inputs)


def _torch(call: Callable[..., Any]) -> Function:
    def function(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        with torch.inference_mode():
            result = call(*map(torch.from_numpy, inputs))
        return [x.numpy() for x in (result.values() if isinstance(result, dict) else [result])]

    return function


def _onnxruntime(served: Served, package: Path) -> Function:
    import onnxruntime

    names = [t["name"] for t in load(package).manifest["inputs"]]
    axes = {name: {k: d.name for k, d in sizes.items()}
            for name, sizes in zip(names, served.dynamic, strict=True)}
    path = package.with_suffix(".onnx")
    torch.onnx.export(served.build(), arguments(served), path, input_names=names, dynamic_axes=axes, dynamo=False)
    session = onnxruntime.InferenceSession(path)
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))


WAYS: dict[str, Callable[[Served, Path], Function]] = {
    "package": _packaged, "eager": lambda served, package: _torch(served.build()),
    "torch.compile": lambda served, package: _torch(torch.compile(served.build(), dynamic=True)),
    "onnxruntime": _onnxruntime,
}


def serve(model: str, way: str, package: Path, ports: list[int]) -> int:
    """The server's process."""
    from framesmith.serve import mlserver_adapter

    served = MODELS[model]
    worker = ThreadWorker(WAYS[way](served, package))
    service = Service(package, served.options, Metrics(), [worker])
    return mlserver_adapter.serve(service, model, mlserver_adapter.Ports("127.0.0.1", *ports))


def client(model: str, names: list[str], port: int, concurrency: int, seconds: float, answers: Any) -> None:
    """The client's process: puts the seconds of each request, and the errors by their text, into `answers`."""
    import tritonclient.grpc as triton

    datatypes = {"int64": "INT64", "float32": "FP32"}
    times: list[float] = []
    errors: Counter[str] = Counter()
    begin = time.perf_counter() + .2

    def ask(seed: int) -> None:
        random = np.random.default_rng(seed)
        server = triton.InferenceServerClient(f"127.0.0.1:{port}")
        while time.perf_counter() < begin + seconds:
            inputs = []
            for name, x in zip(names, MODELS[model].request(random), strict=True):
                inputs.append(triton.InferInput(name, x.shape, datatypes[x.dtype.name]))
                inputs[-1].set_data_from_numpy(x)
            start = time.perf_counter()
            try:
                server.infer(model, inputs)
            except triton.InferenceServerException as e:
                errors[str(e)] += 1
                continue
            if start > begin:
                times.append(time.perf_counter() - start)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.put((times, dict(errors)))


def load_of(model: str, names: list[str], port: int, concurrency: int, seconds: float) -> dict[str, Any]:
    """The row of one concurrency: requests a second, and milliseconds."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=client, args=(model, names, port, concurrency, seconds, answers))
    process.start()
    times, errors = answers.get()
    process.join()
    cuts = statistics.quantiles(times, n=100)
    return {"concurrency": concurrency, "requests_per_s": len(times) / seconds, "p50_ms": cuts[49] * 1e3,
            "p99_ms": cuts[98] * 1e3, "errors": errors}


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def measure(model: str, way: str, package: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one server."""
    ports = free_ports(3)
    log = package.with_suffix(".log").open("w+")
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.serving", "--serve", model, way, package,
                                *map(str, ports)], stdout=log, stderr=subprocess.STDOUT)
    try:
        while not ready(ports[0]):
            if process.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"the server of {model} by {way} has ended:\n{log.read()}")
            time.sleep(.2)
        names = [t["name"] for t in load(package).manifest["inputs"]]
        load_of(model, names, ports[1], 8, min(3, given.seconds))
        return [load_of(model, names, ports[1], n, given.seconds) for n in given.concurrency]
    finally:
        process.terminate()
        process.wait()
        log.close()


def ready(port: int) -> bool:
    """Whether the server at a port of REST is ready."""
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5).status == 200
    except OSError:
        return False


def show(report: dict[str, Any]) -> None:
    columns = ("model", "way", "concurrency", "requests_per_s", "p50_ms", "p99_ms")
    table = Table(*columns)
    for row in report["rows"]:
        table.add_row(*[f"{row[c]:.3g}" if isinstance(row[c], float) else str(row[c]) for c in columns])
    Console().print(table)


def main() -> int:
    if sys.argv[1:2] == ["--serve"]:
        model, way, package, *ports = sys.argv[2:]
        return serve(model, way, Path(package), list(map(int, ports)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["bert", "resnet50"], help=f"of {', '.join(MODELS)}")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(WAYS))
    parser.add_argument("--concurrency", type=lambda text: list(map(int, text.split(","))), default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    report: dict[str, Any] = {"date": datetime.date.today().isoformat(), "machine": machine.describe(),
                              "seconds": given.seconds, "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        for model in given.models:
            package, served = Path(folder) / f"{model}.fsm", MODELS[model]
            framesmith.package(served.build(), arguments(served), path=package, dynamic_shapes=served.dynamic)
            for way in given.ways:
                report["rows"] += [{"model": model, "way": way, **row}
                                   for row in measure(model, way, package, given)]
    show(report)
    out = given.out or RESULTS / "serving.json"
    out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
