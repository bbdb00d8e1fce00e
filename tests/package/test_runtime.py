"""The runtime as programs without PyTorch use it: built by CMake, found by `find_package`, called from C, by many
threads, and on another processor."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import framesmith

NATIVE = Path(__file__).parents[2] / "native"
ARM = "aarch64-linux-gnu"
needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake is not installed")
needs_arm = pytest.mark.skipif(shutil.which("qemu-aarch64") is None or shutil.which(f"{ARM}-g++") is None,
                               reason="no cross compiler or no emulator for aarch64")


class Small(nn.Module):
    """A convolution, attention and a product: generated kernels, and those of the library."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.head = nn.Conv2d(3, 24, 3, padding=1), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x):
        q, k, v = self.conv(x).flatten(2).transpose(1, 2).unflatten(-1, (3, 8)).unbind(2)
        scores = nn.functional.scaled_dot_product_attention(*(t.unsqueeze(1) for t in (q, k, v)))
        return torch.tanh(self.head(self.norm(scores.squeeze(1))))


def called(*command, **environment):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, **environment})
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


def built(folder, *flags):
    """The C example that finds the installed runtime."""
    prefix = folder / "prefix"
    called("cmake", "-S", NATIVE, "-B", folder / "runtime", f"-DCMAKE_INSTALL_PREFIX={prefix}", *flags)
    called("cmake", "--build", folder / "runtime", "-j2")
    called("cmake", "--install", folder / "runtime", "--strip")
    called("cmake", "-S", NATIVE / "examples", "-B", folder / "example", f"-DCMAKE_PREFIX_PATH={prefix}", *flags,
           "-DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=BOTH")
    called("cmake", "--build", folder / "example")
    return folder / "example", next(prefix.glob("lib*/libframesmith.so"))


def numbers(text):
    return torch.tensor([float(word) for word in text.split()[1:]])


@needs_cmake
def test_programs_in_c_and_by_ctypes(tmp_path):
    model, x = Small().eval(), torch.ones(1, 3, 6, 6)
    framesmith.package(model, (x,), path=tmp_path / "m.fsm", targets=["x86-64", "x86-64-v3"])
    example, library = built(tmp_path)
    assert library.resolve().stat().st_size < 1_000_000
    assert not any(part in called("ldd", example / "run_c") for part in ("torch", "python", "gomp"))
    torch.testing.assert_close(numbers(called(example / "run_c", tmp_path / "m.fsm")), model(x).detach().flatten()[:4])
    assert "x86-64" in called(example / "run_cpp", tmp_path / "m.fsm", 3, 3)
    by_ctypes = called(sys.executable, "-S", NATIVE / "examples" / "run.py", library, tmp_path / "m.fsm")
    assert by_ctypes.startswith("(1, 36, 5)")
    failed = subprocess.run([example / "run_c", tmp_path], capture_output=True, text=True)
    assert failed.returncode == 1 and "no package" in failed.stderr


NUMPY = """
import sys, numpy, framesmith_runtime
model = framesmith_runtime.load(sys.argv[1])
x = numpy.ones((1, 3, 6, 6), numpy.float32)
(a,), (b,), (c,) = (model(y) for y in (x, x[:, :, ::-1], numpy.broadcast_to(numpy.float32(1), x.shape)))
assert (a == b).all() and (a == c).all() and "torch" not in sys.modules
print("y:", *a.ravel()[:4])
try:
    model(x[:, :2])
except framesmith_runtime.RuntimeFailure as e:
    print(e, file=sys.stderr)
"""


def test_numpy_without_pytorch(tmp_path):
    model, x = Small().eval(), torch.ones(1, 3, 6, 6)
    framesmith.package(model, (x,), path=tmp_path / "m.fsm", targets=["x86-64"])
    called(sys.executable, NATIVE / "python" / "setup.py", "-q", "egg_info", "-e", tmp_path, "build", "-b",
           tmp_path / "build")
    (library,) = (tmp_path / "build").glob("lib*")
    found = called(sys.executable, "-c", NUMPY, tmp_path / "m.fsm", PYTHONPATH=str(library))
    torch.testing.assert_close(numbers(found), model(x).detach().flatten()[:4])


@needs_cmake
@needs_arm
def test_aarch64_gives_what_x86_gives(tmp_path):
    model, x = Small().eval(), torch.ones(1, 3, 6, 6)
    framesmith.package(model, (x,), path=tmp_path / "m.fsm", targets=["aarch64"])
    example, library = built(tmp_path, f"-DCMAKE_CXX_COMPILER={ARM}-g++", f"-DCMAKE_C_COMPILER={ARM}-gcc",
                             "-DCMAKE_SYSTEM_NAME=Linux")
    found = called("qemu-aarch64", "-L", f"/usr/{ARM}", "-E", f"LD_LIBRARY_PATH={library.parent}", example / "run_c",
                   tmp_path / "m.fsm")
    torch.testing.assert_close(numbers(found), model(x).detach().flatten()[:4])
    with pytest.raises(framesmith.exc.PackageError, match="no code for this processor; the package has: aarch64"):
        framesmith.load(tmp_path / "m.fsm")


def test_a_package_is_not_taken_for_one_that_was_loaded_before(tmp_path):
    x = torch.randn(6, 8, 8)
    for k, step in enumerate((lambda x: x @ x, lambda x: x @ x + 1, lambda x: x * 2)):  # a product keeps thread's data
        framesmith.package(step, (x,), path=tmp_path / str(k), targets=["x86-64"])
        torch.testing.assert_close(framesmith.load(tmp_path / str(k))(x), step(x))


def test_many_threads_run_several_models(tmp_path):
    models = [Small().eval(), nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)).eval()]
    inputs = [torch.randn(1, 3, 20, 20), torch.randn(256, 64)]
    loaded = []
    for k, (model, x) in enumerate(zip(models, inputs)):
        framesmith.package(model, (x,), path=tmp_path / str(k), targets=["x86-64-v3"])
        loaded.append(framesmith.load(tmp_path / str(k)))
    wanted = [model(x).detach() for model, x in zip(models, inputs)]
    wrong = []

    def work(k):
        for _ in range(30):
            if not torch.allclose(loaded[k](inputs[k]), wanted[k], atol=1e-5):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k % 2,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_input_that_the_model_writes(tmp_path):
    def step(cache, row, place):
        cache.index_copy_(0, place, row)
        return cache.sum(0)

    args = torch.zeros(4, 8), torch.ones(1, 8), torch.tensor([2])
    framesmith.package(step, args, path=tmp_path / "m", targets=["x86-64"])
    cache = torch.zeros(4, 8)
    total = framesmith.load(tmp_path / "m")(cache, torch.ones(1, 8), torch.tensor([2]))
    assert torch.equal(total, torch.ones(8)) and torch.equal(cache[2], torch.ones(8)) and cache.sum() == 8
