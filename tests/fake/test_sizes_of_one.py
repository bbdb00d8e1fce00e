"""Strides of dimensions of size 1 are eager's, over operators and odd layouts."""

import pytest
import torch
from torch.nn import functional as F

import framesmith
from framesmith.fake import Recorder
from framesmith.fake.infer import infer
from framesmith.fake.tensor import new_fake
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.node import symint
from tests.fake.harness import record, run

LAYOUTS = [((1, 3), (1, 1)), ((1, 3), (7, 1)), ((3, 1), (1, 5)), ((2, 1, 3), (3, 9, 1)), ((2, 1, 3), (1, 77, 2)),
           ((1, 1), (3, 5)),
           ((3, 1, 2), (1, 1, 3)), ((1, 3, 4, 4), (3, 1, 12, 3)), ((1,), (7,)), ((0, 4), (1, 0)), ((3, 4), (1, 3))]
CALLS = {
    "with a number": lambda x: (x + 1, 2 - x, x * 0.5, x % 2, x > 0, x / 3),
    "alone": lambda x: (x.sin(), x ** 2, x.clamp(min=0), x.clamp(0, 1), x.neg(), x.isnan()),
    "with its equal": lambda x: (x + x, torch.maximum(x, x), torch.where(x > 0, x, x)),
    "with what is contiguous": lambda x: (x + torch.ones(x.shape), torch.addcmul(x, torch.ones(x.shape), x)),
    "with what is broadcast": lambda x: (x + torch.ones(x.shape[-1:]), x + torch.ones(()), torch.where(x > 0, x, 0.0)),
    "sorted": lambda x: (*x.sort(0), *x.sort(-1), x.argsort(0)),
    "filled": lambda x: (x.index_fill(0, torch.arange(min(1, len(x))), 2.0), x.masked_fill(x > 0, 1)),
    "viewed": lambda x: (x.reshape(-1), x.view(*x.shape, 1), x.unsqueeze(0), x.expand_as(torch.empty(2, *x.shape))),
}


def assert_laid_out_as_in_eager(fn, layout):
    """Compare shapes and strides of the results, which are a tuple, over fakes and over tensors."""
    x = torch.rand(8000).as_strided(*layout)
    recorder = Recorder()
    fake = recorder.input(x, "x")
    with recorder:
        found = fn(fake)
    assert [(y.shape, y.stride()) for y in found] == [(y.shape, y.stride()) for y in fn(x)]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_sizes_of_one(call, layout):
    assert_laid_out_as_in_eager(CALLS[call], layout)


IMAGES = [((2, 8, 1, 1), (8, 1, 8, 8)), ((1, 8, 1, 1), (8, 1, 8, 8)), ((2, 1, 3, 3), (9, 1, 3, 1)),
          ((2, 1, 3, 3), (9, 9, 3, 1)), ((2, 8, 1, 1), (8, 1, 1, 1)), ((1, 8, 3, 3), (72, 1, 24, 8)),
          ((1, 8, 3, 3), (8, 1, 24, 8)), ((2, 8, 3, 3), (72, 1, 24, 8)), ((2, 8, 1, 1), (16, 2, 1, 1))]
"""The first three are contiguous and channels-last, both."""
OF_IMAGES = {
    "batch_norm": lambda x: (F.batch_norm(x, *[torch.ones(x.shape[1])] * 4),),
    "batch_norm in training": lambda x: (F.batch_norm(x.expand(2, -1, -1, -1) if len(x) < 2 else x, None, None,
                                                      training=True),),
    "cat": lambda x: (torch.cat([x, x], 1), torch.cat([x, x]), torch.cat([x, torch.ones(x.shape)], 1)),
    "rolled": lambda x: (x.roll(1, 1), x.roll(8, 1), x.roll((3, 1), (2, 1))),
    "shuffled": lambda x: (F.channel_shuffle(x, 1), F.pixel_shuffle(torch.cat([x] * 4, 1), 2)),
    "resized": lambda x: tuple([F.interpolate(x, scale_factor=2, mode=mode)
                                for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")]),
}


@pytest.mark.parametrize("call", OF_IMAGES)
@pytest.mark.parametrize("layout", IMAGES, ids=str)
def test_images_in_one_memory_format_or_in_two(call, layout):
    assert_laid_out_as_in_eager(OF_IMAGES[call], layout)


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_size_that_may_be_one_is_laid_out_as_others_are(size):
    """The layout follows from what holds for any size, though any layout fits one element."""
    env = ShapeEnv()
    n = symint(env.new_symbol(size, "n", lo=0, specialise=False), env)
    out = infer(torch.ops.aten.rot90.default, (new_fake((2, n), (n, 1), torch.float32), 1, (0, 1)), {})
    assert [str(x) for x in out.stride()] == ["1", str(n)] and not env.guards


def test_operators_without_a_row_are_laid_out_by_their_operands():
    def overlapping(x):
        parts = x.unfold(-1, 2, 1).mT
        return parts.sgn(), parts.signbit(), torch.hypot(parts, parts.mT.contiguous().mT), parts.nan_to_num()

    compiled = framesmith.compile(overlapping, dynamic=True)
    for n in (3, 5, 9, 2):
        x = torch.randn(n)
        assert [y.stride() for y in compiled(x)] == [y.stride() for y in overlapping(x)]


WRITES = {
    "added": lambda x: x.add_(x),
    "filled": lambda x: x.masked_fill_(x > 0, 1.0),
    "an element": lambda x: x[..., 0].mul_(2),
    "copied": lambda x: x.copy_(torch.ones(x.shape)),
    "by a mask": lambda x: x.__setitem__(x > 0, 2.0),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("layout", [((1,), (2,)), ((1, 3, 1), (1, 1, 1)), ((2, 1, 3), (3, 9, 1))], ids=str)
def test_a_tensor_that_is_written_keeps_its_strides(write, layout):
    def program(x):
        y = x.clone()
        WRITES[write](y)
        return y, y.unsqueeze(0)

    x = torch.rand(20).as_strided(*layout)
    graph, _ = record(program, [x])
    assert [y.stride() for y in run(graph, [x])] == [y.stride() for y in program(x)]
