"""Bundles of the disk cache, and what may be done with its entries."""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import zipfile
from pathlib import Path

import pytest

import framesmith
from framesmith import cache
from framesmith.cache_command import main
from framesmith.exc import BundleError
from framesmith.runtime import cache as cache_module
from framesmith.runtime import entries
from framesmith.runtime import folder as folder_module
from framesmith.runtime.cache import Cache, key_of
from framesmith.runtime.toolchain import find
from tests.paths import python_path
from tests.runtime.test_build_and_cache import COPY, PLAN


def filled(folder, count=3):
    """A folder with one library, some plans and a memory."""
    made = Cache(folder)
    made.library([COPY], find())
    for k in range(count):
        made.store(key_of("plan", k), PLAN)
    made.memory("choices")["x"] = "own"
    return folder


def contents(folder):
    """What is in a folder, but for logs."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*")
            if p.is_file() and p.suffix not in (".log", ".lock", ".cpp")}


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def bundle(full, tmp_path_factory):
    path = tmp_path_factory.mktemp("bundles") / "all.fsc"
    return path, cache.save(path, key=b"secret", folder=full)


def test_a_bundle_carries_everything_to_another_folder(full, bundle, tmp_path):
    path, digest = bundle
    done = cache.load(path, digest=digest, folder=tmp_path / "other")
    assert (done.added, done.known, done.differences) == (4, 0, ())
    assert contents(tmp_path / "other") == contents(full)
    assert Cache(tmp_path / "other").load(key_of("plan", 0)) == PLAN
    done = cache.load(path, digest=digest, folder=tmp_path / "other")
    assert (done.added, done.known) == (0, 4)
    assert os.listdir(path.parent) == ["all.fsc"]


def test_equal_entries_give_an_equal_digest(full, bundle, tmp_path):
    path, digest = bundle
    cache.load(path, digest=digest, folder=tmp_path / "other")
    assert cache.save(tmp_path / "a.fsc", folder=full) == cache.save(tmp_path / "b.fsc", folder=tmp_path / "other")


def test_somebody_must_vouch_for_a_bundle(bundle, tmp_path):
    path, digest = bundle
    other = tmp_path / "other"
    for refused, said in [({}, "nothing vouches"), ({"digest": "0" * 64}, f"its SHA-256 is {digest}"),
                          ({"key": b"other"}, "not signed with this key"), ({"key": b""}, "not signed with this key"),
                          ({"digest": digest, "key": b"other"}, "not signed"),
                          ({"digest": "0" * 64, "trust": True}, "its SHA-256")]:
        with pytest.raises(BundleError, match=said):
            cache.load(path, folder=other, **refused)
        assert contents(other) == {} if other.exists() else True
    for accepted in ({"digest": digest.upper()}, {"key": b"secret"}, {"trust": True}):
        assert cache.load(path, folder=other, **accepted).added + cache.load(path, folder=other, **accepted).known


def test_an_unsigned_bundle_has_no_signature(full, tmp_path):
    cache.save(tmp_path / "a.fsc", folder=full)
    with pytest.raises(BundleError, match="has no signature"):
        cache.load(tmp_path / "a.fsc", key=b"secret", folder=tmp_path / "other")


def test_there_is_no_pickle_in_a_bundle(bundle):
    with zipfile.ZipFile(bundle[0]) as archive:
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
        for name in archive.namelist():
            data = archive.read(name)
            if name.endswith(".plan"):
                json.loads(entries.unsealed(data))
            else:
                assert name.endswith((".so", ".json")) or name == "signature"


def rewritten(path, out, change):
    """A bundle with members changed, and a manifest that fits them."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if name != "signature"}
    manifest = json.loads(members.pop("manifest.json"))
    change(manifest, members)
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, data in members.items():
            archive.writestr(name, data)
    return out


def add(name, data):
    def change(manifest, members):
        members[name] = data
        manifest["members"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "program": ""}
    return change


KEY = "ab" + "0" * 46


