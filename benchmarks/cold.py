"""One cold (or warm) first call in a process of its own: prints a JSON line with its seconds.

    python -m benchmarks.cold MODEL PEER

The parent gives every run an empty cache directory (or the one of the run before, for a warm start) through the
environment.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import child

KEPT = ("framesmith", "torch.compile")
"""Peers with a cache that a second process finds."""


def cold_and_warm(model: str, peer: str, again: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first call with an empty cache, then (if `again`) in another process with the cache that it left."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        environment = child.caches(Path(folder))
        cold = child.report_of("benchmarks.cold", model, peer, environment=environment)
        warm = child.report_of("benchmarks.cold", model, peer,
                               environment=environment) if again and "error" not in cold else {}
    return cold, warm


def print_first(first: Callable[[], object], eager: Callable[[], object]) -> None:
    """Time each once and print the line."""
    start = time.perf_counter()
    first()
    between = time.perf_counter()
    eager()
    print(json.dumps({"seconds": between - start, "eager_seconds": time.perf_counter() - between}))


def _main(model_name: str, peer: str) -> None:
    import torch

    from benchmarks import models, peers

    model, args = models.named()[model_name]()
    with torch.inference_mode():
        print_first(lambda: peers.build(peer, model, args)(), lambda: model(*args))


if __name__ == "__main__":
    _main(*sys.argv[1:3])
