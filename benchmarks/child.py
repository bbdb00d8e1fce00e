"""Fresh processes for one measurement, or the ranks of one: each report is a line of JSON, and whatever becomes of a
single process is a report too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
    report = _last_report(done.stdout)
    if done.returncode < 0:
        return {"error": f"ended by signal {-done.returncode}"}
    if done.returncode or report is None:
        return {"error": (done.stderr or done.stdout).strip()[-300:]}
    return report


def report_of_ranks(commands: Sequence[Sequence[str]], environment: Mapping[str, str],
                    timeout: float = 600.0) -> dict[str, Any]:
    """What rank 0 of a world reports. `commands`: of each rank; `timeout`: seconds to wait for one. Raises RuntimeError
    if rank 0 reports nothing, and subprocess.TimeoutExpired; no rank is left running."""
    processes = [subprocess.Popen(command, env=os.environ | environment, text=True, stdout=subprocess.PIPE)
                 for command in commands]
    try:
        said = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    report = _last_report(said[0])
    if report is None:
        raise RuntimeError("rank 0 reported nothing")
    return report


def _last_report(output: str) -> dict[str, Any] | None:
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else None
