"""The service's counters for Prometheus."""

from __future__ import annotations

import importlib
from typing import Any

SECONDS = (.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """Registered with a registry of `prometheus_client` (default: that of the process). Raises ImportError without
    it."""

    def __init__(self, registry: Any = None, prefix: str = "framesmith_serve") -> None:
        client = importlib.import_module("prometheus_client")
        given = {"registry": client.REGISTRY if registry is None else registry}
        name = (prefix + "_{}").format
        self.requests = client.Counter(name("requests"), "Requests, by HTTP's status of their answer", ["status"],
                                       **given)
        self.seconds = client.Histogram(name("request_seconds"), "From a request to its answer", buckets=SECONDS,
                                        **given)
        self.waited = client.Histogram(name("queue_seconds"), "From a request to the run that it is in",
                                       buckets=SECONDS, **given)
        self.run = client.Histogram(name("run_seconds"), "Of the runs of the package", buckets=SECONDS, **given)
        self.rows = client.Histogram(name("batch_rows"), "Rows of requests in a run", buckets=ROWS, **given)
        self.joined = client.Histogram(name("batch_requests"), "Requests in a run", buckets=ROWS, **given)
        self.elements = client.Counter(name("elements"), "Elements of the inputs of runs", ["of"], **given)
        self.queue = client.Gauge(name("queue"), "Requests that wait", **given)
        self.workers = client.Gauge(name("workers_ready"), "Workers that take batches", **given)
        self.fallbacks = client.Counter(name("fallbacks"), "Requests run again, by reason", ["reason"], **given)
        self.restarts = client.Counter(name("worker_restarts"), "Workers that died and were started again", **given)
