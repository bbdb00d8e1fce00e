"""A wheel has every file of the package: modules, types, sources of the core, kernel headers, the Triton library."""

from __future__ import annotations

from pathlib import Path

import pytest
from setuptools.dist import Distribution

ROOT = Path(__file__).parents[2]


def test_no_file_of_the_package_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    distribution = Distribution({"script_name": "setup.py"})
    distribution.parse_config_files(["pyproject.toml"])
    distribution.include_package_data = False  # by the patterns alone, not by what a version control system tracks
    command = distribution.get_command_obj("build_py")
    command.ensure_finalized()
    packed = set(command.get_output_mapping().values())
    there = [path for path in Path("framesmith").rglob("*.*") if "__pycache__" not in path.parts]
    built = {".so", ".pyc", ".o"}
    assert packed == {str(path) for path in there if path.suffix not in built}
    assert {path.suffix for path in there} >= {".py", ".pyi", ".h", ".cpp", ".tl"}
