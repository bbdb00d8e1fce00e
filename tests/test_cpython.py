"""The fast part of CPython's own regression tests, with the hook on for every function. The whole: `python
tests/cpython_suite.py`."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("cpython_suite.py")


@pytest.mark.skipif(importlib.util.find_spec("test.test_with") is None,
                    reason="this interpreter came without its tests")
def test_cpythons_own_tests_pass_under_the_hook():
    done = subprocess.run([sys.executable, str(SUITE), "--fast", "--jobs", "2"], capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith(" passed, 0 failed")
