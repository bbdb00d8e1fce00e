"""Folders that code is loaded from: this user's alone."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from pathlib import Path

from framesmith.util import log

_private: list[Path] = []


def trusted_folder(folder: Path) -> Path:
    """`folder`, which is made if it is not there, if nobody but this user can write to it; else a private one.

    What is in it is loaded as code. One that cannot be written is left for the private one without a word.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return private_folder()
    problem = None
    if found.st_uid != os.geteuid():
        problem = "belongs to another user"
    elif stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        problem = "can be written by other users"
    if problem is not None:
        log.warn_once(f"cache:{folder}",
                      f"framesmith: the cache folder {folder} {problem}, so nothing is loaded from it; this process "
                      "has "
                      "a folder of its own, which ends with it. Remove the folder, or choose another by "
                      "FRAMESMITH_CACHE_DIR")
        return private_folder()
    return folder if os.access(folder, os.W_OK | os.X_OK) else private_folder()


def private_folder() -> Path:
    """A folder of this process alone, removed at its end."""
    if not _private:
        folder = Path(tempfile.mkdtemp(prefix="framesmith-"))
        _private.append(folder)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _private[0]
