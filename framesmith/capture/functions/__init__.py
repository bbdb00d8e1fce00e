"""What known functions and methods do to trackers, registered in `registry.CALLS`, `METHODS` and `FOLDED`."""

from . import builtin, containers, dicts, errors, folded, frames, iterating, marks, messages, modes, objects, sets, state, torch_rows

__all__ = [
    "builtin", "containers", "dicts", "errors", "folded", "frames", "iterating", "marks", "messages", "modes", "objects", "sets", "state",
    "torch_rows",
]
