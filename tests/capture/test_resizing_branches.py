"""Branches on sizes of which a path pads, cuts or resamples a tensor, or computes another number, take no guard; where
the program can tell the copy from the tensor that the other path keeps, they take one."""

import math

import pytest
import torch

import framesmith
from tests.capture.test_branches import alike

pad, interpolate = torch.nn.functional.pad, torch.nn.functional.interpolate
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


def resampled_to_even_sizes(x):
    y = x[None] + 1
    h, w = y.shape[2:]
    even = -(-h // 2) * 2, math.ceil(w / 2) * 2
    resampled = False
    if even[1] != w or even[0] != h:
        y = interpolate(y, size=even, mode="bilinear", align_corners=False)
        resampled = True
    kept = {"resampled": resampled}
    y = y.unflatten(2, (-1, 2)).flip(3).flatten(2, 3) * 2
    if kept["resampled"]:
        y = interpolate(y, size=(h, w), mode="bilinear", align_corners=True)
    return y - 1, resampled


def resampled_to_another(x):
    y, z = x[None], pad(x[None], (0, x.shape[1] % 2, 0, x.shape[2] % 2)) * 2
    if y.shape != z.shape:
        y = interpolate(y, size=z.shape[2:], mode="bicubic")
    return y + z


def resampled_unless_equal(x):
    y, z = x * 2, pad(x, (0, x.shape[2] % 3))
    kept = y.shape == z.shape
    if not kept:
        y = interpolate(y, size=z.shape[2], mode="linear")
    return y + z, kept


ONE_GRAPH = [resampled_to_even_sizes, resampled_to_another, resampled_unless_equal, padded, padded_at_both_sides,
             padded_after_all, cut_again, cut_at_once, numbers, returned, contiguous]


@pytest.mark.parametrize("program", ONE_GRAPH)
def test_resizing_takes_no_guard(program, captures):
    compared(program, captures, 1)


@pytest.mark.parametrize("program", [padded, padded_at_both_sides, cut_again, returned, resampled_to_another])
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


def padded_at_both_sides_as_it_is(x):
    h, w = x.shape[1:]
    if h % 2 == 1 or w % 2 == 1:
        x = pad(x, (0, w % 2, 0, h % 2))
    return x


def padded_twice_as_it_is(x):
    if x.shape[1] % 2:
        x = pad(x, (0, 0, 0, 1))
    if x.shape[2] % 2:
        x = pad(x, (0, 1))
    return x


def padded_twice_and_written(x):
    y = z = x * 2
    if y.shape[1] % 2:
        y = pad(y, (0, 0, 0, 1))
    if y.shape[2] % 2:
        y = pad(y, (0, 1))
    y.add_(1)
    return y * 1, z * 1


def resampled_as_it_is(x):
    x = x[None]
    h, w = x.shape[2:]
    if w % 2 or h % 2:
        x = interpolate(x, size=(h + h % 2, w + w % 2))
    return x


def resampled_of_other_strides(x):
    y, z = x[None].transpose(2, 3), pad(x[None].transpose(2, 3), (0, x.shape[1] % 2))
    if y.shape != z.shape:
        y = interpolate(y, size=z.shape[2:], mode="bilinear")
    return y * 2, y.stride()


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
                                     contiguous_and_written, contiguous_and_returned, padded_at_both_sides_as_it_is,
                                     padded_twice_as_it_is, padded_twice_and_written, resampled_as_it_is,
                                     resampled_of_other_strides])
def test_what_tells_the_copy_takes_a_guard(program, captures):
    compared(program, captures, 4 if program.__name__.startswith(("padded_", "resampled_")) else 2)
    compiled = framesmith.compile(program, dynamic=True)
    for size in SIZES:
        x = torch.ones(size)
        ours, eager = ([x, *(y if isinstance(y, tuple) else (y,))] for y in (compiled(x), program(x)))
        assert [[a is b for a in ours] for b in ours] == [[a is b for a in eager] for b in eager]
        pointers = [[y.untyped_storage().data_ptr() for y in ys if isinstance(y, torch.Tensor)] for ys in (ours, eager)]
        assert [[a == b for a in own] for own in pointers for b in own] == [
            [a == b for a in own] for own in reversed(pointers) for b in own]


MODES = {
    "nearest": ((2, 3), None), "nearest-exact": ((1, 2, 3), None), "linear": ((2, 3), None),
    "bilinear": ((2, 3, 4), True), "bicubic": ((1, 2, 3), False), "trilinear": ((1, 2, 3, 3), None),
    "antialias": ((1, 2, 3), None),
}


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("mode", MODES)
def test_a_tensor_of_the_size_is_kept_exactly(mode, backend, captures):
    """What is not finite does not spread, nor does -0.0 become 0.0."""
    shape, corners = MODES[mode]
    kind, antialias = ("bilinear", True) if mode == "antialias" else (mode, False)

    def fn(x, n):
        x, size = x * 1, (*x.shape[2:-1], n.shape[0])
        if x.shape[2:] != size:
            x = interpolate(x, size=size, mode=kind, align_corners=corners, antialias=antialias)
        return -x

    compiled = framesmith.compile(fn, dynamic=True, backend=backend)
    for width, size in ((4, 5), (4, 4), (6, 6), (5, 3), (7, 7), (3, 6)):
        x = torch.rand(*shape, width)
        if width == size:
            x.view(-1)[::3] = torch.tensor([math.inf, -0.0, math.nan])[torch.arange(x.numel())[::3] % 3]
        ours, eager = compiled(x, torch.ones(size)), fn(x, torch.ones(size))
        torch.testing.assert_close(ours, eager, equal_nan=True, check_stride=True)
        if width == size:
            assert torch.equal(ours.view(torch.int32), eager.view(torch.int32))
    if backend == "native":
        assert len(captures) == 1


def test_comparing_shapes_takes_no_guard_where_one_dimension_decides(captures):
    def fn(x, y):
        return x * (2 if x.shape == y.shape else 3), x.shape == y.shape, x.shape != (4, y.shape[1])

    compiled = framesmith.compile(fn, dynamic=True)
    for a, b in (((3, 6), (3, 6)), ((4, 5), (4, 5)), ((5, 5), (5, 5)), ((1, 6), (1, 6)), ((0, 6), (0, 6))):
        alike(compiled(torch.ones(a), torch.ones(b)), fn(torch.ones(a), torch.ones(b)))
    framesmith.reset()
    captures.clear()
    for a, b in (((3, 6), (4, 6)), ((4, 5), (4, 6)), ((5, 7), (6, 8)), ((3, 5, 2), (3, 5))):
        x, y = torch.ones(a), torch.ones(b)
        alike(compiled(x, y), fn(x, y))
    assert len(captures) == 2


def test_what_may_be_empty_is_not_resampled():
    def fn(x):
        size = [n // 4 for n in x.shape[2:]]
        if x.shape[2] % 4 and x.shape[2] > 5:
            x = interpolate(x * 1, size=size)
        return x + 1

    compiled = framesmith.compile(fn, dynamic=True)
    for n in (5, 6, 8, 3, 7, 4, 1, 0):
        x = torch.rand(2, 3, n, n)
        alike(compiled(x), fn(x))


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
