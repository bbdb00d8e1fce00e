"""Tests marked `gpu` need a CUDA device, and are skipped where there is none (`make test-gpu` runs them alone).

With FRAMESMITH_TEST_DEVICE=cuda the tensors that tests make without naming a device are made there.

Tests marked `forks` run by themselves in a fork of a process that has only imported the compiler: one that has used
OpenMP or run a backward on a machine with a CUDA device cannot be forked, since neither's threads exist in the child.
"""

import gc
import os
import re
import threading
from pathlib import Path

import pytest

# read when PyTorch's OpenMP is loaded: threads of several processes on few cores would spin for each other's turn
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import torch  # noqa: E402

from tests.forked import Interpreter  # noqa: E402

# torch.testing's operator samples would forbid later tests of the process to set the flags of torch.backends
torch.backends.disable_global_flags = lambda: None

# a seed for devices that are not there would be kept, with the text of the stack, for their initialisation
if not torch.cuda.is_available():
    for module in torch.cuda.random, torch.xpu.random, torch.mtia:
        module._lazy_call = lambda seed, **how: None

# what one test has seen to vary is not known to the next; children of tests that ask for it say so
os.environ.setdefault("FRAMESMITH_KEEP_SIZES", "0")
os.environ.setdefault("FRAMESMITH_KEEP_CAPTURES", "0")
os.environ.setdefault("FRAMESMITH_PACKED_LIMIT", "0")

if device := os.environ.get("FRAMESMITH_TEST_DEVICE"):
    torch.set_default_device(device)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Nearly all that is made while tests are collected stays: the collector would look for garbage among a million
    objects, again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items):
    if moving := [item.nodeid for item in items if re.search(r" at 0x[0-9a-f]{6}", item.nodeid)]:
        raise pytest.UsageError("ids with an address differ from process to process: " + ", ".join(moving[:3]))
    for item in items:
        if item.get_closest_marker("forks") and ALONE not in os.environ:
            item.fixturenames.append("interpreter")
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


OPTIMISED = (
    "api/test_complex.py", "api/test_numerics.py", "api/test_special_values.py", "benchmarks",
    "capture/test_numbers_in_graphs.py", "codegen", "distributed", "docs", "gpu", "integrations", "loops", "lower",
    "models/test_named.py", "onnx", "package", "prims", "runtime", "schedule", "serve", "tuning",
)
"""Tests whose subject is machine code or the numbers that it gives, or programs as users run them."""


@pytest.fixture(autouse=True, scope="module")
def compiler_flags(request):
    """The same kernels are built by the same compiler everywhere, but optimised only for tests of machine code: the
    optimisation was a third of the time of all tests."""
    with pytest.MonkeyPatch.context() as changed:
        if not str(request.path.relative_to(Path(__file__).parent)).startswith(OPTIMISED):
            changed.setenv("FRAMESMITH_COMPILER_FLAGS", os.environ.get("FRAMESMITH_COMPILER_FLAGS", "-O0"))
        yield


ALONE = "FRAMESMITH_TEST_ALONE"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test marked `forks` by a pytest of its own, in a fork; the result is True when the test has been run."""
    if not pyfuncitem.get_closest_marker("forks") or ALONE in os.environ:
        return None
    arguments = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = pyfuncitem.funcargs["interpreter"].run(f"import pytest\nraise SystemExit(pytest.main({arguments!r}))",
                                                  {**env, ALONE: "1"})
    if done.returncode:
        pytest.fail(done.stdout + done.stderr, pytrace=False)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Where tests collect garbage, the collector looks only at what the test makes: all that thousands of tests have
    left in the process takes it seconds each time."""
    if not hasattr(item.module, "gc"):
        return (yield)
    gc.freeze()
    try:
        return (yield)
    finally:
        gc.unfreeze()


@pytest.fixture(scope="session")
def interpreter():
    """Runs programs in forks of a process that has imported the compiler."""
    made = Interpreter("framesmith.compiler", "framesmith.graph_compiler")
    yield made
    made.close()


@pytest.fixture
def one_thread(monkeypatch):
    """Threads of the test's runner are none of the program's."""
    for ident in set(threading._active) - {threading.get_ident()}:
        monkeypatch.delitem(threading._active, ident)


@pytest.fixture
def compiler_in_path(monkeypatch):
    """CXX is not set, and the compiler that it named is the first in PATH."""
    if named := os.environ.get("CXX"):
        monkeypatch.delenv("CXX")
        monkeypatch.setenv("PATH", f"{Path(named).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def captures(monkeypatch):
    """The qualified names of what was captured."""
    from framesmith import compiler  # tests of the import find the package not imported yet

    seen = []
    real = compiler.convert_frame

    def counting(code, *args, **kwargs):
        seen.append(code.co_qualname)
        return real(code, *args, **kwargs)

    monkeypatch.setattr(compiler, "convert_frame", counting)
    return seen
