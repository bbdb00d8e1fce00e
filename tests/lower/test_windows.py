"""Convolutions of each channel with a kernel of its own, on a CUDA device: nests that give what eager gives."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.codegen.triton.product import product_of
from framesmith.loops.evaluate import run_program
from framesmith.loops.ir import Extern, Launch, Reduce, walk
from framesmith.loops.verify import verify
from tests.gpu.fakes import recorded, rounding, scheduled

# (images, channels, height, width), kernel, stride, padding, dilation
WINDOWS = {
    "3x3": ((2, 16, 6, 8), 3, 1, 1, 1),
    "5x5 of steps": ((1, 8, 9, 8), 5, 2, 2, 1),
    "7x7": ((2, 8, 7, 7), 7, 1, 3, 1),
    "7x6 of steps, dilated": ((2, 8, 11, 9), (7, 6), (2, 1), (3, 5), (1, 2)),
    "even steps": ((2, 8, 8, 8), 3, 2, 1, 1),
    "unlike sides": ((1, 8, 5, 12), (1, 4), (1, 3), (0, 2), 1),
    "dilated": ((1, 8, 9, 10), 3, 1, 2, 2),
    "dilated steps": ((1, 8, 10, 9), 3, 3, 1, 2),
    "one place": ((3, 24, 3, 3), 3, 1, 0, 1),
    "no padding": ((1, 8, 6, 6), 2, 2, 0, 1),
}


def made(name, dtype=torch.bfloat16):
    shape, kernel, stride, padding, dilation = WINDOWS[name]
    generator = torch.Generator().manual_seed(len(name))
    kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
    image = torch.randn(shape, generator=generator).to(dtype).to(memory_format=torch.channels_last)
    return [image, torch.randn(shape[1], 1, *kernel, generator=generator).to(dtype)], (stride, padding, dilation,
                                                                                       shape[1])


def is_the_librarys(w):
    """Whether the gradient of these weights is left to the library."""
    return w[0].numel() > 25 and w.dtype is not torch.float32


def true_gradients(gradients, tangent, x, w):
    """In float64; but what is the library's is what it gives, whose sums are what they are."""
    wanted = list(gradients(tangent.double(), x.double(), w.double()))
    if is_the_librarys(w):
        wanted[1] = gradients(tangent, x, w)[1].double()
    return wanted


def close(got, want):
    """`want` in float64; the result is rounded once, and its sums are of float32."""
    rounded = {torch.bfloat16: 2 ** -8, torch.float16: 2 ** -10, torch.float32: 2 ** -18}
    torch.testing.assert_close(got.double(), want, rtol=rounded[got.dtype], atol=1e-5)


def calls(program):
    return [str(step.target) for step in program.steps if isinstance(step, Extern)]


def products(program):
    return sum(isinstance(step, Launch) and product_of(step.kernel) is not None for step in program.steps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", WINDOWS)
def test_a_convolution_of_each_channel(name, dtype):
    inputs, window = made(name, dtype)
    graph, _ = recorded(lambda x, w: F.conv2d(x, w, None, *window), *inputs)
    program = scheduled(graph)
    verify(program)
    assert calls(program) == []
    (got,) = run_program(program, inputs)
    close(got, F.conv2d(*(t.double() for t in inputs), None, *window))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", WINDOWS)
def test_its_gradients(name, dtype):
    (x, w), window = made(name, dtype)
    tangent = torch.randn_like(F.conv2d(x, w, None, *window))
    stride, padding, dilation, groups = ((n, n) if k < 3 and isinstance(n, int) else n for k, n in enumerate(window))

    def gradients(tangent, x, w):
        return torch.ops.aten.convolution_backward(
            tangent, x, w, [groups], stride, padding, dilation, False, (0, 0), groups, [True, True, True]
        )

    graph, _ = recorded(gradients, tangent, x, w)
    program = scheduled(graph)
    verify(program)
    assert calls(program) == ["aten.convolution_backward.default"] * is_the_librarys(w)
    for got, want in zip(run_program(program, [tangent, x, w]), true_gradients(gradients, tangent, x, w), strict=True):
        close(got, want)


def test_the_gradient_of_a_large_kernel_is_one_nest_over_its_rows():
    x, g = (torch.randn(2, 64, 14, 14).to(memory_format=torch.channels_last) for _ in range(2))

    def gradient(g, x, w):
        return torch.ops.aten.convolution_backward(g, x, w, None, [1, 1], [3, 3], [1, 1], False, [0, 0], 64,
                                                   [False, True, False])[1]

    graph, _ = recorded(gradient, g, x, torch.randn(64, 1, 7, 7))
    program = scheduled(graph)
    *summed, last = [[op for op in walk(kernel.body) if type(op) is Reduce] for kernel in program.kernels]
    assert [len(ops) for ops in (*summed, last)] == [7] * len(program.kernels) and len(program.kernels) <= 2


def test_what_follows_is_in_its_kernel_but_no_sum_is():
    (x, w), window = made("3x3")

    def fn(x, w, b):
        y = F.hardswish(F.conv2d(x, w, None, *window) + b.view(-1, 1, 1))
        return y, y.mean((2, 3))

    graph, _ = recorded(fn, x, w.contiguous(), torch.randn(16).bfloat16())
    program = scheduled(graph)
    assert [len(k.params) for k in program.kernels] == [2, 4, 2]  # the weight laid out; the image; the mean


@pytest.mark.parametrize("change", ["exact float32", "two to a channel", "one group", "odd channels"])
def test_others_are_the_librarys(change):
    x, w, groups = torch.randn(1, 16, 8, 8).bfloat16(), torch.randn(16, 1, 3, 3).bfloat16(), 16
    if change == "exact float32":
        x, w = x.float(), w.float()
    elif change == "two to a channel":
        w = torch.randn(32, 1, 3, 3).bfloat16()
    elif change == "one group":
        w, groups = torch.randn(16, 16, 3, 3).bfloat16(), 1
    elif change == "odd channels":
        x, w, groups = x[:, :9], w[:9], 9
    graph, _ = recorded(lambda x, w: F.conv2d(x, w, None, 1, 1, 1, groups), x, w)
    with rounding(products=True, convolutions=False):
        assert calls(scheduled(graph)) == ["aten.conv2d.default"]


@pytest.mark.parametrize("shape", [(2, 16, 5, 6), (8, 24, 1, 1)])
def test_a_kernel_of_one_element_is_a_product(shape):
    x = torch.randn(shape).bfloat16().to(memory_format=torch.channels_last)
    w = torch.randn(12, shape[1], 1, 1).bfloat16()
    tangent = torch.randn(shape[0], 12, *shape[2:]).bfloat16()

    def fn(x, w, g):
        gradients = torch.ops.aten.convolution_backward(g, x, w, [len(w)], (1, 1), (0, 0), (1, 1), False, (0, 0), 1,
                                                        [True, True, True])
        return F.conv2d(x, w), *gradients

    graph, _ = recorded(fn, x, w, tangent)
    program = scheduled(graph)
    verify(program)
    assert not calls(program) and products(program) == 3
    for got, want in zip(run_program(program, [x, w, tangent]), fn(x.double(), w.double(), tangent.double()),
                         strict=True):
        close(got, want)
    x, w, tangent = x.float(), torch.randn(20, *w.shape[1:]), torch.randn(len(x), 20, *x.shape[2:])
    graph, _ = recorded(fn, x, w, tangent)
    for rounded in (False, True):  # a product goes by another setting than a convolution
        with rounding(rounded, convolutions=True):
            made = scheduled(graph)
            assert products(made) == (3 if rounded else 1) and (calls(made) == []) is rounded
