"""Bundles: entries of a cache folder in one file, for another machine of the same kind.

A bundle is a ZIP archive of stored members. `manifest.json` says what machine they were made on, and each member's size
and SHA-256; `signature` is the manifest's HMAC-SHA256, if it was given a key. Entries are files of the folder, and
`<name>.json` are its memories. Machine code is among them, so a bundle is read only if somebody vouches for it, and is
checked as a whole before anything of it is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from framesmith.runtime import entries
from framesmith.runtime.entries import KINDS, Entry, path_of
from framesmith.runtime.folder import TEMPORARY, write_whole
from framesmith.runtime.memory import texts
from framesmith.util.errors import BundleError

FORMAT = "framesmith bundle 1"
MANIFEST, SIGNATURE = "manifest.json", "signature"
_ENTRY = re.compile(r"([0-9a-f]{2})/(\1[0-9a-f]{46}(?:-[0-9a-f]{12})?)(\.[a-z]+)")
_MEMORY = re.compile(r"([a-z]+)\.json")
_IN_MEMORY = 64 << 20
_DAMAGE = (zipfile.BadZipFile, zipfile.LargeZipFile, struct.error, ValueError, KeyError, IndexError, TypeError,
           AttributeError, EOFError, OverflowError, NotImplementedError, RuntimeError, OSError)
"""Exceptions of `zipfile` and `json` for a file that is no bundle."""


@dataclass(frozen=True, slots=True)
class Member:
    """An entry or a memory in a bundle."""

    name: str
    size: int
    sha256: str
    program: str


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of reading a bundle: the number of new entries and their bytes, of entries that the folder had, and
    the `differences` between this machine and the one that made it, because of which entries are not found."""

    added: int
    known: int
    bytes: int
    differences: tuple[str, ...] = ()


# -------------------------------------------------------------------------------------------------------------- writing


def write(path: Path, folder: Path, chosen: Sequence[Entry], machine: Mapping[str, str], key: bytes | None) -> str:
    """Write entries of a folder, and its memories; return the file's SHA-256. Damaged entries are left out."""
    members: dict[str, tuple[bytes, str]] = {}
    for e in sorted(chosen, key=lambda e: e.key):
        data = e.path.read_bytes() if KINDS[e.suffix].travels else b""
        if data and KINDS[e.suffix].whole(data):
            members[f"{e.key[:2]}/{e.key}{e.suffix}"] = data, e.program
    for memory in sorted(folder.glob("*.json")):
        if _MEMORY.fullmatch(memory.name) and (known := texts(memory)):
            members[memory.name] = json.dumps(known, sort_keys=True).encode(), ""
    about = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "program": program}
             for name, (data, program) in members.items()}
    manifest = json.dumps({"format": FORMAT, "machine": dict(machine), "members": about}, indent=1).encode()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=TEMPORARY, delete=False) as file:
        try:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr(zipfile.ZipInfo(MANIFEST), manifest)
                if key is not None:
                    archive.writestr(zipfile.ZipInfo(SIGNATURE), _signature(manifest, key))
                for name, (data, _) in members.items():
                    archive.writestr(zipfile.ZipInfo(name), data)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
    return digest


def _signature(manifest: bytes, key: bytes) -> bytes:
    return hmac.new(key, manifest, hashlib.sha256).hexdigest().encode()


# -------------------------------------------------------------------------------------------------------------- reading


