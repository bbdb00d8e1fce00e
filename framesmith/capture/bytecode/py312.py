"""CPython 3.12."""

from __future__ import annotations

from types import CodeType
from typing import Any

from . import common as c


def _load_attr(ins: Any, code: CodeType, names: tuple[str, ...]) -> None:
    ins.op = "LOAD_METHOD" if ins.arg & 1 else "LOAD_ATTR"
    ins.val = code.co_names[ins.arg >> 1]


def _super_attr(ins: Any, code: CodeType, names: tuple[str, ...]) -> None:
    """(name, wants a method pair, super() has two arguments)"""
    ins.val = (code.co_names[ins.arg >> 2], bool(ins.arg & 1), bool(ins.arg & 2))


_NAMES = ("LOAD_NAME", "STORE_NAME", "DELETE_NAME", "STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL",
          "IMPORT_NAME", "IMPORT_FROM", "LOAD_FROM_DICT_OR_GLOBALS")
ROWS: dict[str, c.Row] = {
    "LOAD_CONST": c.const_of,
    "RETURN_CONST": c.const_of,
    "KW_NAMES": c.const_of,
    "LOAD_GLOBAL": c.global_of,
    "BINARY_OP": c.binary_of,
    "COMPARE_OP": c.compare_of(4),
    "LOAD_ATTR": _load_attr,
    "LOAD_SUPER_ATTR": _super_attr,
    "LOAD_FAST_CHECK": c.renamed("LOAD_FAST"),
    "RESUME": c.renamed("NOP"),
    "INTERPRETER_EXIT": c.renamed("NOP"),
    "FOR_ITER": c.renamed("FOR_ITER_END"),
    "SEND": c.renamed("SEND_KEEP"),
    **dict.fromkeys(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"), c.renamed("JUMP")),
    **dict.fromkeys(_NAMES, c.name_of),
}

JUMPS: dict[str, int] = {
    "JUMP_FORWARD": 1, "JUMP_BACKWARD": -1, "JUMP_BACKWARD_NO_INTERRUPT": -1, "FOR_ITER": 1, "SEND": 1,
    "POP_JUMP_IF_FALSE": 1, "POP_JUMP_IF_TRUE": 1, "POP_JUMP_IF_NONE": 1, "POP_JUMP_IF_NOT_NONE": 1,
}

CACHES = c.caches_from_opcode()
emit = {"jump": ("JUMP_FORWARD",), "call": ("CALL",)}
PLAIN = {"LOAD_ATTR": ("LOAD_ATTR", 1), "LOAD_GLOBAL": ("LOAD_GLOBAL", 1), "LOAD_SUPER_ATTR": ("LOAD_SUPER_ATTR", 1)}
