"""Packed weights in the disk cache: what packs the same weights later, in another process or for another graph, maps
the file instead, so that they are in memory once.

A file has the packed weights of one graph of constants, one after another. It is found by a sample of the weights, and
each part of it is used only if `is_packed`: comparing reads as much as packing does, but writes nothing, and needs no
fresh memory, which takes the system longer than packing.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from framesmith.loops.contract import LINE, packed_columns
from framesmith.lower.contractions.geometry import begin_pack, is_packed, pack, packs_in_core
from framesmith.runtime.cache import Cache, key_of
from framesmith.util import events
from framesmith.util.locks import forkable_lock
from framesmith.util.priority import lower_thread

LEAST = 16 << 20
"""Bytes of weights below which packing takes less time than a file is worth."""
BLOCK = 64 << 20
"""Bytes that are allocated at a time: a packed weight alone would begin and end within huge pages."""
LARGE, _SAMPLE = 1 << 16, 32
"""Elements of a weight of which a key has a sample, and elements of the sample."""
EXIT_SECONDS = 1.0
"""Seconds that the end of a process waits for a file that is being written. Then it is given up."""
_ONE_WRITER = forkable_lock()
_WRITERS = weakref.WeakSet[threading.Thread]()
_EXITING = threading.Event()


def is_separate(node: fx.Node) -> bool:
    """Return whether a node of a graph of constants is a packed weight that no other node reads."""
    return node.target is pack and all(user.op == "output" for user in node.users)


def cached_packs(cache: Cache, graph: fx.Graph, weights: Sequence[torch.Tensor]) -> CachedPacks | None:
    """Return what packs the separate packed weights of `graph`, computed of `weights`, with those that the cache has;
    None if that is not worth it."""
    large = [t for t in weights if t.dtype is torch.float32 and t.device.type == "cpu" and t.numel() >= LARGE]
    packs = [node.args[1:] for node in graph.nodes if is_separate(node)]
    if not cache.packed_limit or not packs or sum(4 * t.numel() for t in large) < LEAST:
        return None
    return CachedPacks(cache, key_of("packed", packs, [(*t.shape, *t.stride()) for t in large], *map(_sample, large)))


def _sample(weight: torch.Tensor) -> bytes:
    if not weight.is_contiguous():
        return b""
    flat = weight.detach().view(-1)
    return bytes(flat[::max(flat.numel() // _SAMPLE, 1)].contiguous().view(torch.uint8).tolist())


class CachedPacks:
    """One computation of packed weights; the cache's file of them, if there is one, is `key`'s."""

    def __init__(self, cache: Cache, key: str) -> None:
        self._cache, self._key = cache, key
        self._file = cache.packed(key)
        self._at = 0
        self._parts: list[torch.Tensor] = []
        self._mapped = 0
        self._block = torch.empty(0)

    def call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Return the value of a node."""
        if not is_separate(node):
            return node.target(*args, **kwargs)  # type: ignore[operator]
        value, fill = self.begin(*args, **kwargs)
        fill()
        return value

    def begin(self, weight: torch.Tensor, columns: int, lane: int) -> tuple[torch.Tensor, Callable[[], None]]:
        """Do what `begin_pack` does."""
        if not packs_in_core(weight, lane):
            return begin_pack(weight, columns, lane)
        found = self._next(weight.shape[0] * packed_columns(weight.shape[1], columns, lane))
        if found is not None and is_packed(weight, found, columns):
            self._mapped += 1
            out, fill = found, _nothing
        else:
            out, fill = begin_pack(weight, columns, lane, self._allocate)
        self._parts.append(out)
        return out, fill

    def _next(self, size: int) -> torch.Tensor | None:
        """Return the next part of the file, of so many elements."""
        at, self._at = self._at, self._at + 4 * size + _padding(size)
        if self._file is None or self._at > len(self._file):
            return None
        return torch.frombuffer(self._file, dtype=torch.float32, count=size, offset=at)

    def _allocate(self, size: int) -> torch.Tensor:
        """Return an uninitialised tensor of so many elements, in the present block if it has room for it."""
        aligned = size + _padding(size) // 4
        if aligned > len(self._block):
            self._block = torch.empty(max(aligned, BLOCK // 4))
        out, self._block = self._block[:size], self._block[aligned:]
        return out

    def keep(self) -> None:
        """Store the packed weights, now that they are filled, unless the file has them. Another thread writes."""
        hit = self._mapped == len(self._parts)
        why = "" if hit else "none of such weights is kept, or in memory" if self._file is None else "of other weights"
        events.emit(events.CacheLookup("packed weights", self._key, hit, why))
        if not hit and self._at <= self._cache.packed_limit:
            with contextlib.suppress(RuntimeError):  # the interpreter ends
                writer = threading.Thread(target=self._store, name="framesmith: packed weights", daemon=True)
                _WRITERS.add(writer)
                writer.start()

    def _store(self) -> None:
        lower_thread()  # a model that is called at once should not wait for it
        parts = [view for part in self._parts for view in (_bytes(part), memoryview(bytes(_padding(part.numel()))))]
        with _ONE_WRITER:
            if not _EXITING.is_set():
                self._cache.store_packed(self._key, parts, _EXITING.is_set)


@atexit.register
def _finish_writers() -> None:
    until = time.monotonic() + EXIT_SECONDS
    for writer in list(_WRITERS):
        writer.join(max(until - time.monotonic(), 0))
    _EXITING.set()
    for writer in list(_WRITERS):  # it removes what it has written
        writer.join(EXIT_SECONDS)


def _nothing() -> None:
    pass


def _padding(size: int) -> int:
    """Return the bytes behind a part of so many elements, so that the next one begins with a cache line."""
    return 4 * (-size % LINE)


def _bytes(part: torch.Tensor) -> memoryview:
    return memoryview((ctypes.c_char * (4 * part.numel())).from_address(part.data_ptr()))
