"""The runtime as programs without PyTorch use it: built by CMake, found by `find_package`, called from C, by many
threads, and on another processor."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import framesmith
from framesmith.export.trees import flatten
from tests.package import test_sizes, test_state

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
    """The examples that find the installed runtime, and the runtime."""
    prefix = folder / "prefix"
    called("cmake", "-S", NATIVE, "-B", folder / "runtime", f"-DCMAKE_INSTALL_PREFIX={prefix}", *flags)
    called("cmake", "--build", folder / "runtime", "-j2")
    called("cmake", "--install", folder / "runtime", "--strip")
    called("cmake", "-S", NATIVE / "examples", "-B", folder / "example", f"-DCMAKE_PREFIX_PATH={prefix}", *flags,
           "-DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=BOTH")
    called("cmake", "--build", folder / "example")
    return folder / "example", next(prefix.glob("lib*/libframesmith.so"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Programs in C and C++, and the runtime library."""
    return built(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A folder with the package `framesmith_runtime`."""
    folder = tmp_path_factory.mktemp("wheel")
    called(sys.executable, NATIVE / "python" / "setup.py", "-q", "egg_info", "-e", folder, "build", "-b",
           folder / "build")
    (library,) = (folder / "build").glob("lib*")
    return str(library)


def numbers(text):
    return torch.tensor([float(word) for word in text.split()[1:]])


@needs_cmake
def test_programs_in_c_and_by_ctypes(installed, tmp_path):
    model, x = Small().eval(), torch.ones(1, 3, 6, 6)
    framesmith.package(model, (x,), path=tmp_path / "m.fsm", targets=["x86-64", "x86-64-v3"])
    example, library = installed
    assert library.resolve().stat().st_size < 1_000_000
    assert not any(part in called("ldd", example / "run_c") for part in ("torch", "python", "gomp"))
    torch.testing.assert_close(numbers(called(example / "run_c", tmp_path / "m.fsm")), model(x).detach().flatten()[:4])
    assert "x86-64" in called(example / "run_cpp", tmp_path / "m.fsm", 3, 3)
    by_ctypes = called(sys.executable, "-S", NATIVE / "examples" / "run.py", library, tmp_path / "m.fsm")
    assert by_ctypes.startswith("(1, 36, 5)")
    for program in ("run_c", "run_cpp"):
        failed = subprocess.run([example / program, tmp_path], capture_output=True, text=True)
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


def test_numpy_without_pytorch(wheel, tmp_path):
    model, x = Small().eval(), torch.ones(1, 3, 6, 6)
    framesmith.package(model, (x,), path=tmp_path / "m.fsm", targets=["x86-64"])
    found = called(sys.executable, "-c", NUMPY, tmp_path / "m.fsm", PYTHONPATH=wheel)
    torch.testing.assert_close(numbers(found), model(x).detach().flatten()[:4])


AT_SIZES = """
import pathlib, sys, numpy, framesmith_runtime
folder = pathlib.Path(sys.argv[1])
model = framesmith_runtime.load(folder / "m.fsm")
for case in sorted(folder.glob("case*")):
    outputs = model(*[numpy.load(case / f"{i['name']}.npy") for i in model.model.manifest["inputs"]])
    for x, info in zip(outputs, model.model.manifest["outputs"]):
        x.tofile(case / f"{info['name']}.numpy")
try:
    model(*[numpy.load(folder / "beyond" / f"{i['name']}.npy") for i in model.model.manifest["inputs"]])
except framesmith_runtime.RuntimeFailure as e:
    print(e)
assert "torch" not in sys.modules
"""


@needs_cmake
@pytest.mark.parametrize("name", test_sizes.CASES)
def test_a_model_at_several_sizes_without_pytorch(name, installed, wheel, tmp_path):
    torch.manual_seed(0)
    build, inputs, dims, sizes, ((dimension, beyond), *_) = test_sizes.CASES[name]
    model = build()
    framesmith.package(model, (), inputs(*sizes[0]), path=tmp_path / "m.fsm", targets=["x86-64-v3"],
                       dynamic_shapes=dims)
    manifest = framesmith.load(tmp_path / "m.fsm").model.manifest
    names = [d["name"] for d in manifest["dimensions"]]
    cases = [(tmp_path / f"case{k}", size) for k, size in enumerate(sizes)]
    wanted = []
    for folder, size in [*cases, (tmp_path / "beyond", beyond)]:
        folder.mkdir()
        given = inputs(*size)
        for key, x in given.items():
            numpy.save(folder / f"{key}.npy", x.numpy())
            x.numpy().tofile(folder / key)
        if size != beyond:
            with torch.no_grad():
                wanted.append(flatten(model(**given))[0])

    def in_c(folder, size):
        files = [f"{i['name']}={folder / i['name']}" for i in manifest["inputs"]]
        files += [f"{o['name']}={folder / o['name']}.c" for o in manifest["outputs"]]
        return [installed[0] / "run_c", tmp_path / "m.fsm", *[f"{d}={n}" for d, n in zip(names, size)], *files]

    for folder, size in cases:
        called(*in_c(folder, size))
    refused = [called(sys.executable, "-c", AT_SIZES, tmp_path, PYTHONPATH=wheel), subprocess.run(
        list(map(str, in_c(tmp_path / "beyond", beyond))), capture_output=True, text=True).stderr]
    assert all(f"{dimension} is {beyond[0]}, out of its range" in text for text in refused)
    for (folder, _), tensors in zip(cases, wanted):
        for info, x in zip(manifest["outputs"], tensors, strict=True):
            for way in ("c", "numpy"):
                found = torch.from_numpy(numpy.fromfile(folder / f"{info['name']}.{way}", numpy.float32))
                torch.testing.assert_close(found.view(x.shape), x, atol=1e-5, rtol=1e-4)


DECODE = """
import sys, numpy, framesmith_runtime
model = framesmith_runtime.load(sys.argv[1])
other = model.instance()
for turn, instances in enumerate(((model, other), (model,))):
    tokens = [numpy.array([[1]]) for _ in instances]
    for _ in range(20):
        for k, instance in enumerate(instances):
            logits, = instance(tokens[k])
            tokens[k] = logits[:, -1:].argmax(-1)
            print(turn, k, tokens[k][0, 0], logits.max())
    model.reset()
assert "torch" not in sys.modules
"""


@needs_cmake
def test_a_llama_decodes_with_its_cache_without_pytorch(installed, wheel, tmp_path):
    model = test_state.Llama().eval()
    framesmith.package(model, (torch.tensor([[1]]),), path=tmp_path / "m.fsm", targets=["x86-64-v3"])
    steps, token = [], torch.tensor([[1]])
    with torch.no_grad():
        for _ in range(20):
            logits = model(token)
            token = logits[:, -1:].argmax(-1)
            steps.append([token.item(), logits.max().item()])
    wanted = torch.tensor([[turn, k, *step] for turn, count in enumerate((2, 1)) for step in steps
                           for k in range(count)])
    for text in (called(installed[0] / "decode", tmp_path / "m.fsm", 1, 20),
                 called(sys.executable, "-c", DECODE, tmp_path / "m.fsm", PYTHONPATH=wheel)):
        found = torch.tensor([[float(word) for word in line.split()] for line in text.splitlines()])
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


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