@pytest.mark.parametrize("change", [
    add("../evil.plan", b"x"), add("/tmp/evil.plan", b"x"), add(f"cd/{KEY}.plan", entries.sealed(b"1")),
    add(f"ab/{KEY}.plan", b"not sealed"), add(f"ab/{KEY}.so", b"no library"), add(f"ab/{KEY}.py", b"1"),
    add(f"ab/{KEY}.parts", entries.sealed(b"{}")), add("choices.json", b"[]"), add("choices.json", b'{"a": 1}'),
    add("UP.json", b"{}"), add("a/b.json", b"{}"), lambda m, e: e.update(extra=b""), lambda m, e: e.popitem(),
    lambda m, e: m.update(format="other"), lambda m, e: m.pop("machine"), lambda m, e: m.update(members=[]),
    lambda m, e: next(iter(m["members"].values())).update(size=0), lambda m, e: m.update(machine=3),
    lambda m, e: next(iter(m["members"].values())).update(sha256="0" * 64)], ids=range(19))
def test_a_bundle_that_fits_its_manifest_and_is_none_is_refused(bundle, tmp_path, change):
    path = rewritten(bundle[0], tmp_path / "bad.fsc", change)
    with pytest.raises(BundleError, match="nothing was read"):
        cache.load(path, trust=True, folder=filled(tmp_path / "cache", 0))
    assert contents(tmp_path / "cache") == contents(filled(tmp_path / "same", 0))


