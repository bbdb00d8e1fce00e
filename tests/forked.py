"""Programs in processes that are forked of one that has imported PyTorch and framesmith, and compiled nothing."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path

from tests.paths import python_path

ROOT = Path(__file__).parents[1]


class Interpreter:
    """What `python -c` runs, in a fork of a process that has imported `modules`: one program after the other."""

    def __init__(self, *modules: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen([sys.executable, "-m", "tests.forked", *modules], cwd=ROOT, text=True,
                                        env={**os.environ, "PYTHONPATH": python_path(ROOT)}, bufsize=1,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, text: str, environment: dict[str, str], *paths: str | Path) -> subprocess.CompletedProcess[str]:
        """Run `text` with this environment, and these folders before those of PYTHONPATH."""
        assert self.process.stdin is not None and self.process.stdout is not None
        out, err = (Path(self.folder.name, name) for name in ("out", "err"))
        asked = {"text": text, "environment": environment, "paths": [*map(str, paths)], "files": [str(out), str(err)]}
        self.process.stdin.write(json.dumps(asked) + "\n")
        status = int(self.process.stdout.readline())
        return subprocess.CompletedProcess(["-c", text], status, out.read_text(), err.read_text())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.folder.cleanup()


def serve(modules: list[str]) -> None:
    """Fork for each line of the standard input, and say how the child ended. A child returns, and ends as an
    interpreter does."""
    for name in modules:
        importlib.import_module(name)
    for line in sys.stdin:
        if not (pid := os.fork()):
            become(**json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def become(text: str, environment: dict[str, str], paths: list[str], files: list[str]) -> None:
    """Be the interpreter of a program in a text."""
    for number, name in enumerate([os.devnull, *files]):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    sys.path[1:1] = paths
    sys.argv[:] = ["-c"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(text, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    serve(sys.argv[1:])
