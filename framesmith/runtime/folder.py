"""Folders that code is loaded from, which only this user may write, and atomic writes of files in them."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from framesmith.util import log

_private: list[Path] = []


def trusted_folders(folder: Path) -> tuple[Path, ...]:
    """Return the folders to look for entries in; new ones go to the first.

    `folder` itself, which is made if it is not there, if nobody but this user can write to it: what is in it is loaded
    as code. A private one in its place otherwise, and before it where it is this user's but cannot be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return (private_folder(),)
    problem = None
    if found.st_uid != os.geteuid():
        problem = "belongs to another user"
    elif stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        problem = "can be written by other users"
    if problem is not None:
        log.warn_once(f"cache:{folder}",
                      f"framesmith: the cache folder {folder} {problem}, so nothing is loaded from it; this process "
                      "has a folder of its own, which ends with it. Remove the folder, or choose another by "
                      "FRAMESMITH_CACHE_DIR")
        return (private_folder(),)
    return (folder,) if os.access(folder, os.W_OK | os.X_OK) else (private_folder(), folder)


def private_folder() -> Path:
    """Return a folder of this process alone, removed at its end."""
    if not _private:
        folder = Path(tempfile.mkdtemp(prefix="framesmith-"))
        _private.append(folder)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _private[0]


def is_private(folder: Path) -> bool:
    """Return whether a folder is the one of this process alone."""
    return folder in _private


def write_whole(path: Path, data: bytes) -> None:
    """Write a file by one atomic rename, so that no reader sees a part of it. Raises OSError."""
    with whole_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces the one at `path` at the end, if nothing is raised. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=TEMPORARY, delete=False) as file:
        try:
            yield file
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise


TEMPORARY = "build-"
"""The prefix of the names of files and folders that are not finished."""
