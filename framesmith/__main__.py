"""`python -m framesmith COMMAND`: see `COMMANDS`, or `python -m framesmith help`."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "report": ("framesmith.reporting:main", "run a program and report what the compiler did, or show a saved report"),
    "run": ("framesmith.running:run", "run a program in which torch.compile means framesmith"),
    "bench": ("framesmith.bench:main", "time a model of yours beside eager and other compilers"),
    "cache": ("framesmith.cache_command:main", "list, explain, prune, save and load the disk cache"),
    "doctor": ("framesmith.tools.doctor:main", "check this machine, and say what to do"),
    "serve": ("framesmith.serve.command:main", "serve a package by the Open Inference Protocol"),
    "triton": ("framesmith.serve.triton:main", "write a package as a model of Triton Inference Server"),
    "site": ("framesmith.running:site", "print the folder that, in PYTHONPATH, does the same for every program"),
}
"""name -> function over the further arguments, which returns an exit status, and what it does"""


def main(arguments: list[str]) -> int:
    """Run the command that the first argument names."""
    if not arguments or arguments[0] not in COMMANDS:
        print("usage: python -m framesmith COMMAND ...\n")
        print("\n".join(f"  {name:8} {what}" for name, (_, what) in COMMANDS.items()))
        return 0 if arguments[:1] in (["help"], ["-h"], ["--help"]) else 2
    module, _, function = COMMANDS[arguments[0]][0].partition(":")
    return getattr(importlib.import_module(module), function)(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