class Bundle:
    """A bundle that somebody vouches for: `digest` is the file's SHA-256, `key` has signed it, or `trust` is said.
    Raises `BundleError`, with each member checked.

    The file is copied while it is digested, so that what is read is what was vouched for.
    """

    def __init__(self, path: str | os.PathLike[str], digest: str | None = None, key: bytes | None = None,
                 trust: bool = False) -> None:
        if digest is None and key is None and not trust:
            raise BundleError(f"{path}: a bundle is code, and nothing vouches for this one: give digest=, its SHA-256 "
                              "from where you trust; key=, with which it was saved; or trust=True")
        self.path = path
        self._file, self.digest = _copied(path)
        if digest is not None and not hmac.compare_digest(self.digest, digest.strip().lower()):
            raise self._error(f"its SHA-256 is {self.digest}, not {digest}")
        try:
            self._archive = zipfile.ZipFile(self._file)
            infos = {info.filename: info for info in self._archive.infolist()}
            if len(infos) != len(self._archive.infolist()):
                raise self._error("two members have one name")
            self._infos = infos
            manifest = self._read(MANIFEST)
            if key is not None and not hmac.compare_digest(self._read(SIGNATURE), _signature(manifest, key)):
                raise self._error("it was not signed with this key")
            self.machine, self.members = _parsed(json.loads(manifest))
            self._check()
        except BundleError:
            raise
        except RecursionError as error:
            raise self._error("its manifest is nested too deeply") from error
        except _DAMAGE as error:
            raise self._error(f"damaged, or no bundle: {type(error).__name__}: {error}") from error

    def _error(self, what: str) -> BundleError:
        return BundleError(f"{self.path}: {what}; nothing was read")

    def _read(self, name: str) -> bytes:
        if name not in self._infos:
            raise self._error(f"it has no {name}")
        info = self._infos[name]
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise self._error(f"{name} is compressed")
        return self._archive.read(info)

    def _check(self) -> None:
        extra = self._infos.keys() - {MANIFEST, SIGNATURE} - {m.name for m in self.members}
        if extra:
            raise self._error(f"{min(extra)!r} is not in its manifest")
        for member, data in self.contents():
            if len(data) != member.size or hashlib.sha256(data).hexdigest() != member.sha256:
                raise self._error(f"{member.name} is damaged")
            found = _ENTRY.fullmatch(member.name)
            good = found is not None and (kind := KINDS.get(found[3])) is not None and kind.travels \
                and kind.whole(data) if found else _MEMORY.fullmatch(member.name) and _memory(data) is not None
            if not good:
                raise self._error(f"{member.name!r} is no entry of a cache")

    def contents(self) -> Iterator[tuple[Member, bytes]]:
        """Yield each member with its data."""
        for member in self.members:
            yield member, self._read(member.name)

    def merge(self, folder: Path) -> Merged:
        """Keep what a folder has not. What it has is left as it is. Raises OSError."""
        added = known = size = 0
        for member, data in self.contents():
            found = _ENTRY.fullmatch(member.name)
            if found is None:
                path = folder / member.name
                write_whole(path, json.dumps((_memory(data) or {}) | texts(path), indent=0, sort_keys=True).encode())
                continue
            _, key, suffix = found.groups()
            path = path_of(folder, key, suffix)
            if path.exists() and KINDS[suffix].whole(path.read_bytes()):
                known += 1
                continue
            write_whole(path, data)
            entries.begin_log(folder, key, member.program)
            added, size = added + 1, size + len(data)
        return Merged(added, known, size)


def _copied(path: str | os.PathLike[str]) -> tuple[IO[bytes], str]:
    """Return a copy of a file, and its digest."""
    copy, digest = tempfile.SpooledTemporaryFile(_IN_MEMORY), hashlib.sha256()  # noqa: SIM115
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                copy.write(block)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from error
    return copy, digest.hexdigest()


def _parsed(manifest: Any) -> tuple[dict[str, str], list[Member]]:
    """Return the machine and the members that a manifest names. Raises what `_DAMAGE` lists for any other JSON."""
    if manifest["format"] != FORMAT:
        raise ValueError(f"the format {manifest['format']!r} is not known")
    machine = {str(name): str(value) for name, value in manifest["machine"].items()}
    members = [Member(name, int(m["size"]), str(m["sha256"]), str(m["program"]))
               for name, m in manifest["members"].items()]
    return machine, members


def _memory(data: bytes) -> dict[str, str] | None:
    found = json.loads(data)
    good = isinstance(found, dict) and all(isinstance(text, str) for text in found.values())
    return found if good else None
