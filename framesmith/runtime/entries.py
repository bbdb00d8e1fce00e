"""The entries of a cache folder: their kinds, and operations on their files.

An entry is the files `<first two digits>/<key>.*`. One of them has a suffix of `KINDS`; the others are its source for
readers, its lock, and its log: what program it was made for, and a dot for each process that used it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from framesmith.runtime.folder import TEMPORARY

PLAIN, LIBRARY, MAPPED = b"FSPLAN2\n", b"FSLIB1\n\0", b"FSMAP1\n\0"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of entry. `whole`: the check that data are complete. `travels`: bundles include it."""

    name: str
    whole: Callable[[bytes], bool]
    travels: bool = True


def sealed(body: bytes) -> bytes:
    """Return plain data with their digest."""
    return PLAIN + hashlib.sha256(body).digest() + body


def is_sealed(data: bytes) -> bool:
    """Return whether data are intact, as `sealed` returned them."""
    head = len(PLAIN)
    return data[:head] == PLAIN and hashlib.sha256(data[head + 32:]).digest() == data[head:head + 32]


def unsealed(data: bytes) -> bytes:
    """Return the body of sealed data."""
    return data[len(PLAIN) + 32:]


def seal_library(path: Path) -> None:
    """Append the digest of a library to it (the loader ignores what follows the sections)."""
    with open(path, "r+b") as file:
        digest = hashlib.sha256(file.read()).digest()
        file.write(digest + LIBRARY)


def is_library(data: bytes) -> bool:
    """Return whether data are a library that was sealed."""
    end = len(data) - len(LIBRARY) - 32
    return end > 0 and data.endswith(LIBRARY) and hashlib.sha256(data[:end]).digest() == data[end:end + 32]


def is_complete(data: bytes) -> bool:
    """Return whether data to be mapped end as `closing` says; whoever maps them compares all of them."""
    return data[-len(closing(0)):] == closing(len(data))


def closing(size: int) -> bytes:
    """Return the last bytes of a file of so many bytes that is to be mapped."""
    return MAPPED + size.to_bytes(8, "little")


KINDS = {
    ".plan": Kind("code", is_sealed),
    ".so": Kind("library", is_library),
    ".capture": Kind("capture", is_sealed),
    ".parts": Kind("account", is_sealed, travels=False),
    ".packed": Kind("packed weights", is_complete, travels=False),
}
"""Suffix -> kind."""
PACKED, SOURCE, LOCK, LOG = ".packed", ".cpp", ".lock", ".log"
_KEY = re.compile(r"[0-9a-f]{48}(-[0-9a-f]{12})?")
_DAY, _STALE = 86400.0, 3600.0
"""Seconds; after the second one, an unfinished file counts as abandoned."""


def path_of(folder: Path, key: str, suffix: str) -> Path:
    """Return the path of a file of an entry."""
    return folder / key[:2] / (key + suffix)


@dataclass(frozen=True, slots=True)
class Entry:
    """`size`: bytes of all its files. `made`, `used`: seconds since the epoch."""

    key: str
    suffix: str
    kind: str
    path: Path
    size: int
    made: float
    used: float

    @property
    def program(self) -> str:
        """The function and line that it was made for first; "" if that is not known."""
        return self._log[0]

    @property
    def uses(self) -> int:
        """The number of processes that used it, other than the one that made it."""
        return len(self._log[2])

    @property
    def _log(self) -> tuple[str, str, str]:
        try:
            return self.path.with_suffix(LOG).read_text(errors="replace").partition("\n")
        except OSError:
            return "", "", ""

    @property
    def whole(self) -> bool:
        """Return whether it is undamaged."""
        try:
            return KINDS[self.suffix].whole(self.path.read_bytes())
        except OSError:
            return False


def entries(folder: Path) -> list[Entry]:
    """Return the entries of a folder that can be read."""
    found = [_entry(key, files) for key, files in _files(folder).items()]
    return sorted((e for e in found if e is not None), key=lambda e: (e.kind, -e.used))


def _files(folder: Path) -> dict[str, dict[str, os.DirEntry[str]]]:
    """Return the files of each key, by suffix."""
    out: dict[str, dict[str, os.DirEntry[str]]] = defaultdict(dict)
    for file in _scan(folder):
        if file.is_dir(follow_symlinks=False) and len(file.name) == 2:
            for inner in _scan(Path(file.path)):
                key, dot, suffix = inner.name.partition(".")
                if _KEY.fullmatch(key):
                    out[key][dot + suffix] = inner
    return out


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        return list(found)
    return []


