"""Builds the wheel `framesmith-runtime`: the runtime library, its binding, and NumPy's arrays around it.

The sources are those beside this folder, and the binding is framesmith's own.
"""

import os
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

os.chdir(Path(__file__).parent)
BINDING = Path("../../framesmith/package/binding.py")


class WithBinding(build_py):
    def run(self):
        super().run()
        shutil.copy(BINDING, Path(self.build_lib) / "framesmith_runtime" / "binding.py")


setup(
    packages=["framesmith_runtime"],
    cmdclass={"build_py": WithBinding},
    ext_modules=[Extension("framesmith_runtime._runtime", sorted(map(str, Path("../src").glob("*.cpp"))),
                           include_dirs=["../include"], language="c++",
                           extra_compile_args=["-O2", "-fno-delete-null-pointer-checks", "-std=c++17",
                                               "-fvisibility=hidden"], extra_link_args=["-s"])],
)
