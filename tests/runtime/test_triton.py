"""Triton's text to machine code, without a device."""

import importlib.util
import os
import threading

import pytest

from framesmith.runtime import triton
from framesmith.runtime.cache import Cache
from framesmith.util.errors import BuildError, TritonMissing

TEXT = """import triton
import triton.language as tl


@triton.jit
def double(p0, p1, n0, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n0
    tl.store(p1 + i, tl.load(p0 + i, m) * 2.0, m)
"""
SIGNATURE = (("p0", "*fp32"), ("p1", "*fp32"), ("n0", "i32"))
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


def double(text=TEXT, **more):
    return triton.TritonSource("double", text, SIGNATURE, (("BLOCK", 1024),), (0, 1), **more)


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path)


@needs_triton
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_a_kernel_for_an_architecture(cache, arch):
    (binary,) = triton.start([double()], arch, cache).wait()
    assert binary.name == "double" and binary.image[:4] == b"\x7fELF"
    assert (binary.threads, binary.shared) == (128, 0) and binary.scratch >= 0


@needs_triton
def test_equal_kernels_are_one_and_the_cache_knows_them(cache):
    pending = triton.start([double(), double(warps=8), double()], 90, cache)
    assert len(pending.missing) == 2
    a, b, c = pending.wait()
    assert a is c and (a.threads, b.threads) == (128, 256)
    again = triton.start([double(), double(warps=8)], 90, Cache(cache.folder))
    assert not again.missing and again.wait() == (a, b)
    other = triton.start([double()], 80, cache)
    assert other.missing and other.wait()[0] != a


@needs_triton
def test_what_a_number_is_a_multiple_of_is_part_of_a_kernel(cache):
    plain, known = triton.start([double(), double(multiples=((2, 16),))], 90, cache).wait()
    assert len(known.image) < len(plain.image)  # one mask for a vector


@needs_triton
def test_what_triton_refuses_is_an_error_in_its_words_and_the_next_kernel_compiles(cache):
    with pytest.raises(BuildError, match="no_such"):
        triton.start([double(TEXT.replace("tl.load", "tl.no_such")), double()], 90, cache).wait()
    assert triton.start([double()], 90, cache).wait()[0].name == "double"


@needs_triton
def test_a_child_that_dies_takes_one_kernel_with_it(cache):
    dying = double(TEXT + "\n\nimport os\n\nos._exit(3)\n")
    others = [double(TEXT.replace("2.0", f"{n}.0")) for n in (31, 32, 33)]
    pending = triton.start([others[0], dying, *others[1:]], 90, cache, jobs=1)
    found = pending.attempted()
    assert [binary is None for binary in found] == [False, True, False, False]
    assert "ended with status" in pending.refused[0]


@needs_triton
def test_threads_take_turns(cache):
    names = []
    texts = [TEXT.replace("2.0", f"{n}.0") for n in range(3)]
    threads = [threading.Thread(target=lambda t=t: names.append(triton.start([double(t)], 90, cache).wait()[0].name))
               for t in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert names == ["double"] * 3


@needs_triton
def test_kernels_are_begun_while_others_are_compiled(cache):
    first, second, third = (triton.start([double(TEXT.replace("2.0", f"{n}.0"))], 90, cache) for n in (11, 12, 13))
    second.drop()
    assert third.wait()[0].name == "double"
    assert first.wait()[0].name == "double" and not triton._started[0].asked


@needs_triton
def test_what_a_process_that_died_has_left_is_compiled_by_the_next(cache):
    pending = triton.start([double(TEXT.replace("2.0", f"{n}.0")) for n in (21, 22)], 90, cache)
    triton._started[0].popen.kill()
    triton._started[0].popen.wait()
    assert [binary.name for binary in pending.wait()] == ["double"] * 2


@needs_triton
def test_a_forked_child_has_a_process_of_its_own(cache):
    triton.start([double()], 90, cache).wait()
    child = os.fork()
    if not child:
        os._exit(triton.start([double(TEXT.replace("2.0", "5.0"))], 90, cache).wait()[0].name != "double")
    assert os.waitpid(child, 0)[1] == 0
    assert triton.start([double(TEXT.replace("2.0", "7.0"))], 90, cache).wait()[0].name == "double"


@needs_triton
def test_a_process_that_died_is_started_again(cache):
    triton.start([double()], 90, cache).wait()
    triton._started[0].popen.kill()
    triton._started[0].popen.wait()
    assert triton.start([double(TEXT.replace("2.0", "3.0"))], 90, cache).wait()[0].name == "double"


def test_without_triton_the_error_says_what_to_install(cache, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    triton.version.cache_clear()
    with pytest.raises(TritonMissing, match="pip install triton"):
        triton.start([double()], 90, cache)
