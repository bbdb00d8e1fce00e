"""Branches on sizes of which a path pads or cuts a tensor, or computes another number, take no guard; where the program
can tell the copy from the tensor that the other path keeps, they take one."""

import pytest
import torch

import framesmith
from tests.capture.test_branches import alike

pad = torch.nn.functional.pad
SIZES = ((3, 6, 5), (2, 8, 7), (4, 7, 9), (3, 16, 6), (5, 12, 4), (4, 4, 4), (2, 13, 8))


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


def compared(program, captures, variants):
    compiled = framesmith.compile(program, dynamic=True)
    for size in SIZES:
        x = torch.randint(-9, 9, size).float()
        own = x.clone()
        alike(compiled(x), program(own))
        assert torch.equal(x, own)
    assert len(captures) <= variants


def padded(x):
    if x.shape[1] % 4 != 0:
        x = pad(x, (0, 0, 0, 4 - x.shape[1] % 4))
    return x.view(x.shape[0], x.shape[1] // 4, -1) * 2


def padded_at_both_sides(x):
    h, w = x.shape[1:]
    if h % 2 == 1 or w % 2 == 1:
        x = pad(x, (0, w % 2, 0, h % 2), value=1.0)
    return x[:, ::2, ::2] + x[:, 1::2, 1::2]


def padded_after_all(x):
    h, w = x.shape[1:]
    uneven = (h % 2 == 1) or (w % 2 == 1)
    y = x.abs()
    if uneven:
        y = pad(y, (0, w % 2, 0, h % 2))
    return y.unflatten(1, (-1, 2)).sum(1)


def cut_again(x):
    h, w = x.shape[1:]
    widths = (0, 0, 0, (4 - w % 4) % 4, 0, (4 - h % 4) % 4)
    y = pad(x[..., None].expand(-1, -1, -1, 3), widths) * 2
    was_padded = widths[3] > 0 or widths[5] > 0
    if was_padded:
        y = y[:, :h, :w, :].contiguous()
    return y.view(-1, h * w, 3) + 1


def cut_at_once(x):
    h, w = x.shape[1:]
    y = pad(x, (0, -w % 4, 0, -h % 3)) * 2
    if -w % 4 > 0 or -h % 3 > 0:
        y = y[:, :h, :w].contiguous()
    return y.view(-1, h * w) + 1


def numbers(x):
    h = x.shape[1]
    if h % 3 == 0:
        more = max(5 - 3, 0)
    else:
        more = max(5 - h % 3, 0)
    least = 2
    if h > 6:
        least = h - 2
    return pad(x, (0, 0, more // 2, more - more // 2)), x[:, :least] * more, least


def returned(x):
    y = x * 2
    if x.shape[1] % 4 != 0:
        y = pad(y, (0, 0, 0, 4 - x.shape[1] % 4))
    return y


def contiguous(x):
    h = x.shape[1]
    return pad(x, (0, 0, 0, -h % 4))[:, :h].contiguous().view(-1) + 1


ONE_GRAPH = [padded, padded_at_both_sides, padded_after_all, cut_again, cut_at_once, numbers, returned, contiguous]


@pytest.mark.parametrize("program", ONE_GRAPH)
def test_resizing_takes_no_guard(program, captures):
    compared(program, captures, 1)


@pytest.mark.parametrize("program", [padded, padded_at_both_sides, cut_again, returned])
def test_resizing_is_trained(program, captures):
    compiled = framesmith.compile(program, dynamic=True)
    for size in SIZES:
        x = torch.randint(-9, 9, size).float()
        found = []
        for run in (compiled, program):
            leaf = x.clone().requires_grad_()
            y = run(leaf * 1)
            found.append((y, *torch.autograd.grad(y.pow(2).sum(), leaf)))
        torch.testing.assert_close(*found, rtol=0, atol=0, check_stride=True)
    assert len(captures) == 1


def as_it_is(x):
    if x.shape[1] % 4 != 0:
        x = pad(x, (0, 0, 0, 4 - x.shape[1] % 4))
    return x


def written(x):
    y = z = x * 2
    if x.shape[1] % 4 != 0:
        y = pad(y, (0, 0, 0, 4 - x.shape[1] % 4))
    y.add_(1)
    return y.sum(1), z.sum(1)


def written_before(x):
    y = x * 2
    z = y
    if x.shape[1] % 4 != 0:
        y = pad(y, (0, 0, 0, 4 - x.shape[1] % 4))
    z.add_(1)
    return y.sum(1)


def both_returned(x):
    y = z = x * 2
    if x.shape[1] % 4 != 0:
        y = pad(y, (0, 0, 0, 4 - x.shape[1] % 4))
    return y, z


def one_object(x):
    y = z = x * 2
    if x.shape[1] % 4 != 0:
        y = pad(y, (0, 0, 0, 4 - x.shape[1] % 4))
    return y.sum(1) + (1 if y is z else 0)


def of_other_strides(x):
    x = x.transpose(1, 2)
    if x.shape[2] % 4 != 0:
        x = pad(x, (0, 4 - x.shape[2] % 4))
    return x * 2, x.stride()


def contiguous_and_written(x):
    h = x.shape[1]
    y = pad(x, (0, 0, 0, -h % 4))
    z = y[:, :h].contiguous()
    z.add_(1)
    return y * 1, z * 2


def contiguous_and_returned(x):
    h = x.shape[1]
    y = pad(x, (0, 0, 0, -h % 4))
    return y, y[:, :h].contiguous()


@pytest.mark.parametrize("program", [as_it_is, written, written_before, both_returned, one_object, of_other_strides,
                                     contiguous_and_written, contiguous_and_returned])
def test_what_tells_the_copy_takes_a_guard(program, captures):
    compared(program, captures, 2)
    compiled = framesmith.compile(program, dynamic=True)
    for size in SIZES:
        x = torch.ones(size)
        ours, eager = ([x, *(y if isinstance(y, tuple) else (y,))] for y in (compiled(x), program(x)))
        assert [[a is b for a in ours] for b in ours] == [[a is b for a in eager] for b in eager]
        pointers = [[y.untyped_storage().data_ptr() for y in ys if isinstance(y, torch.Tensor)] for ys in (ours, eager)]
        assert [[a == b for a in own] for own in pointers for b in own] == [
            [a == b for a in own] for own in reversed(pointers) for b in own]


def counted(x):
    if x.shape[1] % 4 != 0:
        counted.calls += 1
        x = pad(x, (0, 0, 0, 4 - x.shape[1] % 4))
    return x * 2


def drawn(x):
    if x.shape[1] % 4 != 0:
        x = pad(x, (0, 0, 0, 4 - x.shape[1] % 4)) + torch.rand(1)
    return x * 2


def test_effects_of_a_path_happen_there_alone():
    compiled = framesmith.compile(counted, dynamic=True)
    counted.calls = 0
    for size in SIZES:
        alike(compiled(torch.ones(size)), torch.ones(size[0], -(-size[1] // 4) * 4, size[2]) * 2 if size[1] % 4 == 0
              else counted(torch.ones(size)))
    assert counted.calls == 2 * sum(size[1] % 4 != 0 for size in SIZES)
    compiled = framesmith.compile(drawn, dynamic=True)
    for size in SIZES:
        torch.manual_seed(0)
        ours, state = compiled(torch.ones(size)), torch.get_rng_state()
        torch.manual_seed(0)
        alike(ours, drawn(torch.ones(size)))
        assert torch.equal(state, torch.get_rng_state())
