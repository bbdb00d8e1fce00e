"""framesmith: a compact compiler for PyTorch programs.

    model = framesmith.compile(model)
"""

from framesmith import exc
from framesmith.api import compile, disable, explain, graph_break, is_compiling, reset  # noqa: A004
from framesmith.backends import list_backends, lookup_backend, register_backend
from framesmith.config import Config as config

__version__ = "0.1.0"
__all__ = [
    "compile", "config", "disable", "exc", "explain", "graph_break", "is_compiling", "list_backends", "lookup_backend", "register_backend",
    "reset",
]
