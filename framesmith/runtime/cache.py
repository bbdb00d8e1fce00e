"""The disk cache: libraries and plans by the hash of what they were made from.

Layout: `<folder>/<first two digits>/<key>.so` and `<key>.plan`. A file appears by one atomic rename and never changes,
so that processes share the folder without locks; a lock file only keeps two of them from building the same library at
the same time. A cache that cannot be read or written, or that others may write to, costs time, never an error: entries
then live in a folder of this process, removed at its end. See docs/security.md.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from framesmith.runtime.build import build
from framesmith.runtime.folder import private_folder, trusted_folder
from framesmith.runtime.toolchain import Toolchain, absent, find
from framesmith.util import events, log
from framesmith.util.errors import CacheError, CompilerMissing
from framesmith.util.priority import waiting

FORMAT = "framesmith-1"
_MAGIC = b"FSPLAN1\n"
LOCK_SECONDS = 60.0


def key_of(*parts: Any) -> str:
    """A key from texts, bytes and plain values with a faithful repr."""
    digest = hashlib.sha256(FORMAT.encode())
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode() if isinstance(part, str) else repr(part).encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:48]


@functools.cache
def package_identity() -> str:
    """Changes with every file of framesmith's own, so that what an earlier version generated is not taken."""
    top = str(Path(__file__).parents[1])
    found = []
    for folder, _, names in os.walk(top):
        for name in names:
            if name.endswith((".py", ".h", ".tl", ".so")):
                stat = os.stat(path := f"{folder}/{name}")
                found.append((path[len(top):], stat.st_size, stat.st_mtime_ns))
    return key_of(*sorted(found))


_noted: set[tuple[Path, Toolchain]] = set()


class Cache:
    """See the module's text. `folder` None: `$FRAMESMITH_CACHE_DIR`, else the user's cache folder. `enabled` False:
    this process only."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, enabled: bool = True) -> None:
        wanted = folder or os.environ.get("FRAMESMITH_CACHE_DIR") or platformdirs.user_cache_dir("framesmith")
        self.folder = trusted_folder(Path(wanted)) if enabled else private_folder()

    def path(self, key: str, suffix: str) -> Path:
        """Return the path of an entry, which need not exist."""
        return self.folder / key[:2] / (key + suffix)

    # -------------------------------------------------------------------------------------------------------- libraries

    def toolchain(self, compiler: str | None = None, extra_flags: str = "") -> Toolchain:
        """Find the toolchain as `toolchain.find` does. Where there is no compiler, return the one that this folder was
        filled with last, since what is in it needs none; raise CompilerMissing where that is not known."""
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

    def library(self, units: Sequence[str], toolchain: Toolchain) -> Path:
        """The library of translation units `units`, built when it is not there. Raises `BuildError`."""
        key = key_of(toolchain.fingerprint, *units)
        path = self.path(key, ".so")
        hit = _is_sealed(path)
        why = "" if hit else "damaged" if path.exists() else "no equal code was built before by this compiler"
        events.emit(events.CacheLookup("library", key, hit, why))
        if hit:
            log.emit("cache", f"hit {path}")
            return path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with waiting(), filelock.FileLock(str(path) + ".lock", timeout=LOCK_SECONDS):
                if not _is_sealed(path):
                    build(units, toolchain, path, _seal)
                    _keep_source(path, units)
            return path
        except (OSError, filelock.Timeout) as error:
            log.emit("cache", f"cannot use {path}: {error}")
            private = private_folder() / path.name
            if not _is_sealed(private):
                build(units, toolchain, private, _seal)
            return private

    def stored_library(self, key: str) -> Path | None:
        """The library of a key, if it is there and whole."""
        path = self.path(key, ".so")
        return path if _is_sealed(path) else None

    # ------------------------------------------------------------------------------------------------------------ plans

    def load(self, key: str, suffix: str = ".plan") -> Any:
        """Return what was stored under `key`, or None when there is nothing or it is damaged."""
        path = self.path(key, suffix)
        try:
            return _unpack(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, CacheError) as error:
            log.emit("cache", f"dropped {path}: {error}")
            return None

    def store(self, key: str, value: Any, suffix: str = ".plan") -> bool:
        """Keep `value` (picklable) under `key`; False when it cannot be pickled or written."""
        path = self.path(key, suffix)
        try:
            data = _pack(value)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            log.emit("cache", f"cannot store {path}: {error}")
            return False
        return self._write(path, data)

    def _write(self, path: Path, data: bytes) -> bool:
        """Let a file appear at once, with these bytes."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(data)
            os.replace(file.name, path)
            return True
        except OSError as error:
            log.emit("cache", f"cannot store {path}: {error}")
            return False

    def variants(self, key: str, suffix: str) -> Iterator[Any]:
        """What `add_variant` stored under `key`, the newest first; what is damaged is passed over."""
        try:
            paths = sorted(self.path(key, suffix).parent.glob(f"{key}-*{suffix}"), key=lambda p: -p.stat().st_mtime)
        except OSError:
            return
        for path in paths:
            try:
                digest, _, text = path.read_text().partition("\n")
                if key_of(text) != digest:
                    raise CacheError("damaged entry")
                yield json.loads(text)
            except (OSError, ValueError, CacheError) as error:
                log.emit("cache", f"dropped {path}: {error}")

    def add_variant(self, key: str, value: Any, suffix: str) -> bool:
        """Keep one more value (of JSON) under `key`, in a file of its own; False where it cannot be written."""
        text = json.dumps(value, separators=(",", ":"))
        digest = key_of(text)
        return self._write(self.path(f"{key}-{digest[:12]}", suffix), f"{digest}\n{text}".encode())

    def account(self, what: str, key: str, hit: bool, subject: str, parts: Mapping[str, Any]) -> None:
        """Tell whether `key` was found, and if not why: what of its `parts`, by name, is other than when the cache was
        last asked for code of the same `subject`."""
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
        """A mapping of texts that outlives the process."""
        return Memory(self.folder / f"{name}.json")


