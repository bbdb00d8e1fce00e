"""Kernels whose results share what they read, under Triton's interpreter; run by `test_interpreter`."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.codegen.triton import columns, tuning
from framesmith.codegen.triton.tile_shape import form
from tests.codegen_triton.machine import run_program
from tests.gpu.fakes import recorded, scheduled
from tests.lower.test_windows import WINDOWS, close, made, true_gradients


def ran(fn, *inputs):
    """The results of the program of `fn`, and its pointwise kernels over vectors."""
    graph, _ = recorded(fn, *inputs)
    program = scheduled(graph)
    return run_program(program, inputs), [f for f in map(form, program.kernels) if f.vectors]


@pytest.mark.parametrize("threads", [1, columns.THREADS])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name, threads, monkeypatch):
    """With as many results to a thread as there may be, and with one."""
    monkeypatch.setattr(columns, "THREADS", threads)
    inputs, window = made(name)
    b = torch.randn(inputs[0].shape[1]).bfloat16()

    def fn(x, w, b):
        return F.conv2d(x, w, None, *window) + b.view(-1, 1, 1)

    (got,), forms = ran(fn, *inputs, b)
    assert len(forms) == 1 or name in ("one place", "no padding")
    x, w = (t.double() for t in inputs)
    close(got, fn(x, w, b.double()))


@pytest.mark.parametrize("threads", [1, columns.THREADS])
@pytest.mark.parametrize("name", WINDOWS)
def test_gradients(name, threads, monkeypatch):
    monkeypatch.setattr(columns, "THREADS", threads)
    monkeypatch.setattr(tuning, "PERSISTENT_COLUMN", threads)
    (x, w), window = made(name)
    tangent = torch.randn_like(F.conv2d(x, w, None, *window))
    stride, padding, dilation, groups = ((n, n) if k < 3 and isinstance(n, int) else n for k, n in enumerate(window))

    def gradients(g, x, w):
        return torch.ops.aten.convolution_backward(g, x, w, None, stride, padding, dilation, False, (0, 0), groups,
                                                   [True, True, False])[:2]

    got, _ = ran(gradients, tangent, x, w)
    for g, want in zip(got, true_gradients(gradients, tangent, x, w), strict=True):
        close(g, want)


def test_pooling(monkeypatch):
    monkeypatch.setattr(columns, "THREADS", 1)
    x = torch.randn(2, 16, 12, 16).bfloat16().to(memory_format=torch.channels_last)
    (got,), forms = ran(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    assert len(forms) == 1
    torch.testing.assert_close(got, F.max_pool2d(x, 3, 2, 1), rtol=0, atol=0)


@pytest.mark.parametrize("kernel, stride, padding", [(3, 2, 1), (2, 2, 0), (3, 1, 1), ((2, 3), (1, 2), (0, 1))])
def test_pooling_in_training(kernel, stride, padding, monkeypatch):
    """Places of maxima are eager's, among equal ones and with NaN, too."""
    monkeypatch.setattr(columns, "THREADS", 1)
    x = torch.randint(-3, 3, (2, 16, 12, 16)).bfloat16()
    x[0, 3, 2:5, 7] = x[1, 2, 5, 5] = float("nan")
    x[1, 5] = float("-inf")
    x = x.to(memory_format=torch.channels_last)
    want = F.max_pool2d(x, kernel, stride, padding, return_indices=True)
    got, _ = ran(lambda x: F.max_pool2d(x, kernel, stride, padding, return_indices=True), x)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    g = torch.randn_like(want[0])
    how = [[n, n] if isinstance(n, int) else list(n) for n in (kernel, stride, padding, 1)]

    def gradient(g, x, at):
        return torch.ops.aten.max_pool2d_with_indices_backward(g, x, *how, False, at)

    (got,), _ = ran(gradient, g, x, want[1])
    close(got, gradient(g.double(), x.double(), want[1]))
