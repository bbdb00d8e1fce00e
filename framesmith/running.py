"""`python -m framesmith run`: a program of somebody else's, in which torch.compile means framesmith.

The program gets a process of its own, exactly as the interpreter would start it, with the folder `site/` in PYTHONPATH:
so its children (workers, launchers of several processes) are told, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SITE = Path(__file__).parent / "site"
USAGE = "usage: python -m framesmith run SCRIPT.py | -m MODULE | -c CODE | PROGRAM [ARGUMENTS...]"


def run(arguments: list[str]) -> int:
    """Replace this process by the program: a script, a module, code, or an executable that starts Python."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    program = None if arguments[0].endswith(".py") or Path(arguments[0]).is_dir() else shutil.which(arguments[0])
    if arguments[0].startswith("-") or program is None:
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        program, arguments = sys.executable, [sys.executable, *flags, *arguments]
    sys.stdout.flush()
    os.execve(program, arguments, environment(os.environ))
    return 0


def site(arguments: list[str]) -> int:
    """Print the folder."""
    print(SITE)
    return 0


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which Python programs are told."""
    paths = [str(SITE), *(p for p in given.get("PYTHONPATH", "").split(os.pathsep) if p and p != str(SITE))]
    return {**given, "PYTHONPATH": os.pathsep.join(paths), "FRAMESMITH_INSTALL": "1"}