def _keep_source(library: Path, units: Sequence[str]) -> None:
    """For readers: the text of a library, beside it."""
    library.with_suffix(".cpp").write_text("\n".join(units))


class Memory(MutableMapping[str, str]):
    """Texts by text, kept in one file; what other processes wrote meanwhile is merged at each write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = self._read()

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}

    def _write(self) -> None:
        text = json.dumps(self._known, indent=0, sort_keys=True)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as file:
                file.write(text)
            os.replace(file.name, self._path)
        except OSError as error:
            log.emit("cache", f"cannot write {self._path}: {error}")

    def __getitem__(self, key: str) -> str:
        return self._known[key]

    def __setitem__(self, key: str, value: str) -> None:
        self._known = self._read() | self._known | {key: value}
        self._write()

    def __delitem__(self, key: str) -> None:
        del self._known[key]
        self._write()

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def _pack(value: Any) -> bytes:
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return _MAGIC + hashlib.sha256(body).digest() + body


def _unpack(data: bytes) -> Any:
    head = len(_MAGIC)
    digest, body = data[head : head + 32], data[head + 32 :]
    if data[:head] != _MAGIC or hashlib.sha256(body).digest() != digest:
        raise CacheError("damaged entry")
    try:
        return pickle.loads(body)
    except (pickle.UnpicklingError, AttributeError, ImportError, EOFError, IndexError, TypeError, ValueError) as error:
        raise CacheError(f"entry of another version: {error}") from error


_SEAL = b"FSLIB1\n\0"


def _seal(path: Path) -> None:
    """Append the digest of a library to it (the loader ignores what follows the sections)."""
    with open(path, "r+b") as file:
        digest = hashlib.sha256(file.read()).digest()
        file.write(digest + _SEAL)


def _is_sealed(path: Path) -> bool:
    """Return whether a library is there and whole."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return data.endswith(_SEAL) and hashlib.sha256(data[: -len(_SEAL)
                                                        - 32]).digest() == data[-len(_SEAL) - 32 : -len(_SEAL)]


