"""Kernels of the loop IR as C++ over raw pointers, with explicit vectors and OpenMP.

`emit_kernels(program, target) -> Source` prints a program's kernels. Generated code expects the flags of
`runtime.toolchain`: integers wrap, no errno, no trapping; NaN, infinities and signed zeros are honoured (no
-ffast-math).
"""

from __future__ import annotations

from framesmith.codegen.cpp.emit import CppSource, Function, emit_kernel, emit_kernels
from framesmith.codegen.cpp.header import header_text
from framesmith.codegen.cpp.state import VectorTarget
