"""Calls that are launched as kernels: tiled attention, and the program's own kernels.

A function's text is printed again with everything that it reads from its module: other functions, constants, names of
Triton's. A launch without such a text (over a tuner, with options of Triton's launcher, with objects) is None: Triton
launches it itself.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from framesmith.codegen.triton import attention
from framesmith.codegen.triton.types import TYPES
from framesmith.graph.launch import InPlace, Launch, MemoryWindow
from framesmith.loops.attention import AttentionTiles
from framesmith.loops.ir import Extern, Program
from framesmith.runtime.triton import TritonSource
from framesmith.symbolic.expr import Expr


@dataclass(frozen=True, slots=True)
class UserKernel:
    """A kernel of the program's own, and one launch of it: `arguments` in the order of the source's signature, each a
    window on a memory or (C type, C text); `grid`: the programs along up to three axes."""

    source: TritonSource
    arguments: tuple[MemoryWindow | tuple[str, str], ...]
    grid: tuple[Expr | int, ...]


_PLAIN = (int, float, bool, str, type(None))
_OPTIONS = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "debug": False}
"""The options of Triton's compiler that a launch may set, and their defaults."""


def user_kernels(program: Program, device: torch.device) -> dict[Extern, UserKernel]:
    """Return the calls of a program that can be launched as kernels on its device."""
    found = {}
    for step in program.steps:
        if type(step) is not Extern or (maker := MAKERS.get(type(step.target))) is None:
            continue
        if isinstance(step.target, InPlace) and any(memory.device != device for memory in step.target.launch.memories):
            continue
        made = maker(step.target, [_is_aligned(program, ref.name) for ref in step.args])
        if made is not None:
            found[step] = made
    return found


def _is_aligned(program: Program, name: str) -> bool:
    """Return whether a buffer begins at a multiple of 16 bytes (inputs that do not are copied)."""
    buffer = program.buffers[name]
    return buffer.kind != "view" or type(buffer.offset) is int and buffer.offset * buffer.dtype.itemsize % 16 == 0


def of_launch(launch: Launch, aligned: Sequence[bool]) -> UserKernel | None:
    """Return `launch` as text; `aligned`: which memories begin at a multiple of 16 bytes. None: only Triton's own
    launcher can run it."""
    kernel, keywords = launch.kernel, dict(launch.keywords)
    options = {**_OPTIONS, **{k: keywords.pop(k) for k in list(keywords) if k in _OPTIONS}}
    grid = launch.grid
    if not hasattr(kernel, "src") or not isinstance(grid, tuple) or kernel.launch_metadata:
        return None
    if options["debug"] or kernel.debug or options["num_ctas"] != 1 or set(keywords) - set(kernel.arg_names):
        return None
    text = text_of(kernel)
    bound = kernel.signature.bind(*launch.positional, **keywords)
    bound.apply_defaults()
    made = _Arguments(launch, aligned)
    wide = any(extent > most for extent, most in zip(grid, (2**31 - 1, 65535, 65535)))
    if text is None or wide or not all(made.take(place, p, bound.arguments[p.name]) for place,
                                       p in enumerate(kernel.params)):
        return None
    name, warps, stages = kernel.fn.__name__, options["num_warps"], options["num_stages"]
    source = TritonSource(name, text, tuple(made.signature), tuple(made.constants), tuple(made.divisible), warps,
                          stages)
    return UserKernel(source, tuple(made.arguments), (*grid, 1, 1)[:3])


def of_attention(tiles: AttentionTiles, aligned: Sequence[bool]) -> UserKernel | None:
    """Return a launch of tiled attention; None if the tensors are too large for its indices."""
    layouts = tiles.arguments.values()
    if not all(map(attention.fits, layouts)):
        return None
    source, grid = attention.source_of(tiles, aligned)
    windows = tuple([MemoryWindow(k, x.size, x.stride) for k, x in enumerate(layouts)])
    return UserKernel(source, windows, (*grid, 1)) if grid[1] < 1 << 16 else None


MAKERS: dict[type, Callable[[Any, Sequence[bool]], UserKernel | None]] = {
    InPlace: lambda target, aligned: of_launch(target.launch, aligned), AttentionTiles: of_attention,
}


