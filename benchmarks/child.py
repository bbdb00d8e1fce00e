"""A fresh process for one measurement: it prints its report as a line of JSON, and whatever becomes of it is a report
too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def caches(folder: Path) -> dict[str, str]:
    """The environment that keeps every compiler's cache below `folder`."""
    return {
        "FRAMESMITH_CACHE_DIR": str(folder / "framesmith"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "HF_HUB_OFFLINE": "1",
    }


def report_of(module: str, *args: str, environment: Mapping[str, str], timeout: float = 600.0) -> dict[str, Any]:
    """What `python -m module *args` reports (the last line of its output that is an object of JSON), or {"error":
    text}."""
    command = [sys.executable, "-m", module, *args]
    try:
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=timeout,
                              check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no end after {timeout:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode < 0:
        return {"error": f"ended by signal {-done.returncode}"}
    if done.returncode or not lines:
        return {"error": (done.stderr or done.stdout).strip()[-300:]}
    return json.loads(lines[-1])
