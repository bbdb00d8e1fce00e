"""Which kernels become one, and what it is given."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.codegen.triton.emit import print_kernels
from framesmith.codegen.triton.kernel_dedup import _given, shared
from framesmith.codegen.triton.literal_params import Number
from framesmith.lower.contractions.template_heuristics import unmeasured
from framesmith.schedule.target import GPU
from tests.schedule.harness import program_of


def made(fn, *inputs):
    return shared(print_kernels(program_of(fn, *inputs, target=GPU, fusion=False)))


def rows(*sizes):
    """A number for each column of images whose pixels are contiguous."""
    return made(lambda *xs: [x + x.sum(0) / x.shape[0] for x in xs], *[torch.randn(n, c) for n, c in sizes])


def test_numbers_that_differ_are_arguments():
    kernels = made(lambda x, y: (x.sum(0) * 3, y.sum(0) * 3), torch.randn(512, 2400), torch.randn(512, 4000))
    first, second = (k for k in kernels if k.name.startswith("rows"))
    assert first.text == second.text and first.name == second.name
    assert [n.value for n in first.numbers] == [2400] and [n.value for n in second.numbers] == [4000]
    assert first.signature[-1] == ("n0", "i32") and dict(first.multiples) == {2: 16}
    body = first.text[first.text.rindex("@triton.jit") :]
    assert "range(0, 512, RBLOCK)" in body and "i0 + n0*i1" in body


def test_masks_and_addresses_are_multiples_of_what_all_are():
    first, second = made(lambda x, y: (x * 2, y * 2), torch.randn(2416), torch.randn(4016))
    assert first.text == second.text and "x_live = i0 < n0" in first.text and dict(first.multiples) == {2: 16}


@pytest.mark.parametrize("others", [(512, 2401), (512, 2404), (768, 2400)])
def test_vectors_blocks_and_loops_are_not_given_up(others):
    """Numbers that are no multiples of 8, and a loop of few rounds."""
    kernels = rows((512, 2400), others)
    assert not any(k.numbers for k in kernels if k.name.startswith("rows"))


def test_a_kernel_that_takes_sizes_stays():
    program = program_of(lambda x, y: (x * 2, y * 2), torch.randn(24, 3), torch.randn(40, 3), target=GPU, fusion=False,
                         dynamic={(0, 0)})
    assert not any(k.numbers for k in shared(print_kernels(program)))


def test_the_order_and_the_grids_are_the_kernels_own():
    kernels = made(lambda x, y, z: (x * 2, y.exp(), z * 2), torch.randn(1001), torch.randn(1001), torch.randn(5003))
    assert kernels[0].text == kernels[2].text != kernels[1].text and kernels[0].grid != kernels[2].grid


def test_products_over_slices_of_one_tensor_are_one_kernel():
    def fn(x, w):
        return [torch.tanh(torch.mm(one, w)) for one in x]

    given = torch.empty(4, 64, 128, dtype=torch.bfloat16), torch.empty(128, 128, dtype=torch.bfloat16)
    first, *others = shared(print_kernels(program_of(fn, *given, target=GPU, change=unmeasured)))
    assert len({k.text for k in others}) == 1 and not first.numbers
    assert [k.numbers[0].value for k in others] == [8192, 16384, 24576] and "p0 + n0" in others[0].text


def norms(*channels):
    """Two passes over images whose channels are contiguous, of which indices are taken apart."""
    inputs = [torch.empty(4, c, 40, 40, dtype=torch.bfloat16).to(memory_format=torch.channels_last) for c in channels]

    def fn(*xs):
        return [F.relu(F.batch_norm(x, None, None, training=True)) for x in xs]

    return [k for k in shared(print_kernels(program_of(fn, *inputs, target=GPU))) if k.name.startswith("pointwise")]


def test_what_indices_are_divided_by_is_given():
    first, second = norms(48, 80)
    assert first.text == second.text and "// 48" not in first.text and "% 80" not in first.text
    assert [kind for name, kind in first.signature if name.startswith("n0")] == ["i32", "u32", "u32"]
    assert "tl.max_constancy(" in first.text


def test_a_kernel_that_moves_vectors_stays_beside_one_that_cannot():
    first, second = norms(48, 50)
    assert first.text != second.text


@pytest.mark.parametrize("by", [2, 3, 7, 24, 641, 1 << 20, (1 << 30) - 1, 1 << 30, (1 << 31) - 1])
def test_quotients_are_exact(by):
    _, multiplier, shift = (int(n.value) for n in _given(Number("divisor", by)))
    edges = {e for k in (0, 1, 2, (1 << 31) // by - 1, (1 << 31) // by) for e in (k * by - 1, k * by, k * by + 1)}
    for x in [e for e in edges if 0 <= e < 1 << 31] + [(1 << 31) - 1]:
        assert (x * multiplier >> 32) >> shift == x // by
    assert multiplier < 1 << 32
