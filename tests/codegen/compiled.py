"""Compile a piece of C++ against the kernel header and call it on tensors."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from pathlib import Path

import torch

from framesmith.codegen.cpp import header_text
from framesmith.runtime.toolchain import COMPILE_FLAGS

_LIB = Path(torch.__file__).parent / "lib"
_FLAGS = [flag for flag in COMPILE_FLAGS if flag.startswith(("-std", "-f")) and "visibility" not in flag]
_DIR = Path(tempfile.mkdtemp(prefix="framesmith-test-"))


def compile_text(text: str, flags: tuple[str, ...] = ("-O2", "-march=native")) -> ctypes.CDLL:
    """Build `text`, after the kernel header, as a shared object and load it."""
    key = hashlib.sha256((text + repr(flags)).encode()).hexdigest()[:16]
    out = _DIR / f"{key}.so"
    if not out.exists():
        source = _DIR / f"{key}.cpp"
        source.write_text(header_text() + text)
        libraries = [str(_LIB / "libtorch_cpu.so"), str(_LIB / "libc10.so"), str(_LIB / "libgomp.so.1")]
        warnings = ("-Wall", "-Werror", "-Wno-unused-variable")
        command = ["g++", *_FLAGS, *flags, *warnings, "-shared", "-o", str(out), str(source), *libraries]
        command.append(f"-Wl,-rpath,{_LIB}")
        subprocess.run(command, check=True)
    return ctypes.CDLL(str(out))


def call(function: ctypes._CFuncPtr, *args: torch.Tensor | int) -> None:
    """Call `function` with tensors as pointers and ints as int64."""
    function(*(ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int64(a) for a in args))
