"""Handlers of the normalised opcodes, registered in `registry.OPS`."""

from . import building, calling, flow, matching, names, operators, raising, stack
