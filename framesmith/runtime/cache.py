"""The disk cache: libraries and plans by the hash of what they were made from.

Layout: `<folder>/<first two digits>/<key>.so`, `<key>.plan` and others (see `entries`). A file appears by one atomic
rename and never changes, so that processes and machines share the folder without locks; a lock file only keeps two from
building the same library at the same time. A cache that cannot be read or written, or that others may write to, costs
time, never an error: entries then live in a folder of this process, removed at its end. See docs/security.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import platformdirs
import torch

from framesmith.runtime import entries
from framesmith.runtime.build import build
from framesmith.runtime.entries import is_library, is_sealed, path_of, sealed, unsealed
from framesmith.runtime.folder import is_private, private_folder, trusted_folders, write_whole
from framesmith.runtime.mapped import map_file, write_mapped
from framesmith.runtime.memory import Memory
from framesmith.runtime.toolchain import Toolchain, absent, cpu_identity, cpu_name, find
from framesmith.util import events, log
from framesmith.util.errors import CompilerMissing, NotSerializable
from framesmith.util.priority import waiting
from framesmith.util.serialize import deserialize, serialize

FORMAT = "framesmith-2"
LOCK_SECONDS = 60.0
POLLS = 0.002, 0.05
"""The least and the most seconds between two looks at a lock that another process holds."""
_COMMENT_LINE = re.compile(r"^ *//.*\n", re.M)


def key_of(*parts: Any) -> str:
    """Return a key from texts, bytes and plain values with a faithful repr."""
    digest = hashlib.sha256(FORMAT.encode())
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode() if isinstance(part, str) else repr(part).encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:48]


def library_key(toolchain: Toolchain, units: Sequence[str]) -> str:
    """Return the key of the library of translation units. Lines of comments have no part in it: they name the
    operators of kernels and their lines in the program, which move whenever that is edited."""
    return key_of(toolchain.fingerprint, *[_COMMENT_LINE.sub("", unit) for unit in units])


@functools.cache
def package_identity() -> str:
    """Return a digest of framesmith's own files: entries of another version are not used, and it is the same wherever
    the same version is installed."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(_sources(str(folder))):
        with open(path, "rb") as file:
            data = file.read()
        digest.update(f"{path.removeprefix(str(folder))} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()[:48]


def _sources(folder: str) -> Iterator[str]:
    for found in os.scandir(folder):
        if found.name.endswith((".py", ".h", ".cpp", ".tl")):
            yield found.path
        elif found.is_dir() and found.name != "__pycache__":
            yield from _sources(found.path)


def machine() -> dict[str, str]:
    """Return the facts about the machine that keys depend on, by name: entries made with other values are not found."""
    try:
        compiler = find().fingerprint[:12]
    except CompilerMissing:
        compiler = "none"
    return {"framesmith": package_identity()[:12], "PyTorch": torch.__version__,
            "Python": platform.python_version(), "C++ compiler and flags": compiler,
            "processor": f"{cpu_name()}, {key_of(cpu_identity())[:8]}", "threads": str(torch.get_num_threads())}


_noted: set[tuple[Path, Toolchain]] = set()
"""Pairs of a folder and a toolchain that is recorded in it."""
_used: set[tuple[Path, str]] = set()
"""Entries whose use by this process is recorded."""
_bounded: set[Path] = set()
"""Folders whose size this process has checked."""


class Cache:
    """See the module's text. `folder` None: `$FRAMESMITH_CACHE_DIR`, else the user's cache folder. `enabled` False:
    this process only. `limit`: bytes that the folder may grow to; 0: no limit. `packed_limit`: bytes of packed
    weights among them; 0: none are kept."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, enabled: bool = True, limit: int = 0,
                 packed_limit: int = 0) -> None:
        wanted = folder or os.environ.get("FRAMESMITH_CACHE_DIR") or platformdirs.user_cache_dir("framesmith")
        self.folders = trusted_folders(Path(wanted)) if enabled else (private_folder(),)
        self.limit = limit
        self.packed_limit = packed_limit

    @property
    def folder(self) -> Path:
        """The folder for writes."""
        return self.folders[0]

    def path(self, key: str, suffix: str) -> Path:
        """Return the path of a file of an entry, which need not exist."""
        return path_of(self.folder, key, suffix)

    def _read(self, key: str, suffix: str, whole: Callable[[bytes], bool]) -> tuple[Path, bytes] | None:
        """Return the file of an entry, if it is there and undamaged."""
        for folder in self.folders:
            path = path_of(folder, key, suffix)
            try:
                data = path.read_bytes()
            except OSError:
                continue
            if whole(data):
                self._note(folder, key)
                return path, data
            log.emit("cache", f"dropped {path}: damaged")
        return None

    def _note(self, folder: Path, key: str, made: bool = False) -> None:
        """Record that this process uses an entry, or has made it."""
        now = events.current()
        if now is not None:
            now.entries.add(key)
        if (folder, key) not in _used:
            _used.add((folder, key))
            if made:
                entries.begin_log(folder, key, f"{now.function} ({os.path.basename(now.file)}:{now.line})" if now
                                  else "")
                self._bound()
            else:
                entries.note_use(folder, key)

    def _bound(self) -> None:
        """Prune the folder to the limit, concurrently with other work."""
        if self.limit and self.folder not in _bounded:
            _bounded.add(self.folder)
            threading.Thread(target=entries.keep_within, args=(self.folder, self.limit), daemon=True,
                             name="framesmith: cache limit").start()

    # -------------------------------------------------------------------------------------------------------- libraries

    def toolchain(self, compiler: str | None = None, extra_flags: str = "") -> Toolchain:
        """Find the toolchain as `toolchain.find` does. Without a compiler, return the one that this folder was last
        filled with, since existing entries need none; raise CompilerMissing if that is unknown."""
        try:
            found = find(compiler, extra_flags)
        except CompilerMissing as error:
            fingerprint = self.memory("toolchains").get(absent(compiler, extra_flags).fingerprint)
            if fingerprint is None:
                raise
            log.emit("cache", f"{error}: what is in {self.folder} is used")
            return replace(absent(compiler, extra_flags), fingerprint=fingerprint)
        if (self.folder, found) not in _noted:
            _noted.add((self.folder, found))
            key, known = absent(compiler, extra_flags).fingerprint, self.memory("toolchains")
            if known.get(key) != found.fingerprint:
                known[key] = found.fingerprint
        return found

    def library(self, units: Sequence[str], toolchain: Toolchain,
                meanwhile: Callable[[str], None] = lambda key: None) -> Path:
        """Return the library of translation units `units`, built when it is not there. Raises `BuildError`.

        `meanwhile(key)` is called while it is built, or before it is returned.
        """
        key = library_key(toolchain, units)
        found = self._read(key, ".so", is_library)
        path = self.path(key, ".so")
        why = "" if found else "damaged" if path.exists() else "no equal code was built before by this compiler"
        events.emit(events.CacheLookup("library", key, found is not None, why))
        if found is not None:
            log.emit("cache", f"hit {found[0]}")
            meanwhile(key)
            return found[0]
        run = functools.partial(meanwhile, key)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with waiting(), _alone(path.with_suffix(entries.LOCK)):
                if not _is_library(path):
                    build(units, toolchain, path, entries.seal_library, run)
                    write_whole(path.with_suffix(entries.SOURCE), "\n".join(units).encode())
            self._note(self.folder, key, made=True)
            return path
        except OSError as error:
            log.emit("cache", f"cannot use {path}: {error}")
            private = private_folder() / path.name
            if not _is_library(private):
                build(units, toolchain, private, entries.seal_library, run)
            return private

    def stored_library(self, key: str) -> Path | None:
        """Return the library of a key, if it is there and whole."""
        found = self._read(key, ".so", is_library)
        return found[0] if found is not None else None

    # ------------------------------------------------------------------------------------------------------------ plans

    def load(self, key: str, suffix: str = ".plan") -> Any:
        """Return what was stored under `key`, or None when there is nothing or it is damaged."""
        found = self._read(key, suffix, is_sealed)
        try:
            return None if found is None else deserialize(unsealed(found[1]))
        except ValueError as error:
            log.emit("cache", f"dropped {key}{suffix}: of another version: {error}")
            return None

    def store(self, key: str, value: Any, suffix: str = ".plan") -> bool:
        """Keep `value` (see `serialize`) under `key`; False when it cannot be written."""
        path = self.path(key, suffix)
        try:
            write_whole(path, sealed(serialize(value)))
        except (OSError, NotSerializable) as error:
            log.emit("cache", f"cannot store {path}: {error}")
            return False
        self._note(self.folder, key, made=True)
        return True

    def alone(self, key: str) -> contextlib.AbstractContextManager[bool]:
        """Return the context in which this process is the only one that makes an entry; see `_alone`."""
        path = self.path(key, entries.LOCK)
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _alone(path)

    def variants(self, key: str, suffix: str) -> Iterator[tuple[str, Any]]:
        """Yield the values that `add_variant` stored under `key` with their own keys, newest first; damaged ones are
        skipped."""
        found: dict[str, float] = {}
        for folder in self.folders:
            with contextlib.suppress(OSError), os.scandir(path_of(folder, key, suffix).parent) as files:
                found = {file.name.removesuffix(suffix): file.stat().st_mtime for file in files
                         if file.name.startswith(f"{key}-") and file.name.endswith(suffix)} | found
        for variant in sorted(found, key=lambda name: -found[name]):
            read = self._read(variant, suffix, is_sealed)
            if read is not None:
                yield variant, json.loads(unsealed(read[1]))

    def add_variant(self, key: str, value: Any, suffix: str) -> str | None:
        """Keep one more value (of JSON) under `key`, in a file of its own, and return its own key, which depends on all
        of the value; None where it cannot be written."""
        text = json.dumps(value, separators=(",", ":"))
        variant = f"{key}-{key_of(text)[:12]}"
        try:
            write_whole(self.path(variant, suffix), sealed(text.encode()))
        except OSError as error:
            log.emit("cache", f"cannot store {variant}{suffix}: {error}")
            return None
        self._note(self.folder, variant, made=True)
        return variant

    # --------------------------------------------------------------------------------------------------- packed weights

    def packed(self, key: str) -> memoryview | None:
        """Return the mapped packed weights of a key, whose content is to be compared; None: it is not there,
        or not in memory, from where alone it is faster than packing."""
        for folder in self.folders:
            found = map_file(path_of(folder, key, entries.PACKED))
            if found is not None:
                self._note(folder, key)
                return found
        return None

    def store_packed(self, key: str, parts: Sequence[memoryview], stopped: Callable[[], bool] = lambda: False) -> None:
        """Keep packed weights in a file, unless another process does, there is no room, the folder is this process's
        alone, or it is `stopped`."""
        if is_private(self.folder):
            return
        path, size = self.path(key, entries.PACKED), sum(map(len, parts))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            before = _changed_at(path)
            with _alone(path.with_suffix(entries.LOCK)):
                if _changed_at(path) == before and entries.make_room(self.folder, size, self.packed_limit):
                    write_mapped(path, parts, stopped)
                    self._note(self.folder, key, made=True)
        except OSError as error:
            log.emit("cache", f"cannot store {path}: {error}")

    def account(self, what: str, key: str, hit: bool, subject: str, parts: Mapping[str, Any]) -> None:
        """Emit whether `key` was found, and the reason of a miss: which of its `parts`, by name, differ from those at
        the last lookup of code of the same `subject`."""
        reason = ""
        if not hit:
            about, now = key_of("account", subject), {name: key_of(part)[:8] for name, part in parts.items()}
            before = self.load(about, ".parts")
            changed = [name for name, part in now.items() if part != before.get(name)] if before is not None else []
            self.store(about, now, ".parts")
            damaged = "its entry is gone or damaged"
            reason = ("the cache has no such graph yet" if before is None
                      else f"changed since: {', '.join(changed)}" if changed else damaged)
        events.emit(events.CacheLookup(what, key, hit, reason))

    # ---------------------------------------------------------------------------------------------------------- choices

    def memory(self, name: str) -> MutableMapping[str, str]:
        """Return a mapping of texts that outlives the process."""
        return Memory([folder / f"{name}.json" for folder in self.folders])


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[bool]:
    """Be the only process that builds an entry, for economy: goes on without the lock where files cannot be locked, or
    where another process holds it for long. The value is whether no other process held it."""
    end, free, (pause, most) = time.monotonic() + LOCK_SECONDS, True, POLLS
    with contextlib.ExitStack() as held:
        try:
            file = held.enter_context(open(lock, "ab"))
            while not _locks(file) and time.monotonic() < end:
                free = False
                time.sleep(pause)
                pause = min(2 * pause, most)
            held.callback(fcntl.flock, file, fcntl.LOCK_UN)  # even if a forked child has a copy
        except OSError as error:
            log.emit("cache", f"without a lock: {error}")
        yield free


def _locks(file: IO[bytes]) -> bool:
    """Lock an open file unless another process does. One system call, since what waits looks often."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _is_library(path: Path) -> bool:
    try:
        return is_library(path.read_bytes())
    except OSError:
        return False