def _entry(key: str, files: dict[str, os.DirEntry[str]]) -> Entry | None:
    suffix = next((s for s in KINDS if s in files), None)
    if suffix is None:
        return None
    try:
        stats = {s: file.stat() for s, file in files.items()}
    except OSError:  # another process has removed it
        return None
    made, size = stats[suffix].st_mtime, sum(s.st_size for s in stats.values())
    used = max(made, stats[LOG].st_mtime) if LOG in stats else made
    return Entry(key, suffix, KINDS[suffix].name, Path(files[suffix].path), size, made, used)


# ----------------------------------------------------------------------------------------------------------------- logs


def begin_log(folder: Path, key: str, program: str) -> None:
    """Note for which program an entry was made."""
    with contextlib.suppress(OSError), open(path_of(folder, key, LOG), "x") as file:
        file.write(program.replace("\n", " ") + "\n")


def note_use(folder: Path, key: str) -> None:
    """Note that a process uses an entry which another has made."""
    with contextlib.suppress(OSError):
        file = os.open(path_of(folder, key, LOG), os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, b".")
        finally:
            os.close(file)


# ------------------------------------------------------------------------------------------------------------- removing


def remove(folder: Path, keys: Iterable[str]) -> None:
    """Remove entries with all their files. One that is removed while a process loads it is made again there."""
    wanted = frozenset(keys)
    for place in {key[:2] for key in wanted}:
        for file in _scan(folder / place):
            if file.name.partition(".")[0] in wanted:
                _unlink(file.path)


def keep_within(folder: Path, limit: int) -> None:
    """Prune a folder to `limit` bytes, if that was not done within a day."""
    stamp = folder / "pruned"
    with contextlib.suppress(OSError):
        if not stamp.exists() or time.time() - stamp.stat().st_mtime > _DAY:
            prune(folder, limit, spare=_STALE)
            stamp.touch()


def prune(folder: Path, max_bytes: int | None = None, max_age: float | None = None,
          spare: float = 0.0) -> list[Entry]:
    """Remove entries not used for `max_age` seconds, then those used least recently until `max_bytes` are left, but
    none used within `spare` seconds; also abandoned files of killed processes. Return the removed entries."""
    now = time.time()
    left = sorted(entries(folder), key=lambda e: e.used)
    total, out = sum(e.size for e in left), []
    for e in left:
        old = max_age is not None and now - e.used > max_age
        if (old or max_bytes is not None and total > max_bytes) and now - e.used >= spare:
            out.append(e)
            total -= e.size
    remove(folder, [e.key for e in out])
    for path in _abandoned(folder, now):
        _unlink(path)
    return out


def _abandoned(folder: Path, now: float) -> Iterator[str]:
    """Return abandoned unfinished files, and files without an entry."""
    for file in _unfinished(folder):
        with contextlib.suppress(OSError):
            if now - file.stat().st_mtime > _STALE:
                yield file.path
    for files in _files(folder).values():
        if not KINDS.keys() & files.keys():
            for file in files.values():
                with contextlib.suppress(OSError):
                    if now - file.stat().st_mtime > _STALE:
                        yield file.path


def _unfinished(folder: Path) -> Iterator[os.DirEntry[str]]:
    for place in [folder, *(Path(d.path) for d in _scan(folder) if len(d.name) == 2)]:
        yield from (file for file in _scan(place) if file.name.startswith(TEMPORARY))


def make_room(folder: Path, size: int, limit: int) -> bool:
    """Return whether there is room for `size` bytes of packed weights, with which the folder has no more than `limit`
    of them, written and being written, and with which no more than a quarter of the free disk is used. Those used
    least recently are removed for it, but none used within an hour, and abandoned files."""
    now = time.time()
    for path in _abandoned(folder, now):
        _unlink(path)
    kept = sorted((e for e in entries(folder) if e.suffix == PACKED), key=lambda e: e.used)
    total = size + sum(e.size for e in kept)
    with contextlib.suppress(OSError):
        total += sum(file.stat().st_size for file in _unfinished(folder))
    for e in kept:
        if total > limit and now - e.used >= _STALE:
            remove(folder, [e.key])
            total -= e.size
    return total <= limit and 4 * size <= shutil.disk_usage(folder).free


def _unlink(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
