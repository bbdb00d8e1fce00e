"""Compiles that take long have a line on the terminal, which is gone when they end."""

import io
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from framesmith.tools import progress
from framesmith.util import events
from framesmith.util.timing import stage
from tests.paths import python_path


@pytest.fixture
def screen(monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.05)
    file = io.StringIO()
    with events.on_event(progress.Display(Console(file=file, force_terminal=True, width=100))):
        yield file


def text(file):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())


def test_a_long_compile_shows_its_stage(screen):
    with events.compiling("forward", "/models/net.py", 12, "first call"), stage("total"), stage("build"):
        time.sleep(0.6)
    assert "framesmith: forward (net.py:12): build" in text(screen)


def test_a_short_compile_shows_nothing(screen):
    with events.compiling("forward", "/models/net.py", 12, "first call"):
        pass
    time.sleep(0.1)
    assert text(screen) == ""


def test_compiles_within_one_another_have_a_line_each(screen):
    with events.compiling("outer", "a.py", 1, "first call"):
        time.sleep(0.2)
        with events.compiling("inner", "b.py", 2, "backward", "backward"):
            time.sleep(0.5)
    assert "outer (a.py:1): capture" in text(screen) and "backward of inner (b.py:2): capture" in text(screen)


PROGRAM = """
import sys, time
import torch, framesmith

def backend(gm, inputs):
    time.sleep(2.5)
    return gm

x = torch.ones(3)
out, err = sys.stdout, sys.stderr
print(framesmith.compile(lambda x: x + 1, backend=backend)(x).sum().item())
assert sys.stdout is out and sys.stderr is err
"""


@pytest.mark.parametrize("setting, shown", [("1", True), ("0", False)])
def test_only_where_stderr_is_a_terminal_and_it_is_wanted(setting, shown):
    main, side = pty.openpty()
    done = subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=side, stdout=subprocess.PIPE, text=True,
                            env=os.environ | {"FRAMESMITH_PROGRESS": setting, "TERM": "xterm", "COLUMNS": "100",
                                              "PYTHONPATH": python_path(Path(__file__).parents[2])})
    out, _ = done.communicate(timeout=120)
    os.close(side)
    seen = b""
    try:
        while chunk := os.read(main, 1 << 16):
            seen += chunk
    except OSError:  # the end of a terminal that nobody writes to
        pass
    os.close(main)
    assert out == "6.0\n"
    assert (b"back end" in seen) is shown
