"""Attention over tiles compiles for each architecture without a device; what has no tiles is the call of what it
means."""

import pytest
import torch

from framesmith.codegen.triton.user_kernels import user_kernels
from framesmith.loops.ir import Extern
from framesmith.runtime import triton as runtime
from framesmith.runtime.cache import Cache
from tests.codegen_triton.attentions import CASES, calls
from tests.gpu.fakes import DEVICE

pytest.importorskip("triton", reason="triton is not installed")


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("size", ["even", "ragged"])
def test_it_compiles(size, gradient, tmp_path):
    sources = []
    for name in CASES:
        program, tiles, _ = calls(name, size, torch.bfloat16, (128, 128) if size == "even" else None, gradient)
        found = [made.source for made in user_kernels(program, DEVICE).values()]
        assert len(found) == len(tiles) == 1 + gradient
        sources += found
    for binary in runtime.start(sources, 90, Cache(tmp_path), 2).wait():
        assert binary.image and binary.shared < 227 * 1024


@pytest.mark.parametrize("arch", [80, 100])
def test_other_architectures(arch, tmp_path):
    program, _, _ = calls("all", "even", torch.float16, (128, 128), True)
    sources = [made.source for made in user_kernels(program, DEVICE).values()]
    assert all(binary.image for binary in runtime.start(sources, arch, Cache(tmp_path), 2).wait())


def test_what_has_no_tiles():
    program, tiles, _ = calls("soft cap", "even", torch.float32)
    assert not user_kernels(program, DEVICE) and "attention" in str(tiles[0])
    assert sum(type(step) is Extern for step in program.steps) == 1
