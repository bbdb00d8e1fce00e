"""Kernels on CPU tensors: `interpreted` in a process in which Triton interprets (it decides that when it is
imported)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")


def test_graphs_agree_with_eager_under_the_interpreter():
    here = Path(__file__).parent
    env = os.environ | {"TRITON_INTERPRET": "1"}
    files = [str(here / f"{name}.py")
             for name in ("interpreted", "interpreted_attention", "interpreted_rows", "interpreted_windows")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(min(os.cpu_count() or 1, 4)),
               *files]
    done = subprocess.run(command, capture_output=True, text=True, cwd=here.parents[1], env=env, timeout=600)
    assert not done.returncode, done.stdout[-5000:]
    assert "[100%]" in done.stdout
