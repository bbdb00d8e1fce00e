"""What known functions and methods do to trackers, registered in `registry.CALLS`, `METHODS` and `FOLDED`."""

from . import (
    builtin,
    callables,
    checkpointing,
    class_statements,
    containers,
    defaults,
    deques,
    dicts,
    errors,
    folded,
    frames,
    iterating,
    marks,
    messages,
    modes,
    numeric,
    objects,
    optimisers,
    parameters,
    patterns,
    polyfilled,
    scans,
    serial,
    sets,
    state,
    text,
    torch_making,
    torch_rows,
    transforms,
)

__all__ = [
    "builtin", "callables", "checkpointing", "class_statements", "containers", "defaults", "deques", "dicts", "errors", "folded",
    "frames", "iterating", "marks", "messages", "modes", "numeric", "objects", "optimisers", "parameters", "patterns", "polyfilled",
    "scans", "serial", "sets", "state", "text", "torch_making", "torch_rows", "transforms",
]
