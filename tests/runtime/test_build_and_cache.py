"""The toolchain, the build and the disk cache."""

import contextlib
import fcntl
import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch

from framesmith import _C
from framesmith.runtime import cache as cache_module
from framesmith.runtime import folder as folder_module
from framesmith.runtime import toolchain as toolchain_module
from framesmith.runtime.build import build
from framesmith.runtime.cache import Cache, key_of
from framesmith.runtime.load import load
from framesmith.runtime.plan import Dyn, Kind, Output, Plan, PlanValue
from framesmith.runtime.toolchain import find, openmp_library
from framesmith.util.errors import BuildError, CompilerMissing
from framesmith.util.log import forget_warnings

ENTRY = 'extern "C" __attribute__((visibility("default"))) int fs_run(char*, void** p, const long*, const void*)'
PLAN = Plan(1, (PlanValue(Kind.INPUT, 0, (16,), (1,), torch.float32),
                PlanValue(Kind.OUTPUT, 0, (16,), (1,), torch.float32)), (Output(1),))
COPY = ENTRY + "{ for (int i = 0; i < 16; i++) ((float*)p[1])[i] = ((float*)p[0])[i]; return 0; }"


def test_a_missing_compiler_is_named():
    with pytest.raises(CompilerMissing, match="no-such-compiler"):
        find("no-such-compiler")


def test_toolchain_is_found_and_stable():
    assert find() is find() and len(find().fingerprint) == 32
    assert find(extra_flags="-O1").fingerprint != find().fingerprint


def test_refused_code_shows_the_compilers_words(tmp_path):
    with pytest.raises(BuildError, match="nonsense") as info:
        build(["int f() { return nonsense; }"], find(), tmp_path / "x.so")
    assert find().compiler in info.value.command and "error" in info.value.output
    assert list(tmp_path.iterdir()) == []


def test_units_are_linked_together(tmp_path):
    first = 'extern "C" void k0(const float* a, float* b) { for (int i = 0; i < 16; i++) b[i] = a[i] + 1; }'
    second = 'extern "C" void k0(const float*, float*);' + ENTRY + "{ k0((float*)p[0], (float*)p[1]); return 0; }"
    build([first, second], find(), tmp_path / "x.so")
    assert torch.equal(load(PLAN, tmp_path / "x.so")((torch.zeros(16),))[0], torch.ones(16))


def openmp_runtimes():
    with open("/proc/self/maps") as maps:
        return {line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line or "libiomp" in line}


def test_one_openmp_runtime_with_pytorchs_thread_count(tmp_path):
    text = 'extern "C" int omp_get_num_threads();' + ENTRY
    text += "{\n#pragma omp parallel\n((float*)p[1])[0] = omp_get_num_threads();\nreturn 0; }"
    build([text], find(), tmp_path / "x.so")
    before, loaded = torch.get_num_threads(), openmp_runtimes()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert load(PLAN, tmp_path / "x.so")((torch.zeros(16),))[0][0] == threads
    finally:
        torch.set_num_threads(before)
    ours = {os.path.realpath(openmp_library())}
    assert openmp_runtimes() - loaded <= ours <= openmp_runtimes()  # other packages bring their own


def test_symbols_of_pytorch_are_linked_when_used(tmp_path):
    lanes = _C.LANES
    text = (f'typedef float vf __attribute__((vector_size({4 * lanes}))); extern "C" vf Sleef_expf{lanes}_u10(vf);'
            + ENTRY)
    text += f"{{ for (int i = 0; i < 16; i += {lanes}) {{ vf x; __builtin_memcpy(&x, (float*)p[0] + i, sizeof x); "
    text += f"x = Sleef_expf{lanes}_u10(x); __builtin_memcpy((float*)p[1] + i, &x, sizeof x); }} return 0; }}"
    build([text], find(), tmp_path / "x.so")
    x = torch.randn(16)
    torch.testing.assert_close(load(PLAN, tmp_path / "x.so")((x,))[0], x.exp())


def test_the_table_of_pytorchs_symbols_is_not_read(tmp_path):
    """What is linked is told the library's name alone: one that is nowhere to be read serves as well."""
    toolchain = replace(find(), libraries=(("Sleef_", "libsomewhere.so"),))
    build(['extern "C" double Sleef_exp_u10(double); extern "C" double f(double x) { return Sleef_exp_u10(x); }'],
          toolchain, tmp_path / "x.so")
    assert b"libsomewhere.so" in (tmp_path / "x.so").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["x.so"]


