"""The text of printed Triton kernels."""

import torch
import torch.nn.functional as F

from framesmith.codegen.triton.emit import print_kernels
from framesmith.schedule.target import GPU
from tests.schedule.harness import program_of

HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice


"""


def printed(fn, *inputs):
    return print_kernels(program_of(fn, *inputs, target=GPU))


def body(fn, *inputs):
    """The text of the only kernel, without imports and from its own `@triton.jit` on; its name as `k`."""
    (k,) = printed(fn, *inputs)
    assert k.text.startswith(HEAD)
    return k.text[k.text.rindex("@triton.jit") :].replace(k.name, "k")


def test_softmax_of_a_row_in_a_tile():
    assert (
        body(lambda a: F.softmax(a, -1), torch.randn(300, 50))
        == """\
@triton.jit
def k(p0, p1, RBLOCK: tl.constexpr):
    i0 = tl.program_id(0)
    i1 = tl.arange(0, RBLOCK)
    r_live = i1 < 50
    v0 = tl.load(p0 + (50*i0 + i1), r_live)
    v1 = tl.reduce(tl.where(r_live, v0, float("-inf")), 0, greater_or_nan)
    v2 = v0 - v1
    v3 = libdevice.exp(v2)
    v4 = tl.sum(tl.where(r_live, v3, 0), 0)
    v5 = tl.div_rn(v3, v4)
    tl.store(p1 + (50*i0 + i1), v5, r_live)
"""
    )
