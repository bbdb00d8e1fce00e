"""Printed Triton kernels: text, and the data to compile and launch it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framesmith.codegen.triton.library import IMPORTS
from framesmith.codegen.triton.literal_params import Number
from framesmith.loops.ir import Origin
from framesmith.symbolic.expr import Expr, Symbol


@dataclass(frozen=True, slots=True)
class Printed:
    """One kernel of the loop IR as a Triton function. Equal kernels print equal text in any program.

    `text`: a whole Python module, its imports included, that defines the `@triton.jit` function `name` (and the
    functions that it calls). `signature`: (name, Triton type) of each run-time parameter in order: the kernel's
    pointers (``*fp32``) and numbers (``fp32``, see `scalar_params.py`), then its size symbols (``i32`` or ``i64``).
    `constants`: (name, value) of each `tl.constexpr` parameter; they follow the parameters. `grid`: programs to launch
    along x, y and z, over size symbols. If one of them is zero, nothing is launched. `symbols`: the size symbols that
    are passed, in order. `divisible`: places in `signature` at which the text may be compiled for multiples of 16
    (addresses in bytes). The printer knows nothing about addresses: a launch of such a specialisation is preceded by a
    check. `limits`: expressions over the symbols that must be below 2**31 for this text to be right; the kernel printed
    with `wide` has none. `asserts`: the text checks indices with `tl.device_assert`, which needs `debug=True` (and
    `sanitize_overflow=False`) at compilation. `batch`: None for the kernel of a `Launch`. For the kernel of a `Batch`,
    the elements of a row that one program covers: its parameters are `table` (``*i64``: for each row the addresses of
    the kernel's pointers or the bits of its numbers, and then the row's size) and `where` (``*i32``: for each program
    its row and the number of its block in the row, see `programs`); the grid is the number of programs, `PROGRAMS`.
    `origins`: what it computes. `body`, `functions`: the source of `text`, with numbers marked (see
    `literal_params.py`), and the functions called; empty if the numbers are final. `numbers`: the arguments that follow
    its sizes; `multiples`: (place in `signature`, a known divisor of the number there). `vector`: the elements of the
    innermost dimension if it is a vector of each thread (see `columns.py`); else 0.
    """

    name: str
    text: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int], ...]
    grid: tuple[Expr | int, ...]
    num_warps: int
    num_stages: int
    symbols: tuple[Symbol, ...]
    divisible: tuple[int, ...]
    limits: tuple[Expr, ...] = ()
    asserts: bool = False
    batch: int | None = None
    origins: tuple[Origin, ...] = ()
    body: str = ""
    functions: tuple[str, ...] = ()
    numbers: tuple[Number, ...] = ()
    multiples: tuple[tuple[int, int], ...] = ()
    vector: int = 0


def module_text(
    name: str, signature: Sequence[tuple[str, str]], constants: Sequence[tuple[str, int]], functions: Sequence[str],
    body: str
) -> str:
    """Return the module of a kernel whose function has `body`; `functions`: the texts of those that it calls."""
    head = ", ".join([*(n for n, _ in signature), *(f"{n}: tl.constexpr" for n, _ in constants)])
    return IMPORTS + "".join("\n\n" + t for t in [*functions, f"@triton.jit\ndef {name}({head}):\n{body}"])


PROGRAMS = Symbol("programs", 0)
MOST = 2**31  # see `Printed.limits`
WIDEST = (2**31 - 1, 65535, 65535)  # programs that a device launches along each axis


def programs(sizes: tuple[int, ...], block: int) -> int:
    """Return the programs of a batched kernel over rows of these sizes; those of each row are consecutive."""
    return sum(-(-size // block) for size in sizes)
