"""Kernels of a program's own as texts: what they read of their module stands in them, and they compile without a
device."""

import math

import pytest
import torch

from framesmith.codegen.triton.user_kernels import UserKernel, of_launch, text_of
from framesmith.graph.launch import Launch, Memory, MemoryWindow
from framesmith.runtime import triton as runtime
from framesmith.runtime.cache import Cache

triton = pytest.importorskip("triton", reason="triton is not installed")
tl = pytest.importorskip("triton.language")
libdevice = pytest.importorskip("triton.language.extra.libdevice")
SHIFT = tl.constexpr(3)
something = object()


@triton.jit
def put(pointer, at, value, mask):
    tl.store(pointer + at, value + SHIFT, mask)


place = put


@triton.jit
def kernel(x, out, n, one, factor, flag, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = libdevice.sin(tl.load(x + at, at < n)) * factor * one
    place(out, at, tl.where(flag, value, 0.0), at < n)


@triton.jit
def of_an_object(x):
    tl.store(x, something)


def launch(kernel, *given, grid=(4,), **keywords):
    layouts = tuple([Memory((100,), (1,), torch.float32, torch.device("cuda", 0))] * 2)
    return Launch(kernel, "kernel", "", None, grid, given, tuple(keywords.items()), layouts, (1,))


X, OUT = MemoryWindow(0, (100,), (1,)), MemoryWindow(1, (96,), (1,), 4)


def test_the_text_is_complete():
    text = text_of(kernel)
    space = {}
    exec(compile(text.replace("@triton.jit", ""), "kernel", "exec"), space)
    assert space["SHIFT"].value == 3 and space["place"] is space["put"] and space["libdevice"] is libdevice
    assert text_of(of_an_object) is None


def test_arguments_are_typed_as_by_the_launcher():
    made = of_launch(launch(kernel, X, OUT, 96, 1, 2.5, True, BLOCK=32, num_warps=2), [True, True])
    assert made.source.signature == (("x", "*fp32"), ("out", "*fp32"), ("n", "i32"), ("factor", "fp32"), ("flag", "u1"))
    assert (made.source.constants == (("one", 1), ("BLOCK", 32)) and made.source.divisible == (0, 1, 2)
            and made.source.warps == 2)
    assert made.arguments == (X, OUT, ("int", "96"), ("float", "0x1.4000000000000p+1f"), ("unsigned char", "1"))
    made = of_launch(launch(kernel, X, MemoryWindow(1, (96,), (1,), 3), 2**40, -1, math.inf, None, BLOCK=32),
                     [False, True])
    assert made.source.divisible == (2,) and dict(made.source.signature)["n"] == "i64"


@triton.jit
def as_type(x, out, TYPE: tl.constexpr):
    tl.store(out, tl.load(x).to(TYPE).to(tl.float32))


def test_types_are_constants(tmp_path):
    made = of_launch(launch(as_type, X, OUT, TYPE=tl.bfloat16), [True, True])
    assert made.source.constants == (("TYPE", ("dtype", "bf16")),)
    assert runtime.start([made.source], 90, Cache(tmp_path)).wait()[0].image


def test_what_only_the_launcher_can():
    assert of_launch(launch(kernel, X, OUT, 96, 1, 2.5, True, BLOCK=32, maxnreg=32), [True, True]) is None
    assert of_launch(launch(kernel, X, OUT, 96, 1, 2.5, True, BLOCK=32, grid=(1, 70000)), [True, True]) is None
    assert of_launch(launch(of_an_object, OUT), [True, True]) is None


def test_it_compiles(tmp_path):
    made = of_launch(launch(kernel, X, OUT, 96, 1, 2.5, True, BLOCK=32), [True, True])
    assert isinstance(made, UserKernel)
    (binary,) = runtime.start([made.source], 90, Cache(tmp_path)).wait()
    assert binary.image and binary.name == "kernel" and binary.scratch <= 2
