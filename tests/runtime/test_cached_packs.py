"""Packed weights that the cache keeps: whatever its files have, constants are those of the present weights."""

import contextlib
import errno
import mmap
import os
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from torch import fx, nn

import framesmith
from framesmith.capture_cache.graphs import constants_of
from framesmith.lower.contractions import cached_packs, pack_linear
from framesmith.lower.contractions.geometry import HOST, is_packed, pack
from framesmith.runtime import cache, entries, folder, mapped
from framesmith.runtime.cache import Cache
from framesmith.util import events
from tests.paths import python_path

COLUMNS = 2 * HOST.lanes


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    monkeypatch.setattr(cached_packs, "LEAST", 0)
    monkeypatch.setattr(cached_packs, "LARGE", 1)


def written():
    """Wait for the threads that write."""
    for thread in threading.enumerate():
        if thread.name == "framesmith: packed weights":
            thread.join()


def is_mapped(tensor):
    maps = Path("/proc/self/maps").read_text().splitlines()
    places = [[int(x, 16) for x in row.split()[0].split("-")] for row in maps if entries.PACKED in row]  # or deleted
    return any(first <= tensor.data_ptr() < end for first, end in places)


def graph_of(count, read=False):
    """The packed form of each weight; of the first also twice that, if it is `read`."""
    graph = fx.Graph()
    weights = [graph.placeholder(f"w{k}") for k in range(count)]
    packs = [graph.call_function(pack, (graph.call_function(torch.t, (w,)), COLUMNS, HOST.lanes)) for w in weights]
    graph.output((*packs, *([graph.call_function(torch.mul, (packs[0], 2))] if read else [])))
    return graph


def packed(where, *weights, read=False, limit=1 << 30):
    """The constants of weights as a new process would compute them, which must be right; and which of them are those
    of a file."""
    count = len(weights)
    order = range(count + read)
    found = constants_of(graph_of(count, read), range(count), order, Cache(where, packed_limit=limit))(weights)
    written()
    for weight, constant in zip(weights, found):
        assert torch.equal(constant.view(torch.int32), pack(weight.t(), COLUMNS, HOST.lanes).view(torch.int32))
    return [is_mapped(constant) for constant in found]


def files(where):
    return sorted(Path(where).rglob("*.packed"))


WEIGHTS = torch.randn(48, 96), torch.randn(33, 70), torch.randn(1, 1)


# ------------------------------------------------------------------------------------------------------- the comparison


@pytest.mark.parametrize("columns", [HOST.lanes, 2 * HOST.lanes, 4 * HOST.lanes])
@pytest.mark.parametrize(("depth", "n"), [(1, 1), (7, 5), (16, 16), (64, 200), (300, 515), (2, 2)])
@pytest.mark.parametrize("layout", ["rows", "columns", "neither"])
def test_each_bit_is_compared(depth, n, columns, layout):
    weight = {"rows": torch.randn(depth, n), "columns": torch.randn(n, depth).t(),
              "neither": torch.randn(depth, 2, n, 2)[:, 0, :, 1]}[layout]
    out = pack(weight, columns, HOST.lanes)
    assert is_packed(weight, out, columns)
    bits = out.view(torch.int32)
    for place in {0, out.numel() - 1, *torch.randint(0, out.numel(), (20,)).tolist()}:  # padding is among them
        for bit in (0, 22, 31):
            bits[place] ^= 1 << bit if bit < 31 else -1 << 31
            assert not is_packed(weight, out, columns)
            bits[place] ^= 1 << bit if bit < 31 else -1 << 31
    assert is_packed(weight, out, columns)


@pytest.mark.parametrize("transposed", [False, True])
def test_numbers_are_compared_as_bits(transposed):
    weight = torch.full((32, 32), float("nan"))
    weight[3, 4] = 0.0
    given = weight.t() if transposed else weight
    out = pack(given, COLUMNS, HOST.lanes)
    assert is_packed(given, out, COLUMNS)
    weight[3, 4] = -0.0
    assert not is_packed(given, out, COLUMNS)


