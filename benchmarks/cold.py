"""One cold (or warm) first call in a process of its own: prints a JSON line with its seconds.

    python -m benchmarks.cold MODEL PEER

The parent gives every run an empty cache directory (or the one of the run before, for a warm start) through the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def _caches(folder: Path) -> dict[str, str]:
    return {
        "FRAMESMITH_CACHE_DIR": str(folder / "framesmith"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "HF_HUB_OFFLINE": "1",
    }


def first_call(model: str, peer: str, folder: Path, timeout: float = 600.0) -> dict[str, float]:
    """Run this module in a fresh process whose caches live in `folder`; its report, or {"error": text}."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cold", model, peer],
        env=os.environ | _caches(folder), capture_output=True, text=True, timeout=timeout, check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"error": (done.stderr or done.stdout).strip()[-300:]}  # type: ignore[dict-item]
    return json.loads(lines[-1])


def cold_and_warm(model: str, peer: str, again: bool) -> tuple[dict[str, float], dict[str, float]]:
    """The first call with an empty cache, then (if `again`) in another process with the cache that it left."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cold = first_call(model, peer, Path(folder))
        warm = first_call(model, peer, Path(folder)) if again and "error" not in cold else {}
    return cold, warm


def _main(model_name: str, peer: str) -> None:
    import torch

    from benchmarks import models, peers

    model, args = models.named()[model_name]()
    with torch.inference_mode():
        start = time.perf_counter()
        peers.build(peer, model, args)()
        first = time.perf_counter() - start
        start = time.perf_counter()
        model(*args)
        eager = time.perf_counter() - start
    print(json.dumps({"seconds": first, "eager_seconds": eager}))


if __name__ == "__main__":
    _main(*sys.argv[1:3])