def test_compressed_members_are_refused(bundle, tmp_path):
    with zipfile.ZipFile(bundle[0]) as old, zipfile.ZipFile(tmp_path / "z.fsc", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(BundleError, match="is compressed"):
        cache.load(tmp_path / "z.fsc", trust=True, folder=tmp_path / "cache")


def damaged(data, chance):
    """Data with some bytes changed, cut, put in or doubled."""
    out = bytearray(data)
    # where the structure is: the manifest at the beginning, the directory at the end
    places = [chance.randrange(len(out)), chance.randrange(min(len(out), 3000)),
              -1 - chance.randrange(min(len(out), 900))]
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.choice(places) % len(out)
        length = chance.choice((1, 1, 4, 64, 4096))
        what = chance.randrange(5)
        if what == 0:
            out[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            out[at:at + length] = chance.randbytes(len(out[at:at + length]))
        elif what == 2:
            del out[at:at + length]
        elif what == 3:
            out[at:at] = chance.randbytes(length)
        else:
            out[at:at] = out[at:at + length]
        out = out or bytearray(b"x")
    return bytes(out) if chance.random() < 0.9 else bytes(out[: chance.randrange(len(out))])


def test_damaged_bundles_are_errors_and_change_nothing(full, tmp_path):
    """Whoever vouches: none of what is refused is kept, and what is kept is what was saved."""
    path = tmp_path / "all.fsc"
    small = tmp_path / "small"
    for k in range(3):
        Cache(small).store(key_of("plan", k), (k, "x" * 50))
    Cache(small).memory("choices")["x"] = "own"
    digest, good = cache.save(path, key=b"secret", folder=small), contents(small)
    data, target, chance = path.read_bytes(), tmp_path / "cache", random.Random(0)
    refused = 0
    for n in range(3000):
        path.write_bytes(bad := damaged(data, chance))
        if bad == data:
            continue
        with pytest.raises(BundleError, match="its SHA-256"):
            cache.load(path, digest=digest, folder=target)
        how = {"key": b"secret"} if n % 2 else {"trust": True}
        before = contents(target)
        try:
            cache.load(path, folder=target, **how)
        except BundleError:
            refused += 1
            assert contents(target) == before, n
        found = contents(target)
        assert how == {"trust": True} or found.items() <= good.items(), n
        cache.clear(target)
    assert refused > 2500


def test_many_processes_share_a_folder_that_is_pruned_and_damaged(tmp_path):
    program = textwrap.dedent(f"""
        import random, sys
        import torch
        from framesmith import cache
        from framesmith.runtime.cache import Cache, key_of
        from framesmith.runtime.load import load
        from framesmith.runtime.toolchain import find
        from tests.runtime.test_build_and_cache import PLAN, COPY
        chance, folder = random.Random(int(sys.argv[1])), {str(tmp_path / "cache")!r}
        for n in range(120):
            own, key = Cache(folder), key_of("plan", chance.randrange(6))
            what = chance.randrange(8)
            if what < 3:
                assert own.store(key, (key, PLAN))
            elif what < 6:
                assert own.load(key) in (None, (key, PLAN))
            elif what == 6:
                own.memory("choices")[str(chance.randrange(9))] = key
                for e in cache.entries(folder):
                    e.whole
            elif chance.random() < 0.3:
                cache.prune(max_bytes=3000, folder=folder)
            else:
                path = own.path(key, ".plan")
                try:
                    data = path.read_bytes()
                    path.unlink()
                    path.write_bytes(data[:chance.randrange(len(data))])
                except OSError:
                    pass
            if n % 60 == 0:
                library = own.library([COPY], find())
                try:
                    assert load(PLAN, library)((torch.ones(16),))[0].sum() == 16
                except RuntimeError:
                    assert not library.exists()  # pruned
        print("good")
    """)
    running = [subprocess.Popen([sys.executable, "-c", program, str(k)], stdout=subprocess.PIPE, text=True)
               for k in range(4)]
    assert [p.communicate()[0].strip() for p in running] == ["good"] * 4
    cache.verify(tmp_path / "cache")
    assert all(e.whole for e in cache.entries(tmp_path / "cache"))
    assert not list((tmp_path / "cache").rglob(folder_module.TEMPORARY + "*"))


def test_a_folder_that_cannot_be_written_is_read(tmp_path, monkeypatch):
    folder = filled(tmp_path / "cache")
    monkeypatch.setattr(folder_module, "_private", [tmp_path / "private"])
    (tmp_path / "private").mkdir()
    before = contents(folder)
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith(str(folder)))
    own = Cache(folder)
    assert own.folder == tmp_path / "private" and own.load(key_of("plan", 0)) == PLAN
    assert own.library([COPY], find()).is_relative_to(folder) and own.memory("choices")["x"] == "own"
    own.memory("choices")["y"] = "aten"
    assert own.store(key_of("new"), PLAN) and own.load(key_of("new")) == PLAN
    assert contents(folder) == before and dict(Cache(folder).memory("choices")) == {"x": "own", "y": "aten"}


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no other file system")
def test_a_folder_on_another_file_system(tmp_path):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        folder = filled(Path(place) / "cache")
        digest = cache.save(tmp_path / "a.fsc", folder=folder)
        assert cache.load(tmp_path / "a.fsc", digest=digest, folder=tmp_path / "cache").added == 4


def test_pruning_takes_what_was_used_least_recently(tmp_path):
    folder, now = tmp_path / "cache", time.time()
    keys = [key_of("plan", k) for k in range(5)]
    for k, key in enumerate(keys):
        Cache(folder).store(key, "x" * 1000)
        for suffix in (".plan", ".log"):
            os.utime(entries.path_of(folder, key, suffix), (now - 1000 * (k + 1),) * 2)
    os.utime(entries.path_of(folder, keys[4], ".log"))  # used now
    assert [e.key for e in cache.prune(max_age=3500, folder=folder)] == [keys[3]]
    assert [e.key for e in cache.prune(max_bytes=2500, folder=folder)] == [keys[2], keys[1]]
    assert {e.key for e in cache.entries(folder)} == {keys[0], keys[4]}
    old = folder / "build-left"
    old.write_text("of a process that was killed")
    os.utime(old, (0, 0))
    (folder / "build-new").write_text("being written")
    assert cache.prune(folder=folder) == [] and not old.exists() and (folder / "build-new").exists()
    assert len(cache.clear(folder)) == 2 and cache.entries(folder) == []


def test_a_folder_keeps_its_limit_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(entries, "_STALE", 0.0)
    folder = tmp_path / "cache"

    def store(limit, *numbers):
        for k in numbers:
            Cache(folder, limit=limit).store(key_of("plan", k), "x" * 1000)
        for thread in threading.enumerate():
            if thread.name == "framesmith: cache limit":
                thread.join()
        monkeypatch.setattr(cache_module, "_bounded", set())
        return sum(e.size for e in cache.entries(folder))

    assert store(0, *range(10)) > 10_000
    assert store(5000, 10) <= 5000  # when an entry is made
    assert store(5000, *range(11, 20)) > 10_000  # once a day
    os.utime(folder / "pruned", (0, 0))
    assert store(5000, 20) <= 5000


def test_uses_by_other_processes_are_counted(tmp_path):
    filled(tmp_path)
    program = f"from framesmith.runtime.cache import *; Cache({str(tmp_path)!r}).load({key_of('plan', 1)!r})"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], check=True)
    uses = {e.key: e.uses for e in cache.entries(tmp_path)}
    assert uses[key_of("plan", 1)] == 2 and sum(uses.values()) == 2


