"""Attention in training on a CUDA device, by fakes: a mask whose rows are not contiguous is copied, so that a fused
kernel takes it; eager's parts would keep the scores of all heads."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.autograd.joint import trace_joint
from framesmith.autograd.strided_masks import _with_contiguous_rows
from framesmith.fake.recorder import Recorder
from framesmith.fake.tensor import contiguous_strides, new_fake
from tests.gpu.fakes import DEVICE, makes_on_cuda  # noqa: F401

aten = torch.ops.aten
BATCH, HEADS, SIZE, WIDTH = 2, 3, 16, 8


def copies(expanded, mask_shape, **options):
    """The shapes of copies of the mask in the joint graph, and the layout of its result."""
    recorder = Recorder()
    shapes = {(BATCH, HEADS, SIZE, WIDTH): torch.bfloat16, mask_shape: torch.bool}
    q, mask = [recorder.input_like(new_fake(shape, contiguous_strides(shape), dtype, DEVICE), f"x{k}")
               for k, (shape, dtype) in enumerate(shapes.items())]
    q.requires_grad_()
    with torch.enable_grad(), recorder:
        out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask.expand(expanded), **options)
    graph = trace_joint(recorder.finish([out])).graph
    made = [n.meta["val"] for n in graph.nodes if n.target is aten.clone.default]
    (result,) = [n for n in graph.nodes if n.op == "output"]
    return [tuple(x.shape) for x in made if x.dtype is torch.bool], result.args[0][0].meta["val"].stride()


@pytest.mark.usefixtures("makes_on_cuda")
def test_the_mask_alone_is_copied_as_it_was_expanded():
    dense = contiguous_strides((BATCH, HEADS, SIZE, WIDTH))
    assert copies((BATCH, 1, SIZE, SIZE), (1, 1, SIZE, 1)) == ([(1, 1, SIZE, SIZE)], dense)
    assert copies((BATCH, 1, SIZE, SIZE), (BATCH, 1, SIZE, 1)) == ([(BATCH, 1, SIZE, SIZE)], dense)
    assert copies((SIZE, SIZE), (1, 1)) == ([(1, SIZE)], dense)


@pytest.mark.usefixtures("makes_on_cuda")
def test_what_fused_kernels_take_or_what_draws_is_not_copied():
    assert copies((BATCH, 1, SIZE, SIZE), (BATCH, 1, 1, SIZE))[0] == []
    assert copies((BATCH, 1, SIZE, SIZE), (1, 1, SIZE, 1), dropout_p=0.5)[0] == []


@pytest.mark.parametrize("make", [
    lambda x: x[:, :, :, :1].expand(2, 3, 4, 5), lambda x: x[:1, :, :, :1].expand(2, 3, 4, 5), lambda x: x.mT,
    lambda x: x[:1, :1].mT.expand(2, 3, 5, 4),
])
def test_the_copy_has_the_same_elements_and_contiguous_rows(make):
    mask = make(torch.randn(2, 3, 4, 5) > 0)
    copy = _with_contiguous_rows(mask)
    assert torch.equal(copy, mask) and copy.stride(-1) == 1
    assert [s == 0 for s in copy.stride()[:-1]] == [s == 0 for s in mask.stride()[:-1]]
