"""Builds the C++ core (`framesmith._C`): frame hook, guard tree and call path.

torch must be installed first; build with `pip install --no-build-isolation -e .`.
"""

from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

SOURCES = sorted(str(p) for p in Path("framesmith/csrc").glob("*.cpp"))

setup(
    ext_modules=[
        CppExtension(
            "framesmith._C",
            SOURCES,
            include_dirs=[str(Path("framesmith/csrc").resolve())],
            extra_compile_args=["-O2", "-std=c++20", "-fvisibility=hidden", "-Wall"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
