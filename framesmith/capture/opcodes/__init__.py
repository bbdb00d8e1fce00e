"""Handlers of the normalised opcodes, registered in `registry.OPS`."""

from . import building, calling, flow, names, operators, raising, stack

__all__ = ["building", "calling", "flow", "names", "operators", "raising", "stack"]
