"""The `Program` of a test's module, in a folder whose cache a process before has filled: an interpreter of its own,
where the test's processes are forks of another."""

import shutil

import pytest


@pytest.fixture(scope="module")
def warm(request, tmp_path_factory):
    made = request.module.Program(tmp_path_factory.mktemp("warm"))
    assert not made.hits()
    return made.folder


@pytest.fixture
def program(request, warm, interpreter, tmp_path):
    shutil.copytree(warm / "cache", tmp_path / "cache")
    return request.module.Program(tmp_path, interpreter)
