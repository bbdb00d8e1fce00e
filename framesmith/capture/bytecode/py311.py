"""CPython 3.11."""

from __future__ import annotations

from . import common as c

_CONDITIONS = ("FALSE", "TRUE", "NONE", "NOT_NONE")
_NAMES = ("LOAD_NAME", "STORE_NAME", "DELETE_NAME", "LOAD_ATTR", "STORE_ATTR", "DELETE_ATTR", "LOAD_METHOD",
          "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "IMPORT_FROM")

ROWS: dict[str, c.Row] = {
    "LOAD_CONST": c.const_of,
    "KW_NAMES": c.const_of,
    "LOAD_GLOBAL": c.global_of,
    "BINARY_OP": c.binary_of,
    "COMPARE_OP": c.compare_of(0),
    "PRECALL": c.renamed("NOP"),
    "RESUME": c.renamed("NOP"),
    "SEND": c.renamed("SEND_POP"),
    **{f"POP_JUMP_{way}_IF_{what}": c.renamed(f"POP_JUMP_IF_{what}")
       for way in ("FORWARD", "BACKWARD") for what in _CONDITIONS},
    **dict.fromkeys(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"), c.renamed("JUMP")),
    **dict.fromkeys(_NAMES, c.name_of),
}

JUMPS: dict[str, int] = {
    "JUMP_FORWARD": 1, "JUMP_BACKWARD": -1, "JUMP_BACKWARD_NO_INTERRUPT": -1, "FOR_ITER": 1, "SEND": 1,
    "JUMP_IF_FALSE_OR_POP": 1, "JUMP_IF_TRUE_OR_POP": 1,
    **{f"POP_JUMP_FORWARD_IF_{what}": 1 for what in _CONDITIONS},
    **{f"POP_JUMP_BACKWARD_IF_{what}": -1 for what in _CONDITIONS},
}

CACHES = c.caches_from_opcode()
emit = {"jump": ("JUMP_FORWARD",), "call": ("PRECALL", "CALL")}
PLAIN = {"LOAD_METHOD": ("LOAD_ATTR", 0), "LOAD_GLOBAL": ("LOAD_GLOBAL", 1)}
