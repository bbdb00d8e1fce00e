"""Packages, loaded by the runtime and run: the same as eager, for each target that this processor runs."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import framesmith
from framesmith.package.machines import MACHINES


class Attending(nn.Module):
    """Embedding, attention with a mask, normalisation, and a result in a dict."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.project = nn.Embedding(50, 32), nn.LayerNorm(32), nn.Linear(32, 96)

    def forward(self, ids, mask=None):
        q, k, v = self.project(self.table(ids)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        x = nn.functional.scaled_dot_product_attention(q, k, v, mask)
        return {"last": self.norm(x.transpose(1, 2).flatten(2)), "ids": ids, "size": 32}


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 3)).eval()


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3, 2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(
        16, 16, 3, groups=16, padding=1), nn.Hardswish(), nn.Conv2d(16, 8, 3, groups=2), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


def packaged(path, model, args, kwargs=None, **options):
    framesmith.package(model, args, kwargs, path=path / "model.fsm", **options)
    return framesmith.load(path / "model.fsm")


def runs_here(name):
    flags = Path("/proc/cpuinfo").read_text()
    machine = MACHINES[name]
    return machine.machine == "x86_64" and all(
        f in flags for f in machine.features if f not in ("bmi", "lzcnt"))


TARGETS = [pytest.param(name, marks=pytest.mark.skipif(not runs_here(name), reason="another processor"))
           for name in ("x86-64-v4", "x86-64-v3", "x86-64")]


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_runs_with_any_size_of_the_range(target, tmp_path):
    model = mlp()
    loaded = packaged(tmp_path, model, (torch.randn(4, 10),), dynamic_shapes=[{0: framesmith.Dim("batch", max=64)}],
                      targets=[target])
    assert loaded.model.target == target and loaded.dimensions == {"batch": (1, 64)}
    torch.testing.assert_close(loaded(torch.ones(1, 1).expand(3, 10)), model(torch.ones(3, 10)).detach())
    for batch in (1, 7, 64):
        x = torch.randn(batch, 10)
        torch.testing.assert_close(loaded(x), model(x).detach())
    with pytest.raises(ValueError, match="batch is 65, out of its range from 1 to 64"):
        loaded(torch.randn(65, 10))


@pytest.mark.parametrize("target", ["x86-64-v4" if runs_here("x86-64-v4") else "x86-64-v3"])
def test_convolutions_and_what_lies_otherwise_in_memory(target, tmp_path):
    model = convolutions()
    x = torch.randn(2, 3, 20, 20)
    loaded = packaged(tmp_path, model, (x,), targets=[target])
    torch.testing.assert_close(loaded(x), model(x).detach())
    torch.testing.assert_close(loaded(x.contiguous(memory_format=torch.channels_last)), model(x).detach())


@pytest.mark.parametrize("mask", [None, torch.rand(2, 1, 1, 7) > 0.3, torch.randn(7, 7)],
                         ids=["none", "truth", "added"])
def test_operators_that_are_kernels_of_the_library(mask, tmp_path):
    torch.manual_seed(0)
    model, ids = Attending().eval(), torch.randint(0, 50, (2, 7))
    loaded = packaged(tmp_path, model, (ids,) if mask is None else (ids, mask), targets=["x86-64-v3"])
    found, wanted = (f(ids) if mask is None else f(ids, mask) for f in (loaded, model))
    torch.testing.assert_close(found["last"], wanted["last"].detach())
    assert found["ids"] is not None and torch.equal(found["ids"], ids) and found["size"] == 32


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_the_recurrence(cell, target, tmp_path):
    torch.manual_seed(0)
    model = cell(12, 20, 2, batch_first=True, bidirectional=True).eval()
    loaded = packaged(tmp_path, model, (torch.randn(3, 5, 12),), targets=[target],
                      dynamic_shapes=[{0: framesmith.Dim("batch"), 1: framesmith.Dim("steps")}])
    for size in ((3, 5), (1, 9), (4, 1)):
        x = torch.randn(*size, 12)
        torch.testing.assert_close(loaded(x), torch.utils._pytree.tree_map(torch.Tensor.detach, model(x)))


