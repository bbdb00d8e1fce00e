"""Persistent mappings of text to text: measured choices, sizes seen in calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path

from framesmith.runtime.folder import write_whole
from framesmith.util import log


class Memory(MutableMapping[str, str]):
    """Texts by text, kept in the first of some files, all of which are read; what other processes wrote meanwhile is
    merged at each write."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._path = paths[0]
        self._known = {k: v for path in reversed(paths) for k, v in texts(path).items()}

    def _write(self) -> None:
        try:
            write_whole(self._path, json.dumps(self._known, indent=0, sort_keys=True).encode())
        except OSError as error:
            log.emit("cache", f"cannot write {self._path}: {error}")

    def __getitem__(self, key: str) -> str:
        return self._known[key]

    def __setitem__(self, key: str, value: str) -> None:
        self._known = texts(self._path) | self._known | {key: value}
        self._write()

    def __delitem__(self, key: str) -> None:
        del self._known[key]
        self._write()

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def texts(path: Path) -> dict[str, str]:
    """Return the contents of a file of a `Memory`: none if it is missing or damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}
