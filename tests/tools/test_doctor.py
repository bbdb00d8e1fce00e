"""The doctor finds what is wrong with a machine, and says what to do."""

import os
import subprocess
import sys
from collections import namedtuple

import pytest

from framesmith.tools import doctor

Usage = namedtuple("Usage", "total used free")


def by_name(findings):
    return {f.name: f for f in findings}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_this_machine_is_fit(folder):
    found = by_name(doctor.examine())
    assert {f.state for f in found.values()} <= {doctor.GOOD, doctor.NOTE}, found
    assert {"Python", "PyTorch", "C++ compiler", "OpenMP", "Cache folder", "CUDA", "Triton", "Vector units",
            "A compiled call"} <= found.keys()


def test_without_a_compiler(monkeypatch):
    monkeypatch.setenv("FRAMESMITH_COMPILER", "no-such-compiler")
    found = doctor._compiler()
    assert found.state == doctor.BROKEN and "g++" in found.remedy


def test_a_compiler_that_fails(monkeypatch):
    monkeypatch.setenv("FRAMESMITH_COMPILER_FLAGS", "-no-such-flag")
    assert doctor._compiler().state == doctor.BROKEN


def test_a_folder_that_others_may_write(folder):
    folder.mkdir()
    os.chmod(folder, 0o777)
    found = doctor._cache()
    assert found.state == doctor.BROKEN and "chmod" in found.remedy


@pytest.mark.parametrize("free, state", [(1 << 20, doctor.BROKEN), (500 << 20, doctor.NOTE), (9 << 30, doctor.GOOD)])
def test_room_on_the_disk(folder, monkeypatch, free, state):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: Usage(0, 0, free))
    assert doctor._cache().state == state


def test_a_check_that_fails_is_shown(monkeypatch):
    def _odd():
        raise RuntimeError("no such device")

    monkeypatch.setattr(doctor, "CHECKS", (_odd,))
    (found,) = doctor.examine()
    assert found.state == doctor.BROKEN and "no such device" in found.found
    assert doctor.main([]) == 1


def test_the_command(monkeypatch):
    command = [sys.executable, "-m", "framesmith", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "FRAMESMITH_COMPILER": "nothing"})
    assert done.returncode == 1
    assert "broken" in done.stdout and "C++ compiler" in done.stdout
