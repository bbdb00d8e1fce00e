"""The machine a result was measured on, in words that travel: no host name, no path."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch


def describe() -> dict[str, object]:
    """Processor, cores, vector width, versions and threads."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    fields = dict(
        (part.strip() for part in line.split(":", 1)) for line in text.splitlines() if ":" in line
    )
    return {
        "processor": fields.get("model name", platform.processor()),
        "family": f"{fields.get('cpu family', '?')}/{fields.get('model', '?')}",
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
