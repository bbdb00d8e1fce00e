"""Triton kernels of the program's own on a device: as eager, and launched without Triton's launcher where they can
be."""

import pytest
import torch

import framesmith
from framesmith import targets

pytestmark = pytest.mark.gpu
triton = pytest.importorskip("triton", reason="triton is not installed")
tl = pytest.importorskip("triton.language")
N = 5000
SHIFT = tl.constexpr(3)


@triton.jit
def put(pointer, at, value, mask):
    tl.store(pointer + at, value, mask)


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    put(out, at, tl.load(x + at, at < n) + tl.load(y + at, at < n) * SHIFT, at < n)


@triton.jit
def scale(x, n, factor, stride, BLOCK: tl.constexpr = 256):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    where = x + at * stride
    tl.store(where, tl.load(where, at < n) * factor, at < n)


tuned = triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((128, 2), (512, 4))], key=["n"])(add)
even = triton.heuristics({"BLOCK": lambda args: 1024 if args["n"] % 1024 == 0 else 128})(add)


def run(kernel, x, y, **more):
    out = torch.empty_like(x)
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel(), **more)
    return out


def part(x, y):
    scale[(8,)](x[3:], 2000, -1.0, 1)
    return x[:3000] * y[:3000]


def every_second(x, y):
    z = x.sin().view(-1, 2)
    scale[(10,)](z[:, 1], N // 2, -1.0, 2)
    return z * y.view(-1, 2)


def twice(x, y):
    scale[(20,)](x, N, 3.0, 1)
    scale[(20,)](x, N, 0.5, 1, BLOCK=256)
    return x + y


PROGRAMS = {
    "fused": (lambda x, y: run(add, x.relu() * 2, y, BLOCK=512, num_warps=8).exp() - 1, 1), "part": (part, 1),
    "every second": (every_second, 1),
    "twice": (twice, 2), "heuristics": (lambda x, y: run(even, x, y) + 1, 1),
    "tuned": (lambda x, y: run(tuned, x, y) + 1, 1),
}


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name, mode, monkeypatch, tmp_path):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))  # a plan that is there already brings its kernels
    framesmith.reset()
    program, launched = PROGRAMS[name]
    found = []
    monkeypatch.setattr(targets, "user_kernels", lambda *p,
                        old=targets.user_kernels: found.append(old(*p)) or found[-1])
    x, y = torch.randn(N, device="cuda"), torch.randn(N, device="cuda")
    given = [x.clone(), y.clone()]
    expected = program(*given)
    compiled = framesmith.compile(program, fullgraph=True, mode=mode)
    for _ in range(4):
        again = [x.clone(), y.clone()]
        torch.testing.assert_close(compiled(*again), expected)
        torch.testing.assert_close(again, given)
    assert [len(kernels) for kernels in found] == [launched]


def test_an_input_that_lies_askew():
    x = torch.randn(4096, device="cuda")[1:]
    expected = x * 3
    torch.testing.assert_close(framesmith.compile(lambda x: (scale[(16,)](x, 4095, 3.0, 1), x * 1)[1],
                                                  fullgraph=True)(x), expected)


@triton.jit
def refused(x, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK == 3)
    tl.store(x, 1.0)


def test_what_triton_refuses_it_refuses_itself():
    with pytest.raises(triton.compiler.errors.CompilationError):
        framesmith.compile(lambda x: (refused[(1,)](x, BLOCK=4), x + 1)[1])(torch.randn(4, device="cuda"))


untuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (128, 256)], key=["n"])(add)


def test_a_tuner_that_has_yet_to_choose():
    x, y = torch.randn(N, device="cuda"), torch.randn(N, device="cuda")
    compiled = framesmith.compile(lambda x, y: run(untuned, x, y) * 2, fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, y), (x + 3 * y) * 2)