# ------------------------------------------------------------------------------------------------------------ the files


def test_a_later_process_maps_what_the_first_packed(tmp_path):
    assert packed(tmp_path, *WEIGHTS) == [False] * 3
    assert packed(tmp_path, *WEIGHTS) == [True] * 3
    assert packed(tmp_path, *[w.clone() for w in WEIGHTS]) == [True] * 3
    assert len(files(tmp_path)) == 1


def test_only_what_nothing_else_reads_is_in_the_file(tmp_path):
    assert packed(tmp_path, *WEIGHTS, read=True) == [False] * 4
    assert packed(tmp_path, *WEIGHTS, read=True) == [False, True, True, False]


@pytest.mark.parametrize("place", [(0, 1), (47, 95), (20, 33)])
def test_a_weight_that_only_looks_the_same_is_packed(tmp_path, place):
    packed(tmp_path, *WEIGHTS)
    other = WEIGHTS[0].clone()
    other[place] += 1
    assert cached_packs._sample(other) == cached_packs._sample(WEIGHTS[0])
    assert packed(tmp_path, other, *WEIGHTS[1:]) == [False, True, True]
    assert packed(tmp_path, other, *WEIGHTS[1:]) == [True] * 3  # the file is of the newest
    assert len(files(tmp_path)) == 1


def test_weights_that_differ_have_files_of_their_own(tmp_path):
    others = [w + 1 for w in WEIGHTS]
    for weights in (WEIGHTS, others):
        packed(tmp_path, *weights)
    assert packed(tmp_path, *WEIGHTS) == packed(tmp_path, *others) == [True] * 3
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("harm", [
    lambda data: b"", lambda data: data[:100], lambda data: data[:-16], lambda data: bytes(len(data)),
    lambda data: bytes(len(data) - 16) + data[-16:], lambda data: data[:4096] + bytes(4) + data[4100:],
    lambda data: data[:-64] + entries.closing(len(data) - 48),
], ids=["empty", "a beginning", "no end", "zeros", "zeros with an end", "a word", "a piece less"])
def test_a_damaged_file_is_never_used(tmp_path, harm):
    packed(tmp_path, *WEIGHTS)
    (path,) = files(tmp_path)
    data = path.read_bytes()
    path.write_bytes(harm(data))
    assert not all(packed(tmp_path, *WEIGHTS))
    assert packed(tmp_path, *WEIGHTS) == [True] * 3
    assert path.read_bytes() == data


def test_a_file_that_is_not_in_memory_is_not_read(tmp_path, monkeypatch):
    packed(tmp_path, *WEIGHTS)
    with monkeypatch.context() as patch:
        patch.setattr(mapped, "_in_memory", lambda found: False)
        assert packed(tmp_path, *WEIGHTS) == [False] * 3
    assert packed(tmp_path, *WEIGHTS) == [True] * 3


def test_whether_a_file_is_in_memory_is_known(tmp_path):
    (tmp_path / "x").write_bytes(os.urandom(1 << 20))
    with open(tmp_path / "x", "r+b") as file:
        os.fsync(file.fileno())
        found = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE)
        assert mapped._in_memory(found)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if mapped._in_memory(found):
            pytest.skip("the files of this folder are always in memory")


def test_pieces_are_all_of_the_parts(monkeypatch):
    monkeypatch.setattr(mapped, "_PIECE", 10)
    parts = [b"abc", b"", b"d" * 25, b"ef", b"g" * 10]
    pieces = [b"".join(piece) for piece in mapped._pieces(list(map(memoryview, parts)))]
    assert b"".join(pieces) == b"".join(parts) and [*map(len, pieces)] == [10] * 4
    assert not [*mapped._pieces([])]


# ---------------------------------------------------------------------------------------------------- room, and trouble


def test_without_a_limit_nothing_is_kept(tmp_path):
    assert packed(tmp_path, *WEIGHTS, limit=0) == packed(tmp_path, *WEIGHTS, limit=0) == [False] * 3
    assert not files(tmp_path)


