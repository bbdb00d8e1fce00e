"""Every opcode of the running version has a row or a handler; the tables of the other versions name real opcodes only."""

from __future__ import annotations

import dis
import sys
import types
from typing import Any

import pytest

from framesmith.capture import opcodes
from framesmith.capture.bytecode import decode, py311, py312, tables
from framesmith.capture.frame import UNCAPTURED
from framesmith.capture.registry import OPS

NEVER_IN_CODE = {"CACHE", "RESERVED", "INTERPRETER_EXIT", "EXTENDED_ARG"}
"""Not instructions that capture meets: fillers, prefixes, and the interpreter's own."""


def names() -> list[str]:
    """Opcodes that code objects hold: no instrumented and no pseudo ones."""
    return sorted(n for n, number in dis.opmap.items() if number < 256 and not n.startswith("INSTRUMENTED") and n not in NEVER_IN_CODE)


def normalised(name: str) -> set[str]:
    """The operations that an opcode may become."""
    row = tables.ROWS.get(name)
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
    assert opcodes is not None
    for op in normalised(name):
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
