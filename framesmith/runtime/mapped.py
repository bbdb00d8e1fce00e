"""Large files of the cache, which processes map: their memory is shared, and is there before a process begins.

Such a file has no digest. Whoever maps it compares all of it with what it must have.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from framesmith.runtime.entries import closing, is_complete
from framesmith.runtime.folder import whole_file

_PIECE = 2 << 20
"""Bytes of a huge page. The page cache has huge pages of a file that is written in such pieces."""
_SYNCED = 16
"""Pieces that are written between two waits for the disk."""
_ABSENT = 16
"""One page of so many may be on disk alone."""


def map_file(path: Path) -> memoryview | None:
    """Map the parts in a complete file that is in memory. Writes to them are this process's alone. Of a file that is
    not in memory, let the system begin to read it for later processes."""
    try:
        with open(path, "rb") as file:
            found = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
            if not _in_memory(found):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
                return None
    except (OSError, ValueError):  # not there; empty
        return None
    if not is_complete(found):  # type: ignore[arg-type]
        return None
    found.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(found)[:-len(closing(0))]


def _in_memory(mapped: mmap.mmap) -> bool:
    pages = ctypes.create_string_buffer(-(-len(mapped) // mmap.PAGESIZE))
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(mapped)))
    known = ctypes.CDLL(None).mincore(address, ctypes.c_size_t(len(mapped)), pages) == 0
    return known and pages.raw.count(b"\0") * _ABSENT <= len(pages)


def write_mapped(path: Path, parts: Sequence[memoryview], stopped: Callable[[], bool] = lambda: False) -> None:
    """Write a file to be mapped, on disk before it has its name: what is compared is what the disk has. Raises
    OSError, also if it is `stopped`."""
    end = closing(sum(map(len, parts)) + len(closing(0)))
    with whole_file(path) as file:
        for k, piece in enumerate(_pieces([*parts, memoryview(end)]), 1):
            if stopped():
                raise OSError(errno.EINTR, "the process ends")
            file.write(b"".join(piece))
            if k % _SYNCED == 0:  # so that no wait for the disk is long
                _to_disk(file)
        _to_disk(file)


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fdatasync(file.fileno())


def _pieces(parts: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """Yield the parts, one after another, in pieces of equal size and a last one."""
    piece, room = list[memoryview](), _PIECE
    for part in parts:
        while part:
            taken, part = part[:room], part[room:]
            piece.append(taken)
            room -= len(taken)
            if not room:
                yield piece
                piece, room = [], _PIECE
    if piece:
        yield piece