def test_files_stay_within_the_limit(tmp_path):
    size = packed(tmp_path, *WEIGHTS) and files(tmp_path)[0].stat().st_size
    limit = 2 * size + 100
    for shift in (1, 2, 3):
        packed(tmp_path, *[w + shift for w in WEIGHTS], limit=limit)
    assert len(files(tmp_path)) == 2  # all were used within the hour, and there are logs
    old, kept = files(tmp_path)
    for file in old.parent.glob(f"{old.stem}.*"):
        os.utime(file, (0, time.time() - 4000))
    packed(tmp_path, *[w + 4 for w in WEIGHTS], limit=limit)
    assert len(files(tmp_path)) == 2 and kept in files(tmp_path) and old not in files(tmp_path)
    packed(tmp_path / "small", *WEIGHTS, limit=size - 64)
    assert not files(tmp_path / "small")


def test_files_that_are_being_written_count(tmp_path):
    size = packed(tmp_path, *WEIGHTS) and files(tmp_path)[0].stat().st_size
    unfinished = files(tmp_path)[0].parent / f"{folder.TEMPORARY}x"
    unfinished.write_bytes(bytes(size))
    others = [w + 1 for w in WEIGHTS]
    packed(tmp_path, *others, limit=2 * size + 100)
    assert len(files(tmp_path)) == 1
    os.utime(unfinished, (0, time.time() - 4000))  # of a process that was killed
    packed(tmp_path, *others, limit=2 * size + 100)
    assert len(files(tmp_path)) == 2 and not unfinished.exists()


