"""Quotients of sizes that may be 1: one variant where only layouts hang on it and nobody sees them; strides and aliases
are eager's in any case."""

import pytest
import torch
import torch.nn.functional as F

import framesmith


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


STEM = torch.nn.Conv2d(4, 4, 8, stride=8).requires_grad_(False)
POINT = torch.nn.Conv2d(4, 4, 1).requires_grad_(False)


def pooled(x):
    return F.avg_pool2d(x, 8)


def normed(x):
    """As in ConvNeXt: a norm over channels between convolutions."""
    y = STEM(x)
    y = F.layer_norm(y.permute(0, 2, 3, 1), (4,)).permute(0, 3, 1, 2)
    return POINT(y).mean((2, 3))


def tokens(x):
    """As in SegFormer: tokens to an image and back."""
    y = pooled(x)
    t = y.flatten(2).transpose(1, 2) * 2
    image = t.transpose(1, 2).view(y.shape)
    return image.reshape(y.shape[0], 4, -1).transpose(1, 2).sum(1)


def flattened(x):
    """As in CSATv2: tokens of what lies with channels innermost."""
    return pooled(x).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).flatten(2).transpose(1, 2).sum(1)


def windows(x):
    """As in Swin: padded to whole windows, which are cut and put together."""
    y = pooled(x).permute(0, 2, 3, 1)
    b, h, w, c = y.shape
    y = F.pad(y, (0, 0, 0, (3 - w % 3) % 3, 0, (3 - h % 3) % 3))
    rows, columns = y.shape[1] // 3, y.shape[2] // 3
    cut = y.view(b, rows, 3, columns, 3, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 9, c) * 2
    count = cut.shape[0] // (rows * columns)
    whole = cut.view(count, rows, columns, 3, 3, c).permute(0, 1, 3, 2, 4, 5).reshape(count, rows * 3, columns * 3, c)
    return (whole + y).sum((1, 2))


def alike(got, want):
    torch.testing.assert_close(got, want)
    assert [x.stride() for x in got] == [x.stride() for x in want]


@pytest.mark.parametrize("sides", [(8, 16, 24, 40), (16, 8, 24, 40)])
@pytest.mark.parametrize("program", [normed, tokens, flattened, windows])
def test_unseen_layouts_need_no_variant(program, sides, captures):
    compiled = framesmith.compile(program, fullgraph=True, dynamic=True)
    for side in sides:
        x = torch.randn(2, 4, side, side)
        alike([compiled(x)], [program(x)])
    assert len(captures) == 1


def seen(x):
    y = pooled(x)
    return y, y.permute(0, 2, 3, 1).contiguous() + 1, POINT(y), y.mT + y[:, :1]


def written(x):
    y = pooled(x)
    z = y.permute(0, 2, 3, 1).contiguous().add_(1)
    return y.sum((2, 3)), z.sum((1, 2))


def written_before(x):
    y = pooled(x)
    z = y.permute(0, 2, 3, 1).reshape(2, -1, 4)
    y.mul_(2)
    return y.sum((2, 3)), z.sum(1)


def of_an_input(x):
    return x[:, :, ::8, ::8].permute(0, 2, 3, 1).contiguous(), x.sum()


def asked(x):
    y = pooled(x).permute(0, 2, 3, 1)
    return y.sum((1, 2)) * (2 if y.is_contiguous() else 3), y.sum()


@pytest.mark.parametrize("sides", [(8, 16, 24), (16, 8, 24)])
@pytest.mark.parametrize("program", [seen, written, written_before, of_an_input, asked])
def test_seen_layouts_are_those_of_eager(program, sides):
    compiled = framesmith.compile(program, fullgraph=True, dynamic=True)
    for side in sides:
        x = torch.randn(2, 4, side, side)
        got, want = compiled(x), program(x)
        alike(got, want)
        shared = [[a.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for a in found]
                  for found in (got, want)]
        assert shared[0] == shared[1]
