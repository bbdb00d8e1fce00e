"""Row functions that the version tables share."""

from __future__ import annotations

import opcode
from collections.abc import Callable
from types import CodeType
from typing import Any

Row = Callable[[Any, CodeType, tuple[str, ...]], None]

# (symbol, in place) by the argument of BINARY_OP
BINARY = ("add", "and_", "floordiv", "lshift", "matmul", "mul", "mod", "or_", "pow", "rshift", "sub", "truediv", "xor")


def name_of(ins: Any, code: CodeType, names: tuple[str, ...]) -> None:
    """Return the name in co_names that the argument indexes."""
    ins.val = code.co_names[ins.arg]


def const_of(ins: Any, code: CodeType, names: tuple[str, ...]) -> None:
    """Return the constant in co_consts that the argument indexes."""
    ins.val = code.co_consts[ins.arg]


def binary_of(ins: Any, code: CodeType, names: tuple[str, ...]) -> None:
    """BINARY_OP: the name in module `operator`."""
    n = ins.arg
    if n < 13:
        ins.val = BINARY[n]
        return
    base = BINARY[n - 13]
    ins.op = "INPLACE_OP"
    ins.val = "i" + base.rstrip("_")


def global_of(ins: Any, code: CodeType, names: tuple[str, ...]) -> None:
    """LOAD_GLOBAL: (name, push a NULL first)."""
    ins.op = "LOAD_GLOBAL_NULL" if ins.arg & 1 else "LOAD_GLOBAL"
    ins.val = code.co_names[ins.arg >> 1]


def renamed(op: str, then: Row | None = None) -> Row:
    """Return the same operation under the normalised name `op`."""

    def row(ins: Any, code: CodeType, names: tuple[str, ...]) -> None:
        ins.op = op
        if then is not None:
            then(ins, code, names)

    return row


def compare_of(shift: int) -> Row:
    """COMPARE_OP: the operator's text; the index sits above `shift` bits."""

    def row(ins: Any, code: CodeType, names: tuple[str, ...]) -> None:
        ins.val = opcode.cmp_op[ins.arg >> shift]

    return row


def caches_from_opcode() -> dict[str, int]:
    """Inline cache sizes, as the running interpreter states them."""
    entries = getattr(opcode, "_inline_cache_entries", None)
    if entries is None:
        return {}
    if isinstance(entries, dict):
        return dict(entries)
    return {opcode.opname[i]: n for i, n in enumerate(entries) if n}
