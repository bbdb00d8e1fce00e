"""The file of a package: a zip whose members are stored at multiples of 64 bytes, so that they can be mapped."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

ALIGNMENT = 64
MANIFEST = "manifest.json"
_HEADER, _EXTRA, _EPOCH = 30, 4, (1980, 1, 1, 0, 0, 0)
_PADDING = 0x6673
"""The kind of the extra field that pads a member's header."""
_PIECE = 2 << 20
"""Bytes of a huge page. A file that is first written in such pieces is in the page cache in huge pages, and mapped in
these."""
_ENTRY = 1 << 10
"""More than what a member takes besides its contents and its name."""


def write_archive(path: str | os.PathLike[str], manifest: dict[str, Any], members: dict[str, bytes]) -> None:
    """Write the members, and the manifest with their digests. The file appears whole or not at all; equal contents
    give equal files."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    text = json.dumps({**manifest, "digests": digests}, indent=1).encode()
    part = Path(f"{os.fspath(path)}.{os.getpid()}.part")
    try:
        contents = {MANIFEST: text, **members}
        most = sum(len(data) + 2 * len(name) + _ENTRY for name, data in contents.items())
        with open(part, "w+b") as file:
            zeros = bytes(_PIECE)
            for _ in range(0, most, _PIECE):
                file.write(zeros)
            file.seek(0)
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for name, data in contents.items():
                    _add(archive, name, data)
            file.truncate()
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    assert archive.fp is not None
    start = archive.fp.tell() + _HEADER + len(name.encode()) + _EXTRA
    padding = -start % ALIGNMENT
    info.extra = _PADDING.to_bytes(2, "little") + padding.to_bytes(2, "little") + bytes(padding)
    archive.writestr(info, data)


def is_package(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a package, damaged or not: a zip that begins with the manifest."""
    with open(path, "rb") as file:
        head = file.read(_HEADER + len(MANIFEST))
    return head[:4] == b"PK\x03\x04" and head[_HEADER:] == MANIFEST.encode()
