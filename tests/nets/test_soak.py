"""A short soak in a process of its own; `python -m tests.nets.soak` uses as many models as one likes."""

import subprocess
import sys


def test_memory_is_flat():
    run = subprocess.run([sys.executable, "-m", "tests.nets.soak", "--models", "84", "--fast"], capture_output=True,
                         text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
