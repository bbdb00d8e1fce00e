"""Attention over tiles under Triton's interpreter against what it means; run by `test_interpreter`, with
TRITON_INTERPRET=1."""

import pytest
import torch

from framesmith.codegen.triton import attention
from tests.codegen_triton.attentions import CASES, calls
from tests.codegen_triton.machine import module_of


def small(monkeypatch):
    """Several tiles along both sides."""
    for kind in attention.SIZES:
        monkeypatch.setitem(attention.SIZES, kind, {64: (16, 32, 4, 1)})
        monkeypatch.setitem(attention.WIDE, kind, {64: (16, 32, 4, 1)})
    monkeypatch.setattr(attention, "WIDE_SMALL", {64: (16, 32, 4, 1)})


BLOCKS = [(name, blocks) for name in CASES for blocks in ((None, (32, 32), (16, 48)) if CASES[name][2] else (None,))]


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("size", ["even", "ragged"])
@pytest.mark.parametrize(("name", "blocks"), BLOCKS)
def test_agrees(name, size, blocks, gradient, monkeypatch):
    small(monkeypatch)
    compare(*calls(name, size, torch.float16, blocks, gradient)[1:])


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("size", ["even", "ragged"])
@pytest.mark.parametrize("name", CASES)
def test_float32_agrees(name, size, gradient, monkeypatch):
    small(monkeypatch)
    compare(*calls(name, size, torch.float32, None, gradient, tf32=True)[1:])


def compare(tiles, given):
    for call in tiles:
        source, grid = attention.source_of(call, [True] * len(call.arguments))
        found, wanted = ({n: given[n].clone() if n in call.results else given[n] for n in call.arguments}
                         for _ in range(2))
        getattr(module_of(source.text), source.name)[grid](*found.values(), **dict(source.constants))
        call(*wanted.values())
        for n in call.results:
            torch.testing.assert_close(found[n], wanted[n], rtol=2e-2,
                                       atol=4e-3 * (1 + wanted[n].abs()[wanted[n].isfinite()].max().item()))
