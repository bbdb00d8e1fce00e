"""Every kernel of the graphs compiles to PTX for three generations of chips, without one of them."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from framesmith.codegen.triton.emit import print_kernels  # noqa: E402
from framesmith.schedule.target import GPU  # noqa: E402
from tests.codegen_triton.graphs import DYNAMIC, GRAPHS  # noqa: E402
from tests.codegen_triton.machine import to_ptx  # noqa: E402
from tests.schedule.harness import program_of  # noqa: E402

CHIPS = (80, 90, 100)
seen: set[str] = set()


@pytest.mark.parametrize("name", GRAPHS)
def test_compiles(name):
    fn, make = GRAPHS[name]
    for k in print_kernels(program_of(fn, *make(), target=GPU, dynamic=DYNAMIC[name])):
        if k.text in seen:
            continue
        seen.add(k.text)
        for chip in CHIPS:
            ptx = to_ptx(k, chip)
            assert f".target sm_{chip}" in ptx and k.name in ptx
