"""Fakes of tensors on a CUDA device, on a machine without one: a program is recorded, scheduled and printed as for the
device."""

from contextlib import contextmanager

import pytest
import torch

from framesmith.config import Config
from framesmith.fake.recorder import Recorder
from framesmith.fake.tensor import contiguous_strides, new_fake
from framesmith.passes import Context, run_passes
from framesmith.pipeline import PASSES
from framesmith.targets import CudaTarget

DEVICE = torch.device("cuda", 0)


class FakeTarget(CudaTarget):
    """A device that need not be there."""

    __slots__ = ()
    arch = 90


@pytest.fixture
def makes_on_cuda(monkeypatch):
    """Operators that make tensors look for the device before they reach the recorder."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)


@contextmanager
def rounding(products, convolutions):
    """Whether libraries may round float32 to TF32."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = products, convolutions
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def recorded(fn, *inputs):
    """The graph of `fn` on fakes like `inputs` (tensors, of which those named by no device stay on the CPU), and its
    results."""
    rec = Recorder()
    fakes = [on_cuda(rec, x, i) for i, x in enumerate(inputs)]
    with torch.no_grad(), rec:
        out = fn(*fakes)
    out = list(out) if isinstance(out, (tuple, list)) else [out]
    return rec.finish(out), out


def on_cuda(rec, x, number):
    like = new_fake(tuple(x.shape), x.stride() if x.numel() else contiguous_strides(x.shape), x.dtype, DEVICE)
    return rec.input_like(like, f"x{number}")


def scheduled(graph, device=DEVICE):
    context = Context(Config(), FakeTarget(Config(), None, None, device))
    for form in ("prims", "loops", "program"):
        graph = run_passes(PASSES, form, graph, context)
    return graph
