"""What known functions and methods do to trackers, registered in `registry.CALLS`, `METHODS` and `FOLDED`."""

from . import builtin, containers, dicts, errors, folded, frames, iterating, marks, messages, modes, objects, parameters, sets, state
from . import torch_rows as torch_rows

__all__ = [
    "builtin", "containers", "dicts", "errors", "folded", "frames", "iterating", "marks", "messages", "modes", "objects", "parameters",
    "sets", "state", "torch_rows",
]
