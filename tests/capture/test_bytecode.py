"""Decoding and assembling code objects."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import json.decoder
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from framesmith.capture.bytecode import assemble, decode
from framesmith.capture.bytecode.liveness import liveness


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from codes(c)


@pytest.mark.parametrize("module", [json.decoder, argparse, dataclasses, inspect, contextlib], ids=lambda m: m.__name__)
def test_roundtrip_is_exact(module: types.ModuleType) -> None:
    path = Path(str(module.__file__))
    for code in codes(compile(path.read_text(), str(path), "exec")):
        dec = decode(code)
        again = assemble(code, dec.instrs, dec.handlers, code.co_varnames, argcount=code.co_argcount,
                         cellvars=code.co_cellvars, freevars=code.co_freevars, old=dec, stacksize=code.co_stacksize)
        assert again.co_code == code.co_code
        assert again.co_exceptiontable == code.co_exceptiontable


def test_liveness() -> None:
    def fn(a, b):
        c = a + 1
        for i in range(b):
            c += i
        return c

    assert liveness(fn.__code__, 0) == {"a", "b"}
    last = len(decode(fn.__code__).instrs) - 2
    assert liveness(fn.__code__, last) == {"c"}
