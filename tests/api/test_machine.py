"""No compiler, a bad cache folder, several processes: the program runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import framesmith

PROGRAM = """
import sys, time, warnings
import torch, framesmith
from framesmith.util import log
log.configure()  # again in a fork
net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU()).eval()
fast, f = framesmith.compile(net), framesmith.compile(lambda x: (x.sin() + 1).sum(0))
x = torch.linspace(-1, 1, 12).reshape(3, 4)
with torch.no_grad(), warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for _ in range(2):
        torch.testing.assert_close(fast(x), net(x))
        torch.testing.assert_close(f(x), (x.sin() + 1).sum(0))
for w in seen:
    print("WARNED", w.message)
print("DONE")
"""
ROOT = Path(framesmith.__file__).parents[1]


def environment(cache, env):
    return {**os.environ, "FRAMESMITH_CACHE_DIR": str(cache), "FRAMESMITH_LOG": "cache", **env}


def start(cache, **env):
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment(cache, env), cwd=ROOT, text=True,
                            stdout=pipe, stderr=pipe)


def checked(status, out, err):
    assert status == 0 and out.splitlines()[-1] == "DONE", out + err
    return [line for line in out.splitlines() if line.startswith("WARNED")], err


def finish(process):
    out, err = process.communicate(timeout=240)
    return checked(process.returncode, out, err)


def first(cache):
    """In a process that begins anew."""
    return finish(start(cache))


@pytest.fixture
def run(interpreter):
    """In a fork."""
    def run(cache, **env):
        done = interpreter.run(PROGRAM, environment(cache, env))
        return checked(done.returncode, done.stdout, done.stderr)
    return run


def test_a_warm_cache_needs_no_compiler(tmp_path, compiler_in_path, run):
    assert first(tmp_path)[0] == []
    told, log = run(tmp_path, PATH="/nonexistent")
    assert told == [] and "hit" in log
    assert any("no C++ compiler" in line for line in run(tmp_path / "cold", PATH="/nonexistent")[0])


@pytest.mark.parametrize("env", [{"FRAMESMITH_COMPILER": "/nonexistent/g++"}, {"PATH": "/nonexistent"}],
                         ids=["named", "path"])
def test_no_compiler(env, tmp_path, run):
    told, _ = run(tmp_path, **env, CXX="")
    assert len(told) == 1 and "no C++ compiler" in told[0] and "install g++" in told[0] and "eager" in told[0]


def test_a_second_process_builds_nothing_and_rubbish_is_replaced(tmp_path, run):
    assert first(tmp_path)[0] == []
    libraries = sorted(tmp_path.rglob("*.so"))
    written = [file.stat().st_mtime_ns for file in libraries]
    assert len(libraries) == 2
    assert [file.with_suffix(".cpp").exists() for file in libraries] == [True, True]
    told, log = run(tmp_path)
    assert told == [] and log.count("hit") == 2
    assert [file.stat().st_mtime_ns for file in libraries] == written
    for file in [*libraries, *tmp_path.rglob("*.plan")]:
        file.write_bytes(b"rubbish")
    assert run(tmp_path)[0] == []
    assert all(file.stat().st_size > 1000 for file in libraries)
    for file in [*libraries, *tmp_path.rglob("*.plan")]:
        file.write_bytes(file.read_bytes()[:400])
    assert run(tmp_path)[0] == []


@pytest.mark.parametrize("place", ["a file", "under a file", "/proc/framesmith"])
def test_a_folder_that_cannot_be_used(place, tmp_path, run):
    file = tmp_path / "file"
    file.write_text("")
    told, _ = run({"a file": file, "under a file": file / "cache"}.get(place, place))
    assert told == []


def test_two_processes_at_once(tmp_path):
    for process in [start(tmp_path), start(tmp_path)]:
        assert finish(process)[0] == []
    assert len(list(tmp_path.rglob("*.so"))) == 2


def test_import_is_cheap():
    """A lazy face: what `import framesmith` adds to `import torch`."""
    command = [sys.executable, "-X", "importtime", "-c", "import torch, framesmith"]
    best = 1.0
    for _ in range(3):
        lines = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120,
                               check=True).stderr.splitlines()
        own = next(line for line in lines if line.split("|")[-1].rstrip() == " framesmith")
        best = min(best, int(own.split("|")[1]) / 1e6)
    assert best < 0.15
