"""Stack effects of opcodes: the entries that an instruction reads and pushes, for bridges.

CPython's own table (`dis.stack_effect`) gives the difference; the rows here say how many of the top entries are new.
"""

from __future__ import annotations

import dis
import opcode
from collections.abc import Callable

from .decode import Instr

_Count = Callable[[int], int]

_NONE = ("DELETE_ATTR", "DELETE_DEREF", "DELETE_FAST", "DELETE_GLOBAL", "DELETE_SUBSCR", "DICT_MERGE", "DICT_UPDATE",
         "LIST_APPEND",
         "LIST_EXTEND", "MAP_ADD", "NOP", "POP_EXCEPT", "POP_TOP", "RAISE_VARARGS", "RERAISE", "RETURN_VALUE",
         "SET_ADD", "SET_UPDATE",
         "STORE_ATTR", "STORE_DEREF", "STORE_FAST", "STORE_GLOBAL", "STORE_SLICE", "STORE_SUBSCR", "PRECALL",
         "KW_NAMES")

_PUSHES: dict[str, _Count] = {
    **dict.fromkeys(_NONE, lambda n: 0),
    "UNPACK_SEQUENCE": lambda n: n,
    "UNPACK_EX": lambda n: (n & 255) + 1 + (n >> 8),
    "BEFORE_WITH": lambda n: 2,
}
"""The number of entries that an instruction pushes; one if it has no row."""

_READS: dict[str, _Count] = {
    "CHECK_EG_MATCH": lambda n: 2, "CHECK_EXC_MATCH": lambda n: 2, "DICT_MERGE": lambda n: n + 3,
    "DICT_UPDATE": lambda n: n + 1,
    "FOR_ITER": lambda n: 1, "GET_LEN": lambda n: 1, "IMPORT_FROM": lambda n: 1, "LIST_APPEND": lambda n: n + 1,
    "LIST_EXTEND": lambda n: n + 1, "MAP_ADD": lambda n: n + 2, "MATCH_KEYS": lambda n: 2, "MATCH_MAPPING": lambda n: 1,
    "MATCH_SEQUENCE": lambda n: 1, "RERAISE": lambda n: n + 1, "SET_ADD": lambda n: n + 1,
    "SET_UPDATE": lambda n: n + 1,
    "WITH_EXCEPT_START": lambda n: 4, "JUMP_IF_FALSE_OR_POP": lambda n: 1, "JUMP_IF_TRUE_OR_POP": lambda n: 1,
}
"""The number of entries that an instruction reads, where it is more than it pops."""


def effect(ins: Instr, jump: bool) -> int:
    """Return how much higher the stack is after an instruction. `jump`: it jumps."""
    if jump and ins.name == "FOR_ITER":
        return -1
    code = opcode.opmap[ins.name]
    return dis.stack_effect(code, ins.arg if code >= opcode.HAVE_ARGUMENT else None, jump=jump)


def pushes(ins: Instr, jump: bool) -> int:
    """Count the entries at the top that are new after an instruction. `jump`: it jumps."""
    if jump or ins.name.startswith("POP_JUMP"):
        return 0
    if ins.name.startswith("JUMP_IF"):
        return 0
    row = _PUSHES.get(ins.name)
    return 1 if row is None else row(ins.arg)


def reads(ins: Instr) -> int:
    """Count the entries at the top that the instruction reads."""
    row = _READS.get(ins.name)
    return pushes(ins, False) - effect(ins, False) if row is None else row(ins.arg)
