"""Strides of results of operators on images in channels-last order and on transposed operands are eager's, over samples
of `op_db`: its own samples are contiguous for the most part."""

from collections import Counter
from itertools import islice, product

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves, tree_map

import framesmith
from framesmith.fake import Recorder
from framesmith.tools.difference import strides
from framesmith.util.errors import FramesmithError
from tests.op_db import op_db

SAMPLES = 4
LEFT_OUT = ("bernoulli", "dropout", "empty", "jiterator", "multinomial", "normal", "rand", "rrelu")


def transposed(x):
    order = range(x.dim())[::-1]
    return x.permute(*order).contiguous().permute(*order) if x.dim() > 1 else x


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


WAYS = transposed, channels_last


def laid_out(way, value):
    return tree_map(lambda x: way(x.detach()) if isinstance(x, torch.Tensor) and x.layout == torch.strided
                    and not x.is_conj() and not x.is_neg() else x, value)


def recorded(function, *args, **kwargs):
    """What a function of tensors gives of fakes."""
    recorder = Recorder()
    names = iter(range(99))

    def fake(x):
        return recorder.input(x, f"x{next(names)}") if isinstance(x, torch.Tensor) else x

    args, kwargs = tree_map(fake, (args, kwargs))
    with torch.no_grad(), recorder:
        return function(*args, **kwargs)


def differences(function, want, *args, **kwargs):
    """The layouts of results that are not eager's; none where capture leaves the call to eager."""
    try:
        got = recorded(function, *args, **kwargs)
    except (FramesmithError, RuntimeError, TypeError, ValueError, IndexError):
        return []
    return [(tuple(a.shape), a.stride(), b.stride()) for a, b in zip(tree_leaves(want), tree_leaves(got))
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.layout == torch.strided
            and (a.shape != b.shape or strides(a) != strides(b))]


@pytest.mark.parametrize("part", range(4))
def test_of_op_db(part):
    found, compared = {}, Counter()
    for op in op_db[part::4]:
        if torch.float32 not in op.dtypes or any(word in op.name for word in LEFT_OUT):
            continue
        for sample, way in product(islice(op.sample_inputs("cpu", torch.float32), SAMPLES), WAYS):
            x, args, kwargs = laid_out(way, (sample.input, sample.args, sample.kwargs))
            if not any(isinstance(t, torch.Tensor) and t.layout == torch.strided and not t.is_contiguous()
                       for t in tree_leaves((x, args, kwargs))):
                continue
            try:
                want = op(x, *args, **kwargs)
            except (RuntimeError, TypeError, ValueError, IndexError):
                continue
            compared[way] += 1
            if odd := differences(op, want, *laid_out(way, (sample.input, *sample.args)), **kwargs):
                found[op.formatted_name, way.__name__] = odd[0]
    assert not found and all(compared[way] > 20 for way in WAYS)


IMAGE = torch.rand(2, 8, 4, 6).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("function", [
    lambda x: F.glu(x, 1), lambda x: F.glu(x.permute(3, 1, 0, 2), 0), lambda x: F.glu(x[0], 0),
    lambda x: F.pad(x, (1, 2, 1, 1), mode="reflect"), lambda x: F.pad(x, (-1, 2, -1, 1), mode="replicate"),
    lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="replicate"), lambda x: F.channel_shuffle(x, 2),
    lambda x: F.conv2d(x[0].contiguous(), x[:, :, :2, :2]),
    lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
], ids=map(str, range(9)))
def test_of_an_image(function):
    assert not differences(function, function(IMAGE), IMAGE)


def test_a_tensor_resized_to_its_own_sizes_keeps_its_strides():
    def resized(x, template):
        return x.t().clone().resize_as_(template)

    x, template = torch.randn(3, 4), torch.randn(4, 3)
    assert framesmith.compile(resized, fullgraph=True)(x, template).stride() == resized(x, template).stride() == (1, 4)
