"""Kernels in a process of their own: what goes astray there is out, and the others are timed. The driver is a
stand-in."""

import os
import subprocess
import sys

import pytest
import torch

from framesmith.runtime import trial
from framesmith.runtime.toolchain import find
from framesmith.runtime.trial import Contender, Memory, Trials
from framesmith.runtime.triton import Binary

DRIVER = r"""
#include <cstdlib>
#include <cstring>
#include <cstdio>
extern "C" {
static char image[64]; static float taken; static long places = 4096; static long living;
int cuInit(int) { return 0; }
int cuDeviceGet(int* d, int) { *d = 0; return 0; }
int cuDevicePrimaryCtxRetain(void**, int) { return 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxSynchronize() { if (!strcmp(image, "astray")) { fprintf(stderr, "astray\n"); return 700; } return 0; }
int cuMemAlloc_v2(void** p, size_t n) { *p = malloc(n); living++; return 0; }
int cuMemFree_v2(void* p) { free(p); living--; return 0; }
int cuMemsetD8_v2(void* p, int c, size_t n) { memset(p, c, n); return 0; }
int cuMemsetD8Async(void*, int, size_t, void*) { return 0; }
int cuMemcpyHtoD_v2(void* p, const void* q, size_t n) { memcpy(p, q, n); return 0; }
int cuMemcpyDtoD_v2(void* p, const void* q, size_t n) { memcpy(p, q, n); return 0; }
int cuModuleLoadData(void** m, const char* text) { *m = strdup(text); return 0; }
int cuModuleUnload(void* m) { free(m); return 0; }
int cuModuleGetFunction(void** f, void* m, const char*) { *f = m; return 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuEventCreate(void** e, int) { *e = calloc(1, sizeof(float)); return 0; }
int cuEventDestroy_v2(void* e) { free(e); return 0; }
int cuEventRecord(void* e, void*) { *(float*)e = taken; return 0; }
int cuEventElapsedTime(float* ms, void*, void* e) { *ms = *(float*)e; return 0; }
int cuLaunchKernel(void* f, unsigned x, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void** args,
                   void*) {
  snprintf(image, sizeof image, "%s", (const char*)f);
  if (!strcmp(image, "ends")) abort();
  if (!strcmp(image, "waits")) for (;;) {}
  if (!strcmp(image, "refused")) return 701;
  const short* indices = *(const short**)args[0];
  for (int i = 0; i < 100000; i++) if (indices[i] < 0 || indices[i] >= 7) return 1;
  taken = atof(image) * x * *(int*)args[1];
  return 0;
}
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER)
    subprocess.run([find(None, "").compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "driver.cpp"],
                   check=True)
    return folder


@pytest.fixture
def trials(driver, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{driver}{os.pathsep}{os.environ.get('LD_LIBRARY_PATH', '')}")
    with Trials(0) as trials:
        yield trials


MEMORY = [Memory(100_000, torch.int16, 7), Memory(0, torch.bfloat16), Memory(40_000, torch.float16),
          Memory(3, torch.bool)]


def kernel(image, grid=(2, 1)):
    return Contender(Binary("k", image.encode() + b"\0", 0, 4, 1), grid,
                     [("*i16", 0), ("i32", 3), ("*bf16", 1), ("fp32", 1.0)])


def test_kernels_are_timed_in_turn(trials):
    assert trials.milliseconds([kernel("2"), kernel("1"), kernel("1", (5,))], MEMORY) == [12.0, 6.0, 15.0]
    assert trials.milliseconds([kernel("2"), kernel("1")], MEMORY, warm=True) == [12.0 / trial.REPEATED,
                                                                                  6.0 / trial.REPEATED]


@pytest.mark.parametrize("what", ["ends", "astray"])
def test_a_kernel_that_goes_astray_is_out(trials, what):
    first = trials.begin().pid
    assert trials.milliseconds([kernel("2"), kernel(what), kernel("1")], MEMORY) == [12.0, None, 6.0]
    assert trials.begin().pid != first
    assert trials.milliseconds([kernel(what)], MEMORY) == [None]


def test_a_kernel_that_the_device_refuses_is_out(trials):
    assert trials.milliseconds([kernel("refused"), kernel("1")], MEMORY) == [None, 6.0]
    assert trials.milliseconds([kernel("refused")], MEMORY) == [None]


def test_a_kernel_that_does_not_end_is_out(trials, monkeypatch):
    monkeypatch.setattr(trial, "PATIENCE", 3)
    assert trials.milliseconds([kernel("waits"), kernel("1")], MEMORY) == [None, 6.0]


def test_a_slow_kernel_runs_once(trials):
    assert trials.milliseconds([kernel("1"), kernel("4")], MEMORY) == [6.0, 24.0]


def test_without_a_device_nothing_is_timed():
    with Trials(0, (sys.executable, "-c", "raise SystemExit(1)")) as trials:
        assert trials.milliseconds([kernel("1")], MEMORY) == [None]


def test_the_process_ends(trials):
    process = trials.begin()
    trials.end()
    assert process.poll() is not None
