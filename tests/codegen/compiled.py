"""Compile a piece of C++ against the kernel header and call it on tensors."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch

from framesmith.codegen.cpp import header_text
from framesmith.runtime.toolchain import COMPILE_FLAGS, openmp_library

_FLAGS = [flag for flag in COMPILE_FLAGS if flag.startswith(("-std", "-f")) and "visibility" not in flag]
_DIR = Path(tempfile.mkdtemp(prefix="framesmith-test-"))


@functools.cache
def _pytorch() -> Path:
    """A library without symbols that stands for PyTorch's, whose table the linker reads for 0.2 s."""
    path = _DIR / "libtorch_cpu.so"
    subprocess.run(["g++", "-shared", "-nostdlib", f"-Wl,-soname,{path.name}", "-x", "assembler", os.devnull, "-o",
                    str(path)], check=True)
    return path


def compile_text(text: str, flags: tuple[str, ...] = ("-O2", "-march=native")) -> ctypes.CDLL:
    """Build `text`, after the kernel header, as a shared object and load it."""
    key = hashlib.sha256((text + repr(flags)).encode()).hexdigest()[:16]
    out = _DIR / f"{key}.so"
    if not out.exists():
        source = _DIR / f"{key}.cpp"
        source.write_text(header_text() + text)
        warnings = ("-Wall", "-Werror", "-Wno-unused-variable")
        command = ["g++", *_FLAGS, *flags, *warnings, "-shared", "-o", str(out), str(source), openmp_library(),
                   "-Wl,--no-as-needed", str(_pytorch())]
        subprocess.run(command, check=True)
    return ctypes.CDLL(str(out))


def call(function: ctypes._CFuncPtr, *args: torch.Tensor | int) -> None:
    """Call `function` with tensors as pointers and ints as int64."""
    function(*(ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int64(a) for a in args))
