"""Builds the C++ core (`framesmith._C`): frame hook, guard tree and call path; and the runtime of packages
(`framesmith._runtime`), a plain shared library.

torch must be installed first; build with `pip install --no-build-isolation -e .`.
"""

import os
import re
from pathlib import Path

import torch
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

# The OpenMP runtime that torch brings: one runtime in the process.
OPENMP = [str(p) for p in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))[:1]] or ["-fopenmp"]
# Likewise the C++ runtime, the one that torch has loaded. A compiler that finds only the static library would put a
# second copy into the extension, whose locales disagree with the first's: the first number printed into an error
# message then crashes.
CPLUSPLUS = re.findall(r"\S*/libstdc\+\+\.so\S*", Path("/proc/self/maps").read_text())[:1]
CSRC = Path("framesmith/csrc")
# Files that are compiled as one unit, the longest first: of the 25 seconds of a file, PyTorch's and pybind11's headers
# and what they instantiate are 20. Names of a unit's files that are not in headers must differ.
JOINED = {
    "calls": ("graph", "graph_record", "graph_type", "graph_watch", "recording", "recordings", "access_tracking"),
    "frames": ("graph_plan", "graph_arguments", "graph_extern", "graph_frame", "cuda_frame", "graph_memory",
               "states", "guards_state"),
    "node": ("node", "guards_tensor"),
    "operators": ("draws", "generators", "embedding", "convolution_operators", "library", "quantized_operators",
                  "training"),
}


def joined(unit: str) -> str:
    """Write a unit that includes its files, unless it is there; its path."""
    path = Path("build/units", unit + ".cpp")
    text = "".join(f'#include "{CSRC.resolve() / name}.cpp"\n' for name in JOINED[unit])
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(path)


ALONE = {p.stem for p in CSRC.glob("*.cpp")}.difference(*JOINED.values())
SOURCES = [*map(joined, JOINED), *(f"{CSRC}/{name}.cpp" for name in sorted(ALONE))]

# -g0: CPython's flags ask for debug information, which doubles the time of a unit and makes a library of 67 MB; the
# last: as in framesmith/runtime/toolchain.py
OPTIMISED = ["-O2", "-g0", "-march=native", "-fno-delete-null-pointer-checks"]
# `make sanitize` and `make sanitize-threads` name the sanitizers; types across the border to torch's own code have no
# type information to check
if named := os.environ.get("FRAMESMITH_SANITIZE"):
    SANITIZED = [f"-fsanitize={named}", "-fno-sanitize=vptr"]
    OPTIMISED, CPLUSPLUS = ["-O1", "-g1", "-march=native", "-fno-omit-frame-pointer",
                            *SANITIZED], [*CPLUSPLUS, *SANITIZED]

setup(
    ext_modules=[
        CppExtension(
            "framesmith._C",
            SOURCES,
            include_dirs=[str(CSRC.resolve())],
            extra_compile_args=[*OPTIMISED, "-std=c++20", "-fopenmp", "-fvisibility=hidden", "-Wall", "-Wno-psabi"],
            extra_link_args=OPENMP + CPLUSPLUS,
        ),
        Extension(
            "framesmith._runtime",
            sorted(map(str, Path("native/src").glob("*.cpp"))),
            include_dirs=[str(Path("native/include").resolve())],
            extra_compile_args=["-O2", "-g0", "-fno-delete-null-pointer-checks", "-std=c++17", "-fvisibility=hidden"],
            language="c++",
        ),
    ],
    cmdclass={"build_ext": BuildExtension},
)
