"""A short soak in a process of its own; `python -m tests.nets.soak` uses as many models as one likes."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("how", [(), ("--reset",)])
def test_memory_is_flat(how):
    run = subprocess.run([sys.executable, "-m", "tests.nets.soak", "--models", "96", "--fast", *how],
                         capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
