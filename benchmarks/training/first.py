"""The first training step in a process of its own: prints a JSON line with its seconds (see `benchmarks.cold`).

    python -m benchmarks.training.first MODEL PEER OPTIONS
"""

from __future__ import annotations

import json
import sys

from benchmarks.cold import print_first
from benchmarks.training.tasks import task


def _main(name: str, peer: str, options: str) -> None:
    mine, eager = task(name), task(name)
    print_first(lambda: mine.step(peer, **json.loads(options))(), lambda: eager.step("eager")())


if __name__ == "__main__":
    _main(*sys.argv[1:4])
