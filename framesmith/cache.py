"""The disk cache as a whole: its entries, and bundles, which carry it to other machines of the same kind.

    digest = framesmith.cache.save("bundle.fsc")                # everything, or what given models stand on
    framesmith.cache.load("bundle.fsc", digest=digest)

`folder`: the cache folder; by default the one that `compile` uses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.runtime import bundle, cache
from framesmith.runtime import entries as files
from framesmith.runtime.bundle import Merged
from framesmith.runtime.entries import Entry
from framesmith.util import log
from framesmith.util.errors import BundleError
from framesmith.wrapping import CompiledModule

Folder = str | os.PathLike[str] | None

__all__ = ["Entry", "Merged", "clear", "entries", "folder_of", "load", "prune", "save", "verify"]


def folder_of(folder: Folder = None) -> Path:
    """Return the cache folder that a program with this option writes to."""
    return cache.Cache(folder or Config.from_env().cache_dir).folder


def save(path: str | os.PathLike[str], *models: Callable[..., Any], key: bytes | None = None,
         folder: Folder = None) -> str:
    """Write a bundle of the whole cache, or of what the compiled `models` stand on, and return its SHA-256, which
    `load` takes.

    `key`: a secret that signs it (HMAC-SHA256). What was measured is in each bundle. Raises `exc.BundleError` for a
    model of which nothing was compiled yet, and OSError.
    """
    wanted = [_keys_of(model) for model in models]
    where = cache.Cache(folder or Config.from_env().cache_dir)
    chosen = {e.key: e for place in reversed(where.folders) for e in files.entries(place)
              if not models or any(e.key in keys for keys in wanted)}
    return bundle.write(Path(path), where.folder, list(chosen.values()), cache.machine(), key)


def load(path: str | os.PathLike[str], *, digest: str | None = None, key: bytes | None = None, trust: bool = False,
         folder: Folder = None) -> Merged:
    """Add a bundle's entries to the cache, and tell what came of it.

    A bundle is code. So one of these must vouch for it: `digest`, its SHA-256; `key`, with which it was saved;
    `trust`: you say that it is from where you would take a program. Raises `exc.BundleError` otherwise, and for one
    that is damaged; nothing is changed then. Warns if it was made on a machine of another kind.
    """
    read = bundle.Bundle(path, digest, key, trust)
    done = read.merge(folder_of(folder))
    here = cache.machine()
    differences = tuple([f"{name} is {here.get(name, 'missing')}, not {value}" for name, value in read.machine.items()
                         if here.get(name) != value])
    if differences:
        log.warn_once(f"bundle:{read.digest}", f"framesmith: {path} was made on another kind of machine, so what is in "
                                               f"it may not be found: here {'; '.join(differences)}")
    return replace(done, differences=differences)


def entries(folder: Folder = None) -> list[Entry]:
    """Return the entries of the cache."""
    return files.entries(folder_of(folder))


def prune(max_bytes: int | None = None, max_age: float | None = None, folder: Folder = None) -> list[Entry]:
    """Remove entries not used for `max_age` seconds, then the least recently used until `max_bytes` are left. Return
    the removed entries."""
    return files.prune(folder_of(folder), max_bytes, max_age)


def verify(folder: Folder = None) -> list[Entry]:
    """Remove damaged entries, which are made again on demand, and return them."""
    damaged = [e for e in entries(folder) if not e.whole]
    files.remove(folder_of(folder), [e.key for e in damaged])
    return damaged


def clear(folder: Folder = None) -> list[Entry]:
    """Remove every entry, and what was measured. Returns the entries."""
    place, found = folder_of(folder), entries(folder)
    files.remove(place, [e.key for e in found])
    for memory in place.glob("*.json"):
        memory.unlink(missing_ok=True)
    return found


def _keys_of(model: Callable[..., Any]) -> frozenset[str]:
    """Return the keys of a compiled model's entries."""
    call = model._framesmith_call if isinstance(model, CompiledModule) else model
    callback = getattr(call, "callback", None)
    keys = callback.entries() if isinstance(callback, FrameCompiler) else frozenset()
    if not keys:
        raise BundleError("nothing was compiled for this model yet: call what framesmith.compile returned once")
    return keys
