"""Ranges of NVTX, on a machine without the library: a stand-in takes what PyTorch pushes and pops."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from framesmith.runtime import toolchain

STAND_IN = """
#include <torch/csrc/profiler/stubs/base.h>
#include <cstdio>
namespace {
struct Printing final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*, int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override { return 0; }
  void mark(const char*) const override {}
  void rangePush(const char* name) const override { std::printf("push %s\\n", name); std::fflush(stdout); }
  void rangePop() const override { std::printf("pop\\n"); std::fflush(stdout); }
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}
} printing;
const int registered = (torch::profiler::impl::registerCUDAMethods(&printing), 0);
}
"""
PROGRAM = """
import ctypes, sys, torch
from torch import nn
from torch.autograd import ProfilerState
import framesmith
ctypes.CDLL(sys.argv[1])
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).eval()
compiled, x = framesmith.compile(model), torch.randn(4, 8)
with torch.no_grad():
    compiled(x)
    print("begin", flush=True)
    kinds = torch._C._profiler._ExperimentalConfig()
    config = torch.autograd.ProfilerConfig(ProfilerState.NVTX, False, False, False, False, False, kinds)
    torch.autograd._enable_profiler(config, set())
    compiled(x)
    torch.autograd._disable_profiler()
    print("end", flush=True)
    compiled(x)
"""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvtx")
    source, library = folder / "stand_in.cpp", folder / "stand_in.so"
    source.write_text(STAND_IN)
    root = Path(torch.__file__).parent
    subprocess.run([toolchain.find().compiler, "-std=c++20", "-shared", "-fPIC", f"-I{root}/include", source,
                    "-o", library, f"-L{root}/lib", "-ltorch_cpu", "-lc10"], check=True)
    return library


def test_a_call_is_a_range_with_its_kernels_in_it(stand_in):
    run = subprocess.run([sys.executable, "-c", PROGRAM, str(stand_in)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0] == "begin" and lines[-1] == "end", lines  # no range but while it watches
    ranges, depth, found = lines[1:-1], 0, []
    for line in ranges:
        if line == "pop":
            depth -= 1
        else:
            found.append((depth, line.removeprefix("push ")))
            depth += 1
        assert depth >= 0
    assert depth == 0
    graphs = [(d, name) for d, name in found if "framesmith graph" in name]
    assert len(graphs) == 1 and "Sequential" in graphs[0][1]
    assert any(d > graphs[0][0] and "relu" in name for d, name in found), found
