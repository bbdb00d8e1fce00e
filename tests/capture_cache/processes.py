"""Programs in processes of their own that share a cache."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.forked import Interpreter
from tests.paths import python_path

ROOT = Path(__file__).parents[2]


class Program:
    """A program whose `text` has `parts` to be filled in, and the module `library` that it imports. It prints JSON.
    `interpreter`: whose forks run it; None: each run begins with an interpreter of its own."""

    text: str
    library_text: str
    parts: dict[str, object]

    def __init__(self, folder: Path, interpreter: Interpreter | None = None) -> None:
        self.folder = folder
        self.interpreter = interpreter
        self.library(self.library_text)

    def library(self, text: str) -> None:
        (self.folder / "library.py").write_text(text)

    def run(self, **parts):
        """Return what a process prints."""
        env = os.environ | {"FRAMESMITH_CACHE_DIR": str(self.folder / "cache"), "FRAMESMITH_KEEP_CAPTURES": "1",
                            "FRAMESMITH_PACKED_LIMIT": str(1 << 30),
                            "PYTHONPATH": python_path(self.folder, ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        text = self.text.format(**{**self.parts, **parts})
        if self.interpreter:
            done = self.interpreter.run(text, env, self.folder)
        else:
            done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])
