"""Kernels on CPU tensors: the files `interpreted*.py` in processes in which Triton interprets (it decides that when it
is imported), each with a part of their tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")
PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
def test_graphs_agree_with_eager_under_the_interpreter(part):
    here = Path(__file__).parent
    env = os.environ | {"TRITON_INTERPRET": "1", "FRAMESMITH_TEST_PART": f"{part}/{PARTS}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
               *map(str, sorted(here.glob("interpreted*.py")))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=here.parents[1], env=env, timeout=600)
    assert not done.returncode, done.stdout[-5000:]
    assert "[100%]" in done.stdout
