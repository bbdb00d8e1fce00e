"""`python -m framesmith serve MODEL.fsm`: serve a package by the Open Inference Protocol."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from framesmith.serve.batcher import Limits
from framesmith.serve.canary import Canary, Trial
from framesmith.serve.metrics import Metrics
from framesmith.serve.service import Options, Service
from framesmith.util.errors import PackageError

ENGINE = "framesmith.serve.mlserver_adapter"


def main(arguments: list[str]) -> int:
    """Return the command line."""
    given = _parser().parse_args(arguments)
    log, handler = logging.getLogger("framesmith.serve"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s [%(name)s] %(levelname)s - %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        engine = importlib.import_module(ENGINE)
    except ModuleNotFoundError as e:
        print(f"{e.name} is not installed: pip install framesmith[serve]", file=sys.stderr)
        return 1
    options = Options(workers=given.workers, at_once=given.at_once, batching=not given.no_batching,
                      padded=given.pad, fills=dict(given.fill), buckets=dict(given.buckets), warm_up=given.warm_up,
                      limits=Limits(given.max_batch, given.queue, given.delay / 1e3, given.wait, given.timeout))
    try:
        stable = Service(given.package, options, Metrics())
        service: Service | Canary = stable
        if given.canary:
            candidate = Service(given.canary, options, Metrics(prefix="framesmith_canary"))
            service = Canary(stable, candidate, Trial(given.share, given.trial, given.move, given.slowdown))
    except (PackageError, OSError) as e:
        print(f"{given.package}: {e}", file=sys.stderr)
        return 1
    ports = engine.Ports(given.host, given.http_port, given.grpc_port, given.metrics_port, given.max_bytes)
    return engine.serve(service, given.name or given.package.stem, ports)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m framesmith serve", description=__doc__)
    add = parser.add_argument
    add("package", type=Path, help="what framesmith.package has written")
    add("--name", help="of the model in requests (default: that of the file)")
    add("--host", default="127.0.0.1")
    add("--http-port", type=int, default=8080)
    add("--grpc-port", type=int, default=8081)
    add("--metrics-port", type=int, default=8082)
    add("--workers", type=int, default=0, help="processes that run batches (default: 0, threads of this one)")
    add("--at-once", type=int, default=Options.at_once, help="batches at the same time on threads of this process")
    add("--max-batch", type=int, default=Limits.rows, metavar="ROWS")
    add("--delay", type=float, default=Limits.delay * 1e3, metavar="MS", help="to wait for more requests of a batch")
    add("--no-batching", action="store_true", help="run requests one by one")
    add("--pad", action="append", default=[], metavar="DIMENSION", help="requests may be padded along it")
    add("--fill", action="append", default=[], type=_fill, metavar="INPUT=NUMBER", help="to pad with, instead of 0")
    add("--buckets", action="append", default=[], type=_buckets, metavar="DIMENSION=N,N,...",
        help="requests up to the same of these sizes are joined (default: powers of two); of the batch: sizes to fill "
             "it up to (default: none)")
    add("--warm-up", action="append", default=[], type=_sizes, metavar="DIMENSION=N,...",
        help="sizes to run before the service is ready; may be given more than once")
    add("--queue", type=int, default=Limits.queue, help="requests that may wait; more are refused")
    add("--wait", type=float, default=Limits.wait, metavar="SECONDS",
        help="in the queue; requests that would wait longer are refused")
    add("--timeout", type=float, default=Limits.timeout, metavar="SECONDS", help="of a request")
    add("--max-bytes", type=int, default=64 << 20, help="of a request's body")
    add("--canary", type=Path, metavar="NEW.fsm", help="a new version, to be compared, and promoted or rolled back")
    add("--share", type=float, default=Trial.share, help="of the requests, that the new version is compared by")
    add("--trial", type=int, default=Trial.requests, metavar="N", help="requests to be compared")
    add("--move", action="store_true", help="the new version answers its share, instead of a mirror of it")
    add("--slowdown", type=float, default=Trial.slowdown, help="of the median that the new version may have")
    return parser


def _fill(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    return name, float(number)


def _buckets(text: str) -> tuple[str, Sequence[int]]:
    name, _, numbers = text.partition("=")
    return name, sorted(map(int, numbers.split(",")))


def _sizes(text: str) -> dict[str, int]:
    return {name: int(size) for name, _, size in (part.partition("=") for part in text.split(","))}