def test_a_full_disk_is_not_filled_up(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(entries.shutil, "disk_usage", lambda path: usage(1 << 40, 1 << 40, 1 << 15))
    packed(tmp_path, *WEIGHTS)
    assert not files(tmp_path)


@pytest.mark.parametrize("at", ["write", "fdatasync", "replace"])
def test_an_error_of_the_disk_costs_only_the_file(tmp_path, monkeypatch, at):
    def fails(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    if at == "write":
        monkeypatch.setattr(mapped, "_pieces", fails)
    else:
        monkeypatch.setattr(os, at, fails)
    packed(tmp_path, *WEIGHTS)
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".packed" or "build-" in path.name]


def test_a_folder_of_the_process_keeps_none(tmp_path, monkeypatch):
    tmp_path.chmod(0o777)
    with pytest.warns(UserWarning, match="can be written by other users"):
        packed(tmp_path, *WEIGHTS)
    assert not files(tmp_path) and not files(folder.private_folder())


def test_a_file_that_another_process_writes_meanwhile_stays(tmp_path, monkeypatch):
    @contextlib.contextmanager
    def waited(lock):
        os.utime(path)
        yield False

    packed(tmp_path, *WEIGHTS)
    (path,) = files(tmp_path)
    data = path.read_bytes()
    monkeypatch.setattr(cache, "_alone", waited)
    Cache(tmp_path, packed_limit=1 << 30).store_packed(path.stem, [memoryview(bytes(64))])
    assert path.read_bytes() == data


PROGRAM = """
import sys, time
import torch, framesmith
from framesmith.lower.contractions import cached_packs
cached_packs.LEAST = 0
torch.manual_seed(0)
model, x = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)]).eval(), torch.randn(64, 512)
with torch.no_grad():
    compiled = framesmith.compile(model)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
"""


def test_processes_that_write_at_once_leave_one_whole_file(tmp_path):
    env = os.environ | {"FRAMESMITH_CACHE_DIR": str(tmp_path), "FRAMESMITH_PACKED_LIMIT": str(1 << 30),
                        "FRAMESMITH_KEEP_CAPTURES": "1", "PYTHONPATH": python_path(Path(__file__).parents[2])}
    program = PROGRAM + "cached_packs.EXIT_SECONDS = 120\n"  # however slow the machine is
    for _ in range(2):
        running = [subprocess.Popen([sys.executable, "-c", program], env=env) for _ in range(2)]
        assert [process.wait(timeout=300) for process in running] == [0, 0]
        (path,) = files(tmp_path)
        assert entries.is_complete(path.read_bytes()) and not [*tmp_path.rglob("build-*")]


SLOW_PROGRAM = """
import atexit, time
atexit.register(lambda: print(time.monotonic() - begin))  # behind framesmith's own
from framesmith.lower.contractions import cached_packs
from framesmith.runtime import mapped
mapped._PIECE, mapped._SYNCED, cached_packs.EXIT_SECONDS = 1 << 12, 1, 0.2
mapped._to_disk = lambda file: time.sleep(0.05)
""" + PROGRAM + """
while not cached_packs._WRITERS:
    time.sleep(0.01)
print("writing")
begin = time.monotonic()
"""


def test_the_end_of_a_process_does_not_wait_for_a_slow_disk(tmp_path):
    env = os.environ | {"FRAMESMITH_CACHE_DIR": str(tmp_path), "FRAMESMITH_PACKED_LIMIT": str(1 << 30),
                        "PYTHONPATH": python_path(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", SLOW_PROGRAM], env=env, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr
    begun, seconds = done.stdout.split()
    assert begun == "writing" and float(seconds) < 20  # all pieces would take 77 seconds
    assert not files(tmp_path) and not [*tmp_path.rglob("build-*")]


# ---------------------------------------------------------------------------------------------------------- whole calls


def compiled_anew(model, where):
    framesmith.reset()
    return framesmith.compile(model, options={"cache_dir": str(where), "keep_captures": True,
                                              "packed_limit": 1 << 30})


def lookups():
    return [e.hit for e in events.recent() if isinstance(e, events.CacheLookup) and e.what == "packed weights"]


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(pack_linear, "_kernel", lambda *args: "own")  # whatever is fastest here
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 40)).eval()


def test_a_write_after_mapping_is_seen(tmp_path, model):
    x = torch.randn(32, 48)
    with torch.no_grad():
        for _ in range(2):
            compiled = compiled_anew(model, tmp_path)
            torch.testing.assert_close(compiled(x), model(x))
            written()
        assert lookups()[-1]
        for _ in range(2):
            model[0].weight.data.mul_(1.5)
            torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(compiled_anew(model, tmp_path)(x), model(x))
        written()
        assert len(files(tmp_path)) == 2


def test_graphs_of_other_sizes_share_the_file(tmp_path, model):
    """Also where each is compiled, in one process or in several."""
    sizes = [torch.randn(n, 48) for n in (32, 128)]  # whose panels are equally wide
    with torch.no_grad():
        for x in sizes:
            torch.testing.assert_close(compiled_anew(model, tmp_path)(x), model(x))
            written()
    assert lookups()[-1] and len(files(tmp_path)) == 1


def test_a_weight_written_while_the_file_is_compared_is_packed_again(tmp_path, model, monkeypatch):
    x = torch.randn(32, 48)
    with torch.no_grad():
        compiled_anew(model, tmp_path)(x)
        written()
        same, done = is_packed, []

        def compared(*args):
            found = same(*args)
            if not done:
                done.append(model[0].weight.data.mul_(3.0))  # as another thread might
            return found

        monkeypatch.setattr(cached_packs, "is_packed", compared)
        compiled = compiled_anew(model, tmp_path)
        compiled(x)
        assert done
        torch.testing.assert_close(compiled(x), model(x))


def test_nothing_of_ours_is_compiled(tmp_path, model):
    ends, x = [], torch.randn(32, 48)
    with torch.no_grad(), events.on_event(lambda e: ends.append(e) if isinstance(e, events.CompileEnded) else None):
        for _ in range(2):
            compiled_anew(model, tmp_path)(x)
            written()
    assert lookups()[-1] and [e.outcome for e in ends] == ["compiled", "loaded"], ends
