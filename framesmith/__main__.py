"""`python -m framesmith COMMAND`: a row of `COMMANDS` each, loaded when it is asked for."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "bench": ("framesmith.bench", "time a model against eager"),
    "report": ("framesmith.reporting", "run a program and report what the compiler did"),
}
"""Of each command: the module whose `main(argv)` it is, and what it does."""


def main(argv: list[str]) -> None:
    """Run the command that the first argument names, with the others."""
    if not argv or argv[0] not in COMMANDS:
        print("usage: python -m framesmith COMMAND ...\n")
        print("\n".join([f"  {name:10}{said}" for name, (_, said) in COMMANDS.items()]))
        raise SystemExit(0 if argv and argv[0] in ("-h", "--help") else 2)
    importlib.import_module(COMMANDS[argv[0]][0]).main(argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
