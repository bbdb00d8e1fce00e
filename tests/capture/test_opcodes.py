"""Every opcode of the running version has a row or a handler; the tables of the other versions name real opcodes
only."""

from __future__ import annotations

import dis
import sys
import types
from typing import Any

import pytest

from framesmith.capture import entry, opcodes
from framesmith.capture.bytecode import decode, py311, py312, tables
from framesmith.capture.frame import UNCAPTURED
from framesmith.capture.registry import OPS

NEVER_IN_CODE = {"CACHE", "RESERVED", "INTERPRETER_EXIT", "EXTENDED_ARG"}
"""Not instructions that capture meets: fillers, prefixes, and the interpreter's own."""


_LISTED = """
BEFORE_ASYNC_WITH BEFORE_WITH BINARY_OP BINARY_SLICE BINARY_SUBSCR BUILD_CONST_KEY_MAP BUILD_LIST BUILD_MAP BUILD_SET
BUILD_SLICE
BUILD_STRING BUILD_TUPLE CALL CALL_FUNCTION_EX CALL_INTRINSIC_1 CALL_INTRINSIC_2 CHECK_EG_MATCH CHECK_EXC_MATCH
CLEANUP_THROW
COMPARE_OP CONTAINS_OP COPY COPY_FREE_VARS DELETE_ATTR DELETE_DEREF DELETE_FAST DELETE_GLOBAL DELETE_NAME DELETE_SUBSCR
DICT_MERGE DICT_UPDATE END_ASYNC_FOR END_FOR END_SEND FORMAT_VALUE FOR_ITER GET_AITER GET_ANEXT GET_AWAITABLE GET_ITER
GET_LEN
GET_YIELD_FROM_ITER IMPORT_FROM IMPORT_NAME IS_OP JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD KW_NAMES
LIST_APPEND
LIST_EXTEND LOAD_ASSERTION_ERROR LOAD_ATTR LOAD_BUILD_CLASS LOAD_CLOSURE LOAD_CONST LOAD_DEREF LOAD_FAST
LOAD_FAST_AND_CLEAR
LOAD_FAST_CHECK LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS LOAD_GLOBAL LOAD_LOCALS LOAD_NAME LOAD_SUPER_ATTR
MAKE_CELL
MAKE_FUNCTION MAP_ADD MATCH_CLASS MATCH_KEYS MATCH_MAPPING MATCH_SEQUENCE NOP POP_EXCEPT POP_JUMP_IF_FALSE
POP_JUMP_IF_NONE
POP_JUMP_IF_NOT_NONE POP_JUMP_IF_TRUE POP_TOP PUSH_EXC_INFO PUSH_NULL RAISE_VARARGS RERAISE RESUME RETURN_CONST
RETURN_GENERATOR
RETURN_VALUE SEND SETUP_ANNOTATIONS SET_ADD SET_UPDATE STORE_ATTR STORE_DEREF STORE_FAST STORE_GLOBAL STORE_NAME
STORE_SLICE
STORE_SUBSCR SWAP UNARY_INVERT UNARY_NEGATIVE UNARY_NOT UNPACK_EX UNPACK_SEQUENCE WITH_EXCEPT_START YIELD_VALUE
"""
OPCODES_OF_312 = _LISTED.split()
"""As CPython 3.12.1 lists them: its table is checked from other versions too."""


def names() -> list[str]:
    """Opcodes that code objects hold: no instrumented and no pseudo ones."""
    return sorted(n for n, number in dis.opmap.items() if number < 256 and not n.startswith("INSTRUMENTED")
                  and n not in NEVER_IN_CODE)


def normalised(name: str, rows: Any = tables.ROWS) -> set[str]:
    """The operations that an opcode may become."""
    row = rows.get(name)
    found = set()
    for arg in (0, 1) if name == "COMPARE_OP" else (0, 1, 13, 16):
        ins: Any = types.SimpleNamespace(name=name, op=name, arg=arg, val=arg, target=-1)
        code: Any = types.SimpleNamespace(co_names=["a"] * 32, co_consts=[None] * 32)
        if row is not None:
            row(ins, code, ())
        found.add(ins.op)
    return found


@pytest.mark.parametrize("name", names())
def test_every_opcode_has_a_handler_or_a_stated_break(name: str) -> None:
    assert entry is not None and opcodes is not None
    for op in normalised(name):
        assert (op in OPS) != (op in UNCAPTURED), f"{name} -> {op}"


@pytest.mark.parametrize("name", OPCODES_OF_312)
def test_every_opcode_of_312_has_a_handler_or_a_stated_break(name: str) -> None:
    for op in normalised(name, py312.ROWS):
        assert (op in OPS) != (op in UNCAPTURED), f"{name} -> {op}"


@pytest.mark.parametrize("name", names())
def test_every_jump_has_a_direction(name: str) -> None:
    number = dis.opmap[name]
    assert (number in dis.hasjrel) == (name in tables.JUMPS)
    assert number not in dis.hasjabs


@pytest.mark.parametrize(("table", "version"), [(py311, (3, 11)), (py312, (3, 12))], ids=["3.11", "3.12"])
def test_tables_name_opcodes(table: types.ModuleType, version: tuple[int, int]) -> None:
    if sys.version_info[:2] != version:
        pytest.skip("another version's table")
    assert set(table.ROWS) <= set(dis.opmap) and set(table.JUMPS) <= set(dis.opmap)


def everything(a, b=1, *args, c=2, **kw):  # type: ignore[no-untyped-def]
    """A bit of everything, decoded below."""
    with a as x, b:
        for i in range(3):
            yield x[i:1] if i else f"{x!r:>{i}}"
    try:
        del a.b, args[0]
        assert c
    except* ValueError as e:
        raise KeyError from e
    match kw:
        case {"a": 1, **rest}:
            return rest
        case [1, *others] | Exception(args=others):
            return [*others, lambda: (a, b)]
    yield from (z async for z in b) if (q := a) else (not q, -q, ~q, a @ b, a is b, a in b)


def test_decoding_finds_every_target() -> None:
    dec = decode(everything.__code__)
    jumps = [i for i in dec.instrs if i.name in tables.JUMPS]
    assert jumps and all(0 <= i.target < len(dec.instrs) for i in jumps)
    real = {i.offset: i.argval for i in dis.get_instructions(everything) if i.opcode in dis.hasjrel}
    assert {i.offset: dec.instrs[i.target].offset for i in jumps} == {
        o: next(j.offset for j in dec.instrs if j.offset >= t) for o, t in real.items()}