class _Arguments:
    """The arguments of a launch, typed as Triton's launcher types them."""

    def __init__(self, launch: Launch, aligned: Sequence[bool]) -> None:
        self.launch, self.aligned = launch, aligned
        self.signature: list[tuple[str, str]] = []
        self.constants: list[tuple[str, Any]] = []
        self.divisible: list[int] = []
        self.arguments: list[MemoryWindow | tuple[str, str]] = []

    def take(self, place: int, p: Any, value: Any) -> bool:
        """Add an argument; return False if it is not supported."""
        if p.is_constexpr or value is None or type(value) is int and value == 1 and not p.do_not_specialize:
            value = _constant(value)
            self.constants.append((p.name, value))
            return type(value) in (*_PLAIN, tuple)
        if p.annotation_type:
            return False
        if type(value) is MemoryWindow:
            return self._pointer(place, p, value)
        row = _scalar(value)
        if row is None:
            return False
        self._add(p.name, row[0], row[1:])
        if type(value) is int and value % 16 == 0 and not p.do_not_specialize and not p.do_not_specialize_on_alignment:
            self.divisible.append(place)
        return True

    def _pointer(self, place: int, p: Any, window: MemoryWindow) -> bool:
        dtype = self.launch.memories[window.memory].dtype
        if dtype not in TYPES:
            return False
        self._add(p.name, TYPES[dtype].pointer, window)
        if (self.aligned[window.memory] and window.offset * dtype.itemsize % 16 == 0
            and not p.do_not_specialize_on_alignment):
            self.divisible.append(place)
        return True

    def _add(self, name: str, kind: str, argument: Any) -> None:
        self.signature.append((name, kind))
        self.arguments.append(argument)


_SPECIAL = {"inf": "__builtin_inff()", "-inf": "-__builtin_inff()", "nan": "__builtin_nanf(\"\")"}


def _constant(value: Any) -> Any:
    """Return a constant in the form for the compiling process: a type as ("dtype", name)."""
    if type(value).__name__ == "dtype" and type(value).__module__.startswith("triton."):
        return "dtype", value.name
    return getattr(value, "value", value)


def _scalar(value: Any) -> tuple[str, str, str] | None:
    """Return Triton's type of a number, C's, and its text."""
    if type(value) is bool:
        return "u1", "unsigned char", str(int(value))
    if type(value) is float:
        return "fp32", "float", f"{value.hex()}f" if math.isfinite(value) else _SPECIAL[str(value)]
    if type(value) is not int or not -(2**63) <= value < 2**63:
        return None
    return ("i32", "int", str(value)) if -(2**31) <= value < 2**31 else ("i64", "i64", f"{value}L")


# ------------------------------------------------------------------------------------------------------------- the text


def text_of(kernel: Any) -> str | None:
    """Return a module that defines the function and everything that it reads; None if a part has no text."""
    texts = _Texts()
    return texts.module() if texts.add(kernel) else None


class _Texts:
    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.lines: list[str] = []
        self.functions: list[str] = []

    def module(self) -> str:
        return "\n".join(["import triton", "import triton.language as tl", *self.lines, "", "", *self.functions])

    def add(self, kernel: Any) -> bool:
        """Print a function after its dependences."""
        name = kernel.fn.__name__
        if name in self.names:
            return self.names[name] is kernel
        self.names[name] = kernel
        scope = {**kernel.fn.__globals__, **inspect.getclosurevars(kernel.fn).nonlocals}
        tree = ast.parse(kernel.src)
        read = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
        own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        own |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
        if not all(self.name(n, scope) for n in dict.fromkeys(read) if n not in own):
            return False
        self.functions.append(f"@triton.jit{'(noinline=True)' if kernel.noinline else ''}\n{kernel.src.rstrip()}\n\n")
        return True

    def name(self, name: str, scope: dict[str, Any]) -> bool:
        """Define `name` as it is in `scope`."""
        if name not in scope:
            return hasattr(builtins, name)
        value = scope[name]
        if name in self.names:
            return self.names[name] is value
        if hasattr(value, "src") and hasattr(value, "fn"):
            own = value.fn.__name__
            return self.add(value) and (name == own or self.define(name, value, f"{name} = {own}", self.functions))
        line = _definition(name, value)
        return line is not None and self.define(name, value, line, self.lines)

    def define(self, name: str, value: Any, line: str, lines: list[str]) -> bool:
        self.names[name] = value
        lines.append(line)
        return True


def _definition(name: str, value: Any) -> str | None:
    """Return a line that gives `name` this value."""
    if isinstance(value, ModuleType):
        known = value.__name__.split(".")[0] in ("triton", "math") and sys.modules.get(value.__name__) is value
        return f"import {value.__name__} as {name}" if known else None
    if type(value) in _PLAIN:
        return f"{name} = {value!r}"
    if type(value).__name__ == "constexpr":
        return f"{name} = tl.constexpr({value.value!r})" if type(value.value) in _PLAIN else None
    module, own = getattr(value, "__module__", None) or "", getattr(value, "__name__", "")
    if module.startswith("triton.") and getattr(sys.modules.get(module), own, None) is value:
        return f"from {module} import {own} as {name}"
    return None