def test_libraries_are_built_once(tmp_path, monkeypatch):
    builds = []
    monkeypatch.setattr(cache_module, "build", lambda *a: (builds.append(1), build(*a)))
    for _ in range(2):
        cache = Cache(tmp_path)
        path = cache.library([COPY], find())
        assert torch.equal(load(PLAN, path)((torch.ones(16),))[0], torch.ones(16))
    assert builds == [1] and path.is_relative_to(tmp_path)


def test_lines_of_comments_are_not_part_of_a_librarys_key(tmp_path):
    """A kernel whose operators stand on another line of an edited program is not built again."""
    cache = Cache(tmp_path)
    first, moved, other = (cache.library([text + COPY], find())
                           for text in ("// add  net.py:3\n", "  // add  net.py:4\n", "static int moved;\n"))
    assert first == moved != other


def test_a_wait_for_another_process_opens_the_lock_once(tmp_path, monkeypatch):
    cache, opened = Cache(tmp_path), []
    with cache.alone("ab" * 24) as free:
        assert free
    (path,) = tmp_path.glob("*/*.lock")
    other, original = os.open(path, os.O_RDWR), open
    fcntl.flock(other, fcntl.LOCK_EX)  # as another process would
    monkeypatch.setattr(cache_module, "open", lambda name, *rest: opened.append(name) or original(name, *rest),
                        raising=False)
    looks = iter(range(5))

    def slept(seconds):
        if next(looks) == 4:
            os.close(other)

    monkeypatch.setattr(cache_module.time, "sleep", slept)
    with cache.alone("ab" * 24) as free:
        assert not free and [*looks] == [] and opened == [path]
        with pytest.raises(BlockingIOError), open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with cache.alone("ab" * 24) as free:
        assert free


def test_a_lock_that_is_held_for_long_is_not_waited_for(tmp_path, monkeypatch):
    cache = Cache(tmp_path)
    with cache.alone("ab" * 24):
        pass
    (path,) = tmp_path.glob("*/*.lock")
    monkeypatch.setattr(cache_module, "LOCK_SECONDS", 0.01)
    with open(path) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with cache.alone("ab" * 24) as free:
            assert not free


@pytest.mark.parametrize("damage", [lambda b: b[:100], lambda b: b"", lambda b: b[:5000] + b"\0" + b[5001:]])
def test_damaged_entries_are_made_again(tmp_path, damage):
    cache = Cache(tmp_path)
    path = cache.library([COPY], find())
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(damage(data))
    assert torch.equal(load(PLAN, cache.library([COPY], find()))((torch.ones(16),))[0], torch.ones(16))
    key = key_of("plan")
    assert cache.store(key, PLAN) and cache.load(key) == PLAN
    plan = cache.path(key, ".plan")
    plan.write_bytes(plan.read_bytes()[:-3])
    assert cache.load(key) is None


def test_an_unwritable_folder_is_no_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "cache")
    assert torch.equal(load(PLAN, cache.library([COPY], find()))((torch.ones(16),))[0], torch.ones(16))
    cache = Cache(tmp_path / "good")
    key = key_of(find().fingerprint, COPY)
    (tmp_path / "good" / key[:2]).write_text("in the way")
    assert torch.equal(load(PLAN, cache.library([COPY], find()))((torch.ones(16),))[0], torch.ones(16))
    assert not cache.store(key[:2] + "x", PLAN) and cache.load(key[:2] + "x") is None


def test_what_has_no_form_is_not_stored(tmp_path):
    assert not Cache(tmp_path).store(key_of(1), lambda: 0)


def test_keys_tell_their_parts_apart():
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of(b"abc", 1), key_of("abc", (1, 2.0)),
                key_of(Dyn(1))}) == 6
    assert key_of("a", 1, (2, None)) == key_of("a", 1, (2, None))


def test_memory_outlives_the_process(tmp_path):
    memory = Cache(tmp_path).memory("choices")
    assert memory.get("x") is None
    memory["x"] = "own"
    Cache(tmp_path).memory("choices")["y"] = "aten"
    assert dict(Cache(tmp_path).memory("choices")) == {"x": "own", "y": "aten"}
    next(tmp_path.glob("choices*")).write_text("{damaged")
    assert dict(Cache(tmp_path).memory("choices")) == {}


