"""A short run of the interrupts net in a process of its own; `python -m tests.nets.interrupts` makes as many calls as
one likes."""

import subprocess
import sys


def test_interrupts_leave_nothing_behind():
    run = subprocess.run([sys.executable, "-m", "tests.nets.interrupts", "--count", "60", "--seconds", "12"],
                         capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