def test_embedding_bags(tmp_path):
    torch.manual_seed(0)
    tables = nn.ModuleList([nn.EmbeddingBag(30, 8, mode=mode) for mode in ("sum", "sum", "mean")])
    tables.forward = lambda indices, offsets: [table(i, offsets) for table, i in zip(tables, indices)]

    def given(bags):
        return torch.randint(0, 30, (3, 4 * bags)), torch.arange(0, 4 * bags, 4)

    batch = framesmith.Dim("batch", max=64)
    loaded = packaged(tmp_path, tables, given(5), targets=["x86-64-v3"], dynamic_shapes=[{1: 4 * batch}, {0: batch}])
    for bags in (5, 1, 9):
        args = given(bags)
        torch.testing.assert_close(loaded(*args), [x.detach() for x in tables(*args)])


def test_an_index_out_of_range_is_an_error(tmp_path):
    model = nn.Embedding(10, 4)
    loaded = packaged(tmp_path, model, (torch.tensor([1, 2]),), targets=["x86-64"])
    torch.testing.assert_close(loaded(torch.tensor([3, 9])), model(torch.tensor([3, 9])).detach())
    with pytest.raises(IndexError):
        loaded(torch.tensor([3, 10]))


def test_an_exported_program_is_packaged(tmp_path):
    model, x = mlp(), torch.randn(4, 10)
    loaded = packaged(tmp_path, framesmith.export(model, (x,)), (x,), targets=["x86-64"])
    torch.testing.assert_close(loaded(x), model(x).detach())


def test_what_needs_pytorch_is_refused_with_its_line(tmp_path):
    with pytest.raises(framesmith.exc.PackageError, match=r"aten\.sort.*test_package\.py:\d+ in <lambda>"):
        framesmith.package(lambda x: x.sort(0), (torch.randn(5),), path=tmp_path / "m", targets=["x86-64"])
    with pytest.raises(framesmith.exc.PackageError, match="targets are some of"):
        framesmith.package(mlp(), (torch.randn(4, 10),), path=tmp_path / "m", targets=["vax"])


THREADS = """
import os, sys, threading, torch, framesmith
torch.set_num_threads({threads})
count = lambda: len(os.listdir("/proc/self/task"))
loaded, alone = framesmith.load(sys.argv[1]), count()
x = torch.arange(1 << 20) / 4e5
assert count() == alone + {threads} - 1
for _ in range(3):
    torch.testing.assert_close(loaded(x), torch.tanh(x))
assert count() == alone + {threads} - 1, count()
others = [threading.Thread(target=lambda: [results.append(loaded(x)) for _ in range(20)]) for _ in range(3)]
results = []
for thread in others: thread.start()
for thread in others: thread.join()
assert len(results) == 60 and all(torch.equal(y, results[0]) for y in results)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize("threads", [1, 3])
def test_a_call_runs_on_the_threads_of_pytorch(threads, tmp_path):
    framesmith.package(torch.tanh, (torch.ones(1 << 20),), path=tmp_path / "model.fsm")
    done = subprocess.run([sys.executable, "-c", THREADS.format(threads=threads), tmp_path / "model.fsm"],
                          capture_output=True, text=True)
    assert not done.returncode, done.stderr


class Both(nn.Module):
    def forward(self, x, y, s):
        return x @ y + s, x


def test_calls_of_a_known_layout_ask_for_no_sizes_and_others_do(tmp_path, monkeypatch):
    n = framesmith.Dim("n", min=2, max=8)
    framesmith.package(Both(), (torch.ones(3, 4), torch.ones(4, 5), torch.ones(())), path=tmp_path / "both.fsm",
                       targets=["x86-64"], dynamic_shapes=[{0: n}, {}, {}])
    loaded, asked = framesmith.load(tmp_path / "both.fsm"), []
    shapes = loaded.model.shapes
    monkeypatch.setattr(loaded.model, "shapes", lambda given: asked.append(given) or shapes(given))
    for _ in range(2):
        for x in (torch.randn(3, 4), torch.randn(8, 4), torch.randn(4, 3).t(), torch.randn(()).expand(3, 4),
                  torch.randn(3, 4, requires_grad=True)):
            y, s = torch.randn(4, 5), torch.randn(())
            found, given = loaded(x, y, s)
            torch.testing.assert_close(found, x @ y + s)
            assert torch.equal(given, x) and not found.requires_grad and not given.requires_grad
    assert len(asked) == 4