def test_two_processes_share_a_folder(tmp_path):
    program = textwrap.dedent(f"""
        import torch
        from framesmith.runtime.cache import Cache
        from framesmith.runtime.load import load
        from framesmith.runtime.toolchain import find
        from tests.runtime.test_build_and_cache import PLAN, COPY
        print(float(load(PLAN, Cache({str(tmp_path)!r}).library([COPY], find()))((torch.ones(16),))[0].sum()))
    """)
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [p.communicate()[0].strip() for p in running] == ["16.0", "16.0"]
    assert len(list(tmp_path.glob("*/*.so"))) == 1


def test_code_that_is_but_calls_is_built_in_a_hurry():
    toolchain = find()
    hurried = toolchain.hurried()
    assert "-O2" in toolchain.compile_flags and "-O0" in hurried.compile_flags and "-O2" not in hurried.compile_flags
    assert hurried.fingerprint == toolchain.fingerprint  # either serves a plan


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """Warnings speak, and the private folder is one of this test's."""
    forget_warnings()
    monkeypatch.setattr(folder_module, "_private", [tmp_path / "private"])
    (tmp_path / "private").mkdir()
    return tmp_path / "private"


def test_a_new_folder_is_this_users_alone(tmp_path):
    before = os.umask(0)
    try:
        cache = Cache(tmp_path / "a" / "b")
        library = cache.library([COPY], find())
        assert cache.store(key_of(1), PLAN)
    finally:
        os.umask(before)
    assert cache.folder == tmp_path / "a" / "b" and cache.folder.stat().st_mode & 0o777 == 0o700
    assert library.is_relative_to(cache.folder)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_nothing_is_loaded_from_a_folder_that_others_can_write(mode, tmp_path, alone):
    folder = tmp_path / "open"
    assert Cache(folder).store(key_of(1), PLAN) and Cache(folder).load(key_of(1)) == PLAN
    folder.chmod(mode)
    with pytest.warns(UserWarning, match="can be written by other users") as told:
        caches = [Cache(folder) for _ in range(3)]
    assert len(told) == 1 and all(cache.folder == alone and cache.load(key_of(1)) is None for cache in caches)
    folder.chmod(0o755)
    assert Cache(folder).load(key_of(1)) == PLAN


def test_nothing_is_loaded_from_another_users_folder(tmp_path, alone, monkeypatch):
    folder = tmp_path / "theirs"
    assert Cache(folder).store(key_of(1), PLAN)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.warns(UserWarning, match="belongs to another user"):
        cache = Cache(folder)
    assert cache.folder == alone and cache.load(key_of(1)) is None


def test_a_link_is_what_it_points_at(tmp_path, alone):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.warns(UserWarning, match="can be written by other users"):
        assert Cache(tmp_path / "link").folder == alone


@pytest.mark.parametrize("name", ["g++; touch {}", "$(touch {})", "`touch {}`", "g++ && touch {}"])
def test_no_shell_reads_the_compilers_name(name, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", name.format(tmp_path / "made"))
    with pytest.raises(CompilerMissing):
        find()
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("flags", ["-DX=$(touch${{IFS}}{})", "-DX=1;touch {}", "-DX=`touch${{IFS}}{}`",
                                   "-DX=1|touch${{IFS}}{}"])
def test_no_shell_reads_the_compilers_flags(flags, tmp_path):
    with contextlib.suppress(BuildError):  # a word may be no file
        Cache(tmp_path / "cache").library([COPY], find(extra_flags=flags.format(tmp_path / "made")))
    assert not (tmp_path / "made").exists()


def test_without_a_compiler_a_folder_knows_the_one_it_was_filled_with(tmp_path, monkeypatch, compiler_in_path):
    toolchain_module._toolchain.cache_clear()
    cache = Cache(tmp_path / "cache")
    known = cache.toolchain()
    library = cache.library([COPY], known)
    monkeypatch.setenv("PATH", str(tmp_path))
    toolchain_module._toolchain.cache_clear()
    try:
        absent = Cache(tmp_path / "cache").toolchain()
        assert absent.fingerprint == known.fingerprint and cache.library([COPY], absent) == library
        with pytest.raises(CompilerMissing, match="to build what is not in the cache"):
            cache.library([COPY + " "], absent)
        with pytest.raises(CompilerMissing):
            Cache(tmp_path / "cold").toolchain()
        with pytest.raises(CompilerMissing):
            cache.toolchain(extra_flags="-O1")
    finally:
        toolchain_module._toolchain.cache_clear()
