"""Kernels of the loop IR as C++ over raw pointers, with explicit vectors and OpenMP."""

from __future__ import annotations

from pathlib import Path

HEADER_DIR = Path(__file__).parent

# What generated code relies on: integers wrap, no errno, no trapping; NaN and infinities are honoured.
FLAGS = ("-std=c++17", "-fPIC", "-fopenmp", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fwrapv")
