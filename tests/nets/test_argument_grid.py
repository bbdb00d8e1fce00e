"""A sample of the argument grid: no crash, eager's values, eager's errors."""

import re
import subprocess
import sys

import pytest


@pytest.mark.parametrize("mode", ("--forward", "--backward"))
def test_sample(mode: str) -> None:
    """In an interpreter of its own: OpenMP's threads do not survive the grid's `fork` in a process that used them."""
    command = [sys.executable, "-m", "tests.nets.argument_grid", "--sample", "150", mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (\w+)[,:]", done.stdout.splitlines()[-1])}
    assert not done.returncode, done.stdout + done.stderr
    assert counts["right"] + counts["refused"] == 150, done.stdout
