"""Triton kernels of the program's own in captured code: as eager, by Triton's interpreter; and what a kernel is found
to write."""

import pytest
import torch

import framesmith
from framesmith.capture.kernel_writes import written_parameters
from framesmith.util.errors import Unsupported

triton = pytest.importorskip("triton", reason="triton is not installed")
tl = pytest.importorskip("triton.language")
kept, triton.knobs.runtime.interpret = triton.knobs.runtime.interpret, True


@triton.jit
def put(pointer, offsets, value, mask):
    tl.store(pointer + offsets, value, mask)


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    put(out, at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.jit
def scale(x, n, factor, stride, BLOCK: tl.constexpr = 32):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    where = x + at * stride
    tl.store(where, tl.load(where, at < n) * factor, at < n)


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + at * 0, tl.load(x + at, at < n), at < n)


even = triton.heuristics({"BLOCK": lambda args: 16 if args["n"] % 16 == 0 else 8})(add)
single = triton.autotune([triton.Config({"BLOCK": 16}, num_warps=2)], key=["n"])(add)
triton.knobs.runtime.interpret = kept


@triton.jit
def turns(x, y, z, n, BLOCK: tl.constexpr):
    p = y
    q = x
    for _ in range(n):
        p, q = q, p
        tl.store(p + tl.arange(0, BLOCK), tl.load(z + tl.arange(0, BLOCK)))


@triton.jit
def through(x, y, table, n, BLOCK: tl.constexpr):
    at = tl.load(table + tl.arange(0, BLOCK))
    turns(x, x, y, n, BLOCK=BLOCK)
    tl.atomic_max(y + at, 1.0)


@triton.jit
def blocks(x, y, n, BLOCK: tl.constexpr):
    source = tl.make_block_ptr(x, (n,), (1,), (0,), (BLOCK,), (0,))
    target = tl.make_tensor_descriptor(y, [n], [1], [BLOCK])
    target.store([0], tl.load(source))


@triton.jit
def called(x, y, fn: tl.constexpr):
    tl.store(y, fn(tl.load(x)))


@triton.jit
def unknown(x, y, fn: tl.constexpr):
    fn(x, 1.0)
    tl.store(y, 0.0)


@triton.jit
def of_numbers(x, y):
    tl.store(tl.load(x).to(tl.pointer_type(tl.float32)), 1.0)


@pytest.mark.parametrize(("kernel", "names"), [
    (turns, "x y"), (through, "x y"), (blocks, "y"), (called, "y"), (unknown, "x y"), (add, "out"), (scale, "x"),
    (total, "out"),
], ids=lambda x: getattr(x, "__name__", None))
def test_what_a_kernel_writes(kernel, names):
    assert written_parameters(kernel) & {"x", "y", "z", "out", "table"} == set(names.split())


def test_pointers_of_numbers_are_refused():
    with pytest.raises(Unsupported, match="pointers of numbers"):
        written_parameters(of_numbers)


def run_add(x, y, kernel=add, **more):
    out = torch.empty_like(x)
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel(), **more)
    return out


def fused(x, y):
    return run_add(x.relu() * 2, y, BLOCK=16).exp() - 1


def by_heuristics(x, y):
    return run_add(x, y, even) + 1


def by_a_tuner_without_choice(x, y):
    return run_add(x, y, single) + 1


def grid_of_a_tuple(x, y):
    out = torch.empty_like(x)
    add[(3,)](x, y, out, x.numel(), BLOCK=32)
    return out


def an_input(x, y):
    scale[(4,)](x, 70, 3.0, 1)
    return x + y


def an_input_twice(x, y):
    scale[(4,)](x, 70, 3.0, 1)
    scale[(4,)](x, 70, factor=0.5, stride=1, BLOCK=32)
    z = x * 2
    scale[(4,)](x, 70, 0.25, 1)
    return z


def read_before_and_after(x, y):
    before = y.exp()
    scale[(4,)](y, 70, 3.0, 1)
    return before + x, y


def a_view(x, y):
    z = x.sin().reshape(35, 2)
    scale[(2,)](z[:, 1], 35, -1.0, 2)
    return z * y.reshape(35, 2)


