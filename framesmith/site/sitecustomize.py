"""With this folder in PYTHONPATH, torch.compile means framesmith in every Python program (unless FRAMESMITH_INSTALL=0).

The interpreter imports this file when it starts. Nothing is loaded before the program imports torch. A `sitecustomize`
that is found behind this folder runs as well.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_OFF = ("0", "false", "no", "off")


class InstallWithTorch:
    """A finder that waits for torch, and calls `framesmith.install` once its module has run."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find torch as it would be found without this, and hear of the end of its import."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        loader: Any = spec and spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_and_install(module: Any) -> None:
                execute(module)
                _install()

            loader.exec_module = execute_and_install
        return spec


def _install() -> None:
    """Install, or say why not: the program goes on in any case."""
    try:
        _load()
        importlib.import_module("framesmith.takeover").install()
    except Exception as problem:  # whatever is wrong with our installation is not the program's fault
        warnings.warn(f"framesmith is not installed in this program: {type(problem).__name__}: {problem}", stacklevel=2)


def _load() -> None:
    """Import the package that this folder is part of, wherever it is."""
    if "framesmith" not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location("framesmith", _HERE.parent / "__init__.py")
        module = sys.modules["framesmith"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def start() -> None:
    """Wait for torch, or install at once if it is there."""
    if os.environ.get("FRAMESMITH_INSTALL", "1").strip().lower() in _OFF:
        return
    if "torch" in sys.modules:
        _install()
    else:
        sys.meta_path.insert(0, InstallWithTorch())  # type: ignore[arg-type]


def next_of_its_name() -> str | None:
    """Return the file of the `sitecustomize` that this one hides."""
    folders = [p for p in sys.path if p and Path(p).resolve() != _HERE]
    return next((str(file) for p in folders if (file := Path(p) / "sitecustomize.py").is_file()), None)


if __name__ == "sitecustomize":
    start()
    if (_hidden := next_of_its_name()) is not None:
        runpy.run_path(_hidden, run_name="sitecustomize")
