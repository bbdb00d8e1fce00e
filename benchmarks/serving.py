"""Models behind one engine: packages beside eager, torch.compile and ONNX Runtime, at several concurrencies.

    python -m benchmarks.serving [models ...] [--ways W,...] [--concurrency N,...] [--seconds S] [--again] [--out FILE]

Each way is a server of its own, `framesmith.serve` with the same batches, padding and limits; only what runs a batch
differs. A client in another process sends requests by gRPC from as many threads as the concurrency; each thread waits
for its answer. "x2": two batches at the same time, which is a package's default. The difference is the greatest of
one answer from the package's in another process, relative to its greatest element.

The file is written after each server, and servers whose rows it has are left out, unless `--again` is given, the
machine is another one, or the seconds are.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import multiprocessing
import queue
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
    return functools.partial(run, load(package))


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
    "package": _packaged, "framesmith.compile": lambda served, _: _torch(framesmith.compile(served.build())),
    "eager": lambda served, _: _torch(served.build()),
    "torch.compile": lambda served, _: _torch(torch.compile(served.build(), dynamic=True)),
    "onnxruntime": _onnxruntime,
}
MEASURED = ("package", "framesmith.compile", "eager", "torch.compile", "onnxruntime", "onnxruntime x2")


def serve(model: str, way: str, package: Path, ports: list[int]) -> int:
    """The server's process."""
    from framesmith.serve import mlserver_adapter

    served = MODELS[model]
    name, _, twice = way.partition(" x")
    function = WAYS[name](served, package)
    workers = [] if name == "package" else [ThreadWorker(function) for _ in range(int(twice or 1))]
    service = Service(package, served.options, Metrics(), workers)
    return mlserver_adapter.serve(service, model, mlserver_adapter.Ports("127.0.0.1", *ports))


def client(model: str, names: list[str], port: int, concurrency: int, seconds: float, answers: Any) -> None:
    """The client's process. Puts into `answers`: the seconds of each request, those from the beginning to the last
    answer, the errors by their text, and the outputs for the first request of seed 0."""
    import tritonclient.grpc as triton

    datatypes = {"int64": "INT64", "float32": "FP32"}
    times: list[float] = []
    errors: Counter[str] = Counter()
    first: list[np.ndarray] = []
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
                answer = server.infer(model, inputs)
            except triton.InferenceServerException as e:
                errors[str(e)] += 1
                time.sleep(.01)
                continue
            if start > begin:
                times.append(time.perf_counter() - start)
            if not first and seed == 0:
                first.extend(answer.as_numpy(x.name) for x in answer.get_response().outputs)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.put((times, time.perf_counter() - begin, dict(errors), first))


def load_of(model: str, package: Path, port: int, concurrency: int, seconds: float) -> dict[str, Any]:
    """The row of one concurrency: requests a second, and milliseconds. Raises RuntimeError without answers."""
    runnable = load(package)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    names = [t["name"] for t in runnable.manifest["inputs"]]
    process = context.Process(target=client, args=(model, names, port, concurrency, seconds, answers))
    process.start()
    try:
        times, took, errors, first = answers.get(timeout=seconds + 120)
    except queue.Empty:
        raise RuntimeError("the client has no answers 120 s after its end") from None
    finally:
        process.join(10)
        process.kill()
    if len(times) < 2 or not first:
        raise RuntimeError(f"{len(times)} answers; errors: {errors}")
    cuts = statistics.quantiles(times, n=100)
    wanted = run(runnable, MODELS[model].request(np.random.default_rng(0)))
    difference = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(first, wanted, strict=True))
    return {"concurrency": concurrency, "requests_per_s": len(times) / took, "p50_ms": cuts[49] * 1e3,
            "p99_ms": cuts[98] * 1e3, "relative_difference": difference, "errors": errors}


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
        load_of(model, package, ports[1], 8, min(10, given.seconds))
        return [load_of(model, package, ports[1], n, given.seconds) for n in given.concurrency]
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        log.close()


def ready(port: int) -> bool:
    """Whether the server at a port of REST is ready."""
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5).status == 200
    except OSError:
        return False


COLUMNS = {"model": "model", "way": "way", "concurrency": "at once", "requests_per_s": "requests/s",
           "p50_ms": "p50, ms", "p99_ms": "p99, ms", "relative_difference": "difference"}


def rows_of(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table."""
    def cell(row: dict[str, Any], column: str) -> str:
        value = row.get(column, "fails")
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    return list(COLUMNS.values()), [[cell(row, c) for c in COLUMNS] for row in report["rows"]]


def failures(report: dict[str, Any]) -> list[str]:
    """A line for each server that has failed, or has refused requests."""
    return [f"{row['model']}, {row['way']}: {row.get('failed') or row['errors']}" for row in report["rows"]
            if row.get("failed") or row["errors"]]


def show(report: dict[str, Any]) -> None:
    header, rows = rows_of(report)
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    console.print("\n".join(failures(report)), markup=False)


def kept(path: Path, about: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a file that was made under the same conditions, but for those that have failed."""
    report = json.loads(path.read_text()) if path.exists() else {}
    same = all(report.get(key) == value for key, value in about.items())
    return [row for row in report["rows"] if "failed" not in row] if same else []


def main() -> int:
    if sys.argv[1:2] == ["--serve"]:
        model, way, package, *ports = sys.argv[2:]
        return serve(model, way, Path(package), list(map(int, ports)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["bert", "resnet50"], help=f"of {', '.join(MODELS)}")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(MEASURED))
    parser.add_argument("--concurrency", type=lambda text: list(map(int, text.split(","))), default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--again", action="store_true", help="measure what the file has, too")
    parser.add_argument("--out", type=Path, default=RESULTS / "serving-cpu.json")
    given = parser.parse_args()
    about = {"machine": machine.describe(), "seconds": given.seconds, "concurrency": given.concurrency}
    report: dict[str, Any] = {"date": datetime.date.today().isoformat(), **about,
                              "rows": [] if given.again else kept(given.out, about)}
    for model in given.models:
        ways = [w for w in given.ways if (model, w) not in {(row["model"], row["way"]) for row in report["rows"]}]
        with tempfile.TemporaryDirectory() as folder:
            package, served = Path(folder) / f"{model}.fsm", MODELS[model]
            if ways:
                framesmith.package(served.build(), arguments(served), path=package, dynamic_shapes=served.dynamic)
            for way in ways:
                try:
                    rows = measure(model, way, package, given)
                except RuntimeError as e:
                    rows = [{"concurrency": 0, "errors": {}, "failed": str(e)[-2000:]}]
                report["rows"] += [{"model": model, "way": way, **row} for row in rows]
                given.out.write_text(json.dumps(report, indent=1) + "\n")
    show(report)
    return int(any("failed" in row for row in report["rows"]))


if __name__ == "__main__":
    sys.exit(main())
