"""A short run of many threads in a process of its own; `python -m tests.nets.threads` runs as long as one likes."""

import subprocess
import sys


def test_threads_agree_with_eager():
    run = subprocess.run([sys.executable, "-m", "tests.nets.threads", "--seconds", "10", "--threads", "4"],
                         capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