def test_the_command(full, bundle, tmp_path, capsys):
    path, digest = bundle
    folder = ["--folder", str(tmp_path / "cache")]
    assert main(["load", str(path), *folder]) == 1 and "nothing vouches" in capsys.readouterr().err
    assert main(["load", str(path), "--digest", digest, *folder]) == 0
    assert main(["list", *folder]) == 0
    shown = capsys.readouterr().out
    assert "code: 3 entries" in shown and "library: 1 entries" in shown and "choices.json: 1" in shown
    for e in cache.entries(tmp_path / "cache"):
        assert main(["explain", e.key[:12], *folder]) == 0
        shown = capsys.readouterr().out
        assert e.key in shown and "its key" in shown or e.suffix == ".plan" and "holds" in shown
    assert main(["explain", "zz", *folder]) == 1
    assert main(["save", str(tmp_path / "again.fsc"), *folder]) == 0
    assert cache.save(tmp_path / "same.fsc", folder=full) in capsys.readouterr().out
    assert main(["prune", *folder]) == 2 and main(["prune", "--max-age", "1d", "--max-bytes", "1G", *folder]) == 0
    plan = cache.entries(tmp_path / "cache")[0].path
    plan.write_bytes(plan.read_bytes()[:-1])
    assert main(["verify", *folder]) == 1 and main(["verify", *folder]) == 0
    assert main(["clear", *folder]) == 0 and cache.entries(tmp_path / "cache") == []


USED = """
import os, sys
import torch, framesmith
from framesmith import cache
from framesmith.util import events
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
    def forward(self, x):
        return torch.relu(self.inner(x)).sum()
def other(x):
    return torch.sin(x) * 3
torch.manual_seed(0)
seen = []
framesmith.on_event(lambda e: seen.append(e.hit) if isinstance(e, events.CacheLookup) else None)
"""
MAKE = USED + """
net, compiled = Net(), framesmith.compile(other)
model = framesmith.compile(net)
try:
    cache.save(sys.argv[1], model)
except framesmith.exc.BundleError as error:
    assert "call" in str(error)
compiled(torch.ones(9))
model(torch.ones(2, 8)).backward()
print(cache.save(sys.argv[1], model))
print(len(cache.entries()))
"""
TAKE = USED + """
cache.load(sys.argv[1], digest=sys.argv[2])
net = Net()
framesmith.compile(net)(torch.ones(2, 8)).backward()
assert seen and all(seen), seen
hits = len(seen)
framesmith.compile(other)(torch.ones(9))
assert seen[hits:] == [False, False], seen
print("good")
"""


def test_a_models_bundle_serves_another_installation_elsewhere(tmp_path):
    """Another folder, other file times: forward and backward are found, and nothing of other programs is."""
    package = Path(framesmith.__file__).parent
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(package, elsewhere / "framesmith", copy_function=shutil.copyfile,
                    ignore=shutil.ignore_patterns("__pycache__"))

    def run(program, home, *arguments):
        environment = {**os.environ, "PYTHONPATH": python_path(home),
                       "FRAMESMITH_CACHE_DIR": str(tmp_path / home.name / "c")}
        script = tmp_path / "program.py"
        script.write_text(program)
        done = subprocess.run([sys.executable, str(script), *arguments], env=environment, capture_output=True,
                              text=True, cwd=home)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    digest, count = run(MAKE, package.parent, str(tmp_path / "net.fsc"))
    assert run(TAKE, elsewhere, str(tmp_path / "net.fsc"), digest) == ["good"]
    with zipfile.ZipFile(tmp_path / "net.fsc") as archive:
        names = [n for n in archive.namelist() if "/" in n]
    assert 0 < len(names) < int(count)


def test_another_kind_of_machine_is_named(bundle, tmp_path):
    path = rewritten(bundle[0], tmp_path / "other.fsc", lambda m, e: m["machine"].update(processor="Z80"))
    with pytest.warns(UserWarning, match="another kind of machine.*processor is .*, not Z80"):
        done = cache.load(path, trust=True, folder=tmp_path / "cache")
    assert len(done.differences) == 1 and done.added == 4
