"""CPython 3.11."""

from __future__ import annotations

from . import common as c

ROWS: dict[str, c.Row] = {
    "LOAD_CONST": c.const_of,
    "KW_NAMES": c.const_of,
    "LOAD_GLOBAL": c.global_of,
    "BINARY_OP": c.binary_of,
    "COMPARE_OP": c.compare_of(0),
    "PRECALL": c.renamed("NOP"),
    "RESUME": c.renamed("NOP"),
    "MAKE_CELL": c.renamed("MAKE_CELL"),
    "POP_JUMP_FORWARD_IF_FALSE": c.renamed("POP_JUMP_IF_FALSE"),
    "POP_JUMP_BACKWARD_IF_FALSE": c.renamed("POP_JUMP_IF_FALSE"),
    "POP_JUMP_FORWARD_IF_TRUE": c.renamed("POP_JUMP_IF_TRUE"),
    "POP_JUMP_BACKWARD_IF_TRUE": c.renamed("POP_JUMP_IF_TRUE"),
    "POP_JUMP_FORWARD_IF_NONE": c.renamed("POP_JUMP_IF_NONE"),
    "POP_JUMP_BACKWARD_IF_NONE": c.renamed("POP_JUMP_IF_NONE"),
    "POP_JUMP_FORWARD_IF_NOT_NONE": c.renamed("POP_JUMP_IF_NOT_NONE"),
    "POP_JUMP_BACKWARD_IF_NOT_NONE": c.renamed("POP_JUMP_IF_NOT_NONE"),
    "JUMP_FORWARD": c.renamed("JUMP"),
    "JUMP_BACKWARD": c.renamed("JUMP"),
    "JUMP_BACKWARD_NO_INTERRUPT": c.renamed("JUMP"),
    "SEND": c.renamed("SEND_POP"),
    "FOR_ITER": c.renamed("FOR_ITER"),
}
for _name in ("LOAD_NAME", "STORE_NAME", "DELETE_NAME", "LOAD_ATTR", "STORE_ATTR", "DELETE_ATTR", "LOAD_METHOD",
              "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "IMPORT_FROM"):
    ROWS[_name] = c.name_of

JUMPS: dict[str, int] = {
    "JUMP_FORWARD": 1, "JUMP_BACKWARD": -1, "JUMP_BACKWARD_NO_INTERRUPT": -1, "FOR_ITER": 1, "SEND": 1,
    "JUMP_IF_FALSE_OR_POP": 1, "JUMP_IF_TRUE_OR_POP": 1,
}
for _cond in ("FALSE", "TRUE", "NONE", "NOT_NONE"):
    JUMPS[f"POP_JUMP_FORWARD_IF_{_cond}"] = 1
    JUMPS[f"POP_JUMP_BACKWARD_IF_{_cond}"] = -1

CACHES = c.caches_from_opcode()
emit = {"jump": ("JUMP_FORWARD",), "call": ("PRECALL", "CALL")}
PLAIN = {"LOAD_METHOD": ("LOAD_ATTR", 0), "LOAD_GLOBAL": ("LOAD_GLOBAL", 1)}
