"""A served package under load while its workers are killed: is every request answered, rightly, or refused with a text?

    python -m benchmarks.serving_soak [MODEL] [--seconds S] [--kill-every S] [--load SHARE] [--overload] [--out FILE]

Requests come at a fixed rate, `--load` of what the service was measured to answer, whether or not earlier ones have
their answer. Answers are compared with those of the package in this process. `--overload` is a load of 3: the queue
must refuse what it cannot hold, and what it accepts must be answered in time. The command fails unless each request got
a right answer or a refusal that says why.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import framesmith
from benchmarks import machine
from benchmarks.serving import MODELS, RESULTS, arguments, free_ports, load_of, ready
from framesmith.serve.interface import Interface
from framesmith.serve.running import load, run

DATATYPES = {"int64": "INT64", "float32": "FP32"}
CLEAR = ("right", "StatusCode.UNAVAILABLE: the queue is full", "StatusCode.INTERNAL: N workers died")
"""How an outcome begins that is no fault; under overload also `CANCELLED`, by gRPC itself (see docs/serving.md)."""
NUMBER = re.compile(r"\d+(\.\d+)?")
"""Refusals that differ in numbers alone are counted as one outcome."""
REQUESTS = 32
"""Different requests, which are sent in turn."""
TOLERANCE = 1e-3
"""Of the greatest element: a batch sums in another order than one request."""


def command(model: str, package: Path, ports: list[int], workers: int) -> list[str]:
    """What serves the package as `benchmarks.serving` does, with workers in processes."""
    options = MODELS[model].options
    return [sys.executable, "-m", "framesmith", "serve", str(package), "--name", model, "--workers", str(workers),
            *[f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)],
            "--max-batch", str(options.limits.rows), *[f"--pad={name}" for name in options.padded],
            *[f"--buckets={name}={','.join(map(str, sizes))}" for name, sizes in options.buckets.items()]]


class Sender:
    """Sends requests and judges the answers: `counts` by outcome, `times` in seconds of right ones."""

    def __init__(self, model: str, package: Path, port: int) -> None:
        import tritonclient.grpc.aio as triton

        self._triton, self._model, self._client = triton, model, triton.InferenceServerClient(f"127.0.0.1:{port}")
        runnable = load(package)
        self._interface = Interface.from_manifest(runnable.manifest)
        self._given = [MODELS[model].request(np.random.default_rng(seed)) for seed in range(REQUESTS)]
        self._expected = [run(runnable, given) for given in self._given]
        self.counts: Counter[str] = Counter()
        self.times: list[float] = []

    async def send(self, number: int) -> None:
        """Send one request and count what comes back."""
        inputs = []
        for tensor, x in zip(self._interface.inputs, self._given[number % REQUESTS], strict=True):
            inputs.append(self._triton.InferInput(tensor.name, x.shape, DATATYPES[tensor.dtype]))
            inputs[-1].set_data_from_numpy(x)
        begin = time.perf_counter()
        try:
            answer = await self._client.infer(self._model, inputs, client_timeout=120)
        except self._triton.InferenceServerException as e:
            self.counts[f"{e.status()}: {NUMBER.sub('N', e.message())}"] += 1
            return
        expected = zip(self._interface.outputs, self._expected[number % REQUESTS], strict=True)
        right = all(np.abs(answer.as_numpy(t.name) - x).max() <= TOLERANCE * np.abs(x).max() for t, x in expected)
        self.counts["right" if right else "WRONG"] += 1
        self.times.append(time.perf_counter() - begin)


def kill_a_worker(server: psutil.Process) -> int:
    """SIGKILL for one of the server's workers, which are forks of a child of its; how many were killed."""
    workers = [p for child in server.children() for p in child.children()]
    for worker in workers[:1]:
        worker.send_signal(signal.SIGKILL)
    return len(workers[:1])


async def soak(sender: Sender, server: psutil.Process, rate: float, seconds: float, kill_every: float) -> int:
    """Send for some seconds, kill workers meanwhile, and wait for all answers; how many were killed."""
    begin = time.perf_counter()
    tasks, kills, due = [], [], kill_every
    while (now := time.perf_counter() - begin) < seconds:
        if now > due:
            due += kill_every
            kills.append(asyncio.create_task(asyncio.to_thread(kill_a_worker, server)))
        tasks.append(asyncio.create_task(sender.send(len(tasks))))
        await asyncio.sleep(max(0, begin + len(tasks) / rate - time.perf_counter()))
    await asyncio.gather(*tasks)
    return sum(await asyncio.gather(*kills))


def measure(model: str, package: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The report of one soak."""
    ports = free_ports(3)
    with package.with_suffix(".log").open("w") as log:
        server = psutil.Popen(command(model, package, ports, given.workers), stdout=log, stderr=subprocess.STDOUT)
        try:
            while not ready(ports[0]):
                assert server.poll() is None, package.with_suffix(".log").read_text()
                time.sleep(.2)
            capacity = load_of(model, package, ports[1], 16, min(10, given.seconds))["requests_per_s"]

            async def main() -> tuple[Sender, int]:
                sender = Sender(model, package, ports[1])
                return sender, await soak(sender, server, capacity * given.load, given.seconds, given.kill_every)

            sender, killed = asyncio.run(main())
        finally:
            server.terminate()
            code = server.wait(60)
    cuts = statistics.quantiles(sender.times, n=100)
    clear = (*CLEAR, "StatusCode.CANCELLED") if given.load > 1 else CLEAR
    return {"model": model, "workers": given.workers, "capacity_per_s": capacity, "rate_per_s": capacity * given.load,
            "seconds": given.seconds, "killed": killed, "exit_status": code, "answers": dict(sender.counts),
            "sound": code == 0 and sender.counts["right"] > 0 and all(x.startswith(clear) for x in sender.counts),
            "p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3, "longest_ms": max(sender.times) * 1e3}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="bert", choices=list(MODELS))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--kill-every", type=float, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--load", type=float, default=.8)
    parser.add_argument("--overload", dest="load", action="store_const", const=3.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        package, served = Path(folder) / f"{given.model}.fsm", MODELS[given.model]
        framesmith.package(served.build(), arguments(served), path=package, dynamic_shapes=served.dynamic)
        report = {"date": datetime.date.today().isoformat(), "machine": machine.describe(),
                  **measure(given.model, package, given)}
    print(json.dumps(report, indent=1))
    name = "serving-soak" if given.load <= 1 else "serving-overload"
    (given.out or RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    return int(not report["sound"])


if __name__ == "__main__":
    sys.exit(main())
