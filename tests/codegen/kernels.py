"""Small kernels for the tests, written with the IR's constructors; `run` prints, compiles and calls them."""

from __future__ import annotations

from pathlib import Path

import torch

from framesmith.codegen.cpp import VectorTarget, emit_kernel
from framesmith.loops.ir import Axis, Kernel, Load, Local, Loop, Node, Op, Param, Scalar, Store
from framesmith.symbolic.expr import Expr, Symbol, as_expr
from tests.codegen.compiled import call, compile_text

F32 = torch.float32
WIDTH = 16 if "avx512f" in Path("/proc/cpuinfo").read_text() else 8

FLAGS_OF = {8: ("-mavx2", "-mfma", "-mf16c"), 16: ("-march=native",)}
WIDTHS = (8, 16)[: 1 + (WIDTH == 16)]


def axis(name: str, extent: int | Expr) -> Axis:
    extent = as_expr(extent)
    return Axis(Symbol(name, 0, extent - 1), extent)


def compute(dtype: torch.dtype) -> torch.dtype:
    return F32 if dtype in (torch.bfloat16, torch.float16) else dtype


def load(buffer: str, index: Expr | int, dtype: torch.dtype = F32, mask: Op | None = None) -> Load:
    return Load(buffer, as_expr(index), compute(dtype), () if mask is None else (mask,))


def store(buffer: str, index: Expr | int, value: Op, mask: Op | None = None, mode: str | None = None) -> Store:
    return Store(buffer, as_expr(index), (value,) if mask is None else (value, mask), value.dtype, mode)


def op(name: str, *args: Op, dtype: torch.dtype | None = None) -> Scalar:
    return Scalar(name, args, dtype or args[-1].dtype)


def loop(over: Axis, *body: Node, reduce: bool = False, vector: bool = True) -> Loop:
    return Loop(over, body, reduce, vector)


def kernel(
    dtypes: list[torch.dtype],
    body: list[Node],
    outer: tuple[Axis, ...] = (),
    *,
    outputs: int = 1,
    symbols: tuple[Symbol, ...] = (),
    locals_: tuple[Local, ...] = (),
    tile: tuple[Symbol, Symbol] | None = None,
    work: int = 0,
) -> Kernel:
    """A kernel whose parameters p0, p1, ... have `dtypes`; the last `outputs` are written. `work` 0: one thread."""
    first = len(dtypes) - outputs
    params = tuple(Param(f"p{i}", t, "r" if i < first else "rw") for i, t in enumerate(dtypes))
    return Kernel(params, symbols, locals_, outer, tuple(body), as_expr(work), as_expr(0), tile)


def run(k: Kernel, *args: torch.Tensor | int, error: torch.Tensor | None = None) -> None:
    """Print, compile and call the kernel; `args` are its parameters, then its size symbols."""
    f = emit_kernel(k, "k", VectorTarget(width=WIDTH))
    assert f.checks == (error is not None)
    call(compile_text(f.text)["k"], *args, *([] if error is None else [error]))


def run_all(cases: list[tuple[Kernel, tuple[torch.Tensor | int, ...]]], width: int = WIDTH) -> None:
    """`run` for several kernels in one translation unit, with vectors of `width` lanes."""
    functions = [emit_kernel(k, f"k{i}", VectorTarget(width=width)) for i, (k, _) in enumerate(cases)]
    library = compile_text("".join(f.text for f in functions), ("-O1", *FLAGS_OF[width]))
    for f, (_, args) in zip(functions, cases, strict=True):
        call(library[f.name], *args)