def a_view_of_an_input(x, y):
    scale[(2,)](x[3:], 20, -1.0, 1)
    return x[:10] * 2


def its_own_argument(x, y):
    z = x + 1
    add[(5,)](z, y, z, 70, BLOCK=16)
    return z.view(7, 10).sum(0)


def a_sum(x, y):
    out = torch.zeros(1)
    total[(5,)](x * y, out, 70, BLOCK=16)
    return x / out


def returned_and_written(x, y):
    scale[(4,)](x, 70, 2.0, 1)
    return x.clone(), x


def part_of_empty(x, y):
    out = torch.empty_like(x)
    scale[(4,)](out.copy_(x)[10:], 60, 2.0, 1)
    scale[(4,)](out, 10, 3.0, 1)
    return out


PROGRAMS = [fused, by_heuristics, by_a_tuner_without_choice, grid_of_a_tuple, an_input, an_input_twice,
            read_before_and_after, a_view,
            a_view_of_an_input, its_own_argument, a_sum, returned_and_written, part_of_empty]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_as_eager(program):
    torch.manual_seed(0)
    x, y = torch.randn(70), torch.randn(70)
    given, again = [x.clone(), y.clone()], [x.clone(), y.clone()]
    expected = program(*given)
    compiled = framesmith.compile(program, fullgraph=True)
    for _ in range(2):
        again = [x.clone(), y.clone()]
        torch.testing.assert_close(compiled(*again), expected)
        torch.testing.assert_close(again, given)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        out = x.clone()
        scale[(4,)](out, 70, 2.0, 1)
        return out * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        dx = grad * y
        scale[(4,)](dx, 70, 2.0, 1)
        return dx, run_add(grad * x, grad * x, BLOCK=32)


def test_within_an_autograd_function():
    def loss(x, y):
        return Product.apply(x.sin(), y).square().mean()

    torch.manual_seed(0)
    x, y = torch.randn(70, requires_grad=True), torch.randn(70, requires_grad=True)
    expected = torch.autograd.grad(loss(x, y), (x, y))
    found = torch.autograd.grad(framesmith.compile(loss, fullgraph=True)(x, y), (x, y))
    torch.testing.assert_close(found, expected)


def test_no_gradient_goes_through_a_kernel():
    def loss(x, y):
        z = x * 2
        scale[(4,)](z, 70, 3.0, 1)
        return (run_add(x, y, BLOCK=32) * y + z).sum()

    torch.manual_seed(0)
    x, y = torch.randn(70, requires_grad=True), torch.randn(70, requires_grad=True)
    eager = loss(x, y)
    compiled = framesmith.compile(loss, fullgraph=True)(x, y)
    torch.testing.assert_close(compiled, eager)
    torch.testing.assert_close(torch.autograd.grad(compiled, (x, y)), torch.autograd.grad(eager, (x, y)))


def test_another_constant_compiles_anew():
    compiled = framesmith.compile(lambda x, f: (scale[(4,)](x, 70, f, 1), x + 0)[1], fullgraph=True)
    for factor in (2.0, 3.0, 4.0):
        x = torch.randn(70)
        torch.testing.assert_close(compiled(x.clone(), factor), x * factor)


def test_another_kernel_at_its_place():
    space = {"kernel": scale}
    compiled = framesmith.compile(lambda x: (space["kernel"][(4,)](x, 70, 2.0, 1), x + 0)[1])
    x = torch.randn(70)
    torch.testing.assert_close(compiled(x.clone()), x * 2)
    space["kernel"] = add
    with pytest.raises(TypeError):
        compiled(x.clone())


def test_a_custom_operator_around_a_kernel():
    @torch.library.custom_op("framesmith_tests::doubled_by_kernel", mutates_args=("x",))
    def doubled(x: torch.Tensor) -> None:
        scale[(4,)](x, 70, 2.0, 1)

    def program(x):
        y = x + 1
        doubled(y)
        return y * 3

    x = torch.randn(70)
    torch.testing.assert_close(framesmith.compile(program, fullgraph=True)(x), (x + 1) * 6)
