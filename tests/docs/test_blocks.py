"""Every block of Python in the documents runs, and prints what the block of text behind it says.

A page is a program: its blocks run in order, in one namespace, each as a file `app.py`. A block `console` begins with a
command, which is run on the block of Python before it, saved as app.py. `...` in what is expected stands for anything.
A block `py` is a fragment: it is not run.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import linecache
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import framesmith

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """`line`: where its text begins in the page."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Find the fenced blocks that name a language."""
    text = page.read_text()
    return [Block(found[1], found[2], text.count("\n", 0, found.start(2)) + 1) for found in BLOCK.finditer(text)]


PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
         if any(block.language == "python" for block in blocks(page))]


def printed(block: Block, namespace: dict[str, Any]) -> str:
    """Run a block in `namespace`; what it prints."""
    linecache.cache["app.py"] = len(block.text), None, block.text.splitlines(keepends=True), "app.py"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block.text, "app.py", "exec"), namespace)
    return out.getvalue()


def run(command: str, program: Block, folder: Path) -> str:
    """Run a shell's command line on `program`; what it prints."""
    (folder / "app.py").write_text(program.text)
    *settings, words = re.split(r" (?=python )", " " + command)
    environment = dict(word.split("=", 1) for word in shlex.split(" ".join(settings)))
    arguments = [sys.executable, *shlex.split(words)[1:]]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path} | environment
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr
    return done.stderr + done.stdout


def check(page: Path, block: Block, got: str) -> None:
    """Compare what was printed with the block that says it, or whose first line is its command."""
    want = block.text.split("\n", 1)[1] if block.language == "console" else block.text
    where = f"{page.name}:{block.line} expects\n{want}\nbut this was printed\n{got}"
    assert doctest.OutputChecker().check_output(want, got, FLAGS), where


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path / "cache"))  # explain names lines that the cache remembers
    namespace: dict[str, Any] = {"__name__": "app"}
    framesmith.reset()
    before, got = None, ""
    for block in blocks(page):
        if block.language == "python":
            before, got = block, printed(block, namespace)
        elif block.language == "text" and before is not None:
            check(page, block, got)
        elif block.language == "console":
            assert before is not None
            check(page, block, run(block.text.splitlines()[0].removeprefix("$ "), before, tmp_path))


def test_pages_that_teach_have_programs() -> None:
    assert {"README.md", "docs/tutorial.md"} <= {str(page.relative_to(ROOT)) for page in PAGES}
