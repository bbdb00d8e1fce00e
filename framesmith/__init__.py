"""framesmith: a compact compiler for PyTorch programs.

    model = framesmith.compile(model)

The face is complete, and loaded when first used: `import framesmith` costs next to nothing.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from framesmith import exc
from framesmith.config import Config as config
from framesmith.util.collector import collector_paused, promote
from framesmith.util.registration import announce

if TYPE_CHECKING:
    from framesmith import cache, export, onnx, package, testing
    from framesmith.api import (
        allow_in_graph,
        assume_constant_result,
        compile,  # noqa: A004
        disable,
        disallow_in_graph,
        reset,
        warm_up,
    )
    from framesmith.backends import list_backends, lookup_backend, register_backend
    from framesmith.background import wait
    from framesmith.distributed.plan import plan
    from framesmith.distributed.split import split
    from framesmith.export import Dim
    from framesmith.extensions import register_decomposition, register_lowering, register_pass, unregister
    from framesmith.inspection import bisect, check, explain, memory, metrics, minify, prometheus, report, shapes
    from framesmith.package.loading import load
    from framesmith.runtime.recorder import cuda_graph_memory
    from framesmith.takeover import install, installed, uninstall
    from framesmith.util.events import on_event
    from framesmith.util.marks import graph_break, is_compiling, mark_dynamic, mark_static, mark_unbacked

__version__ = "0.1.0"
__all__ = [
    "Dim", "allow_in_graph", "assume_constant_result", "bisect", "cache", "check", "compile", "config",
    "cuda_graph_memory",
    "disable", "disallow_in_graph", "exc", "explain", "export", "graph_break", "install", "installed", "is_compiling",
    "list_backends", "load", "lookup_backend", "mark_dynamic", "mark_static", "mark_unbacked", "memory", "metrics",
    "minify", "on_event", "package", "plan", "prometheus", "register_backend", "register_decomposition",
    "register_lowering", "register_pass", "report", "reset", "shapes", "split", "testing", "uninstall", "unregister",
    "wait", "warm_up",
]

_HOME = {
    "framesmith.api": (
        "allow_in_graph", "assume_constant_result", "compile", "disable", "disallow_in_graph", "reset", "warm_up",
    ),
    "framesmith.backends": ("list_backends", "lookup_backend", "register_backend"),
    "framesmith.background": ("wait",),
    "framesmith.distributed.plan": ("plan",),
    "framesmith.distributed.split": ("split",),
    "framesmith.export": ("Dim",),
    "framesmith.extensions": ("register_decomposition", "register_lowering", "register_pass", "unregister"),
    "framesmith.inspection": ("bisect", "check", "explain", "memory", "metrics", "minify", "prometheus", "report",
                              "shapes"),
    "framesmith.package.loading": ("load",),
    "framesmith.runtime.recorder": ("cuda_graph_memory",),
    "framesmith.takeover": ("install", "installed", "uninstall"),
    "framesmith.util.events": ("on_event",),
    "framesmith.util.marks": ("graph_break", "is_compiling", "mark_dynamic", "mark_static", "mark_unbacked"),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}
announce()


def __getattr__(name: str) -> Any:
    if name in ("cache", "export", "onnx", "package", "testing"):
        return _loaded(f"framesmith.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'framesmith' has no attribute {name!r}")
    module = _loaded(_WHERE[name])
    globals().update({each: getattr(module, each) for each in _HOME[_WHERE[name]]})
    return globals()[name]


def _loaded(module: str) -> Any:
    """Import a module without collections of garbage meanwhile: what it makes stays, and there is much beside it."""
    with collector_paused():
        found = importlib.import_module(module)
        promote()
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if os.environ.get("FRAMESMITH_REPORT"):
    importlib.import_module("framesmith.inspection")
