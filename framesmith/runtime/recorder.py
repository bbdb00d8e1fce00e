"""CUDA graphs: the Python side of csrc/graph_record.cpp, which records calls of compiled graphs.

    begin(device, stream, number)  from here on, what this thread queues on the current stream is recorded
    end()                          no longer; the segments of memory that the recordings of this pool may write:
                                   (address, bytes) of each
    play(again)                    do once what was recorded; then the driver's executable graph, or 0, and what plays
                                   it otherwise
    fail(extern, why)              something went wrong in the meantime: all is as before, and the user is told
    tell(why)                      the graph is not recorded any more, and the user is told

Recordings made for one stream and of one number share a pool of memory, and a stream to be recorded on.
"""

from __future__ import annotations

import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from framesmith import _C
from framesmith._C import CompiledGraph
from framesmith.runtime.plan import Plan
from framesmith.util import log
from framesmith.util.collector import collector_paused

Segments = list[tuple[int, int]]
_PRODUCT = re.compile(r"mm|matmul|linear|einsum|attention")
"""Operators that call cuBLAS."""


_library = torch.ops.framesmith
_DRAW = str(_library.draw_state.default)

Key = tuple[int, int, int]
"""The device, the stream on which calls are replayed, and the number that recordings have."""


@dataclass(slots=True)
class Pool:
    """Memory of recordings. `anchor` is a recording that is never replayed: PyTorch's allocator does not reuse a pool
    that nothing holds."""

    handle: Any
    anchor: Any
    recordings: int = 0

    def segments(self) -> Segments:
        return [(s["address"], s["total_size"])
                for s in torch.cuda.memory_snapshot(self.handle) if s["segment_pool_id"] == self.handle]


_pools: dict[Key, Pool] = {}
_streams: dict[Key, torch.cuda.Stream] = {}
"""Streams used only for recording, so that a library's state for a stream (a workspace) belongs to recordings alone."""
_workspaces: dict[tuple[int, Key], int] = {}
"""The bytes of cuBLAS's workspace in a recording's pool, by thread and stream."""
_broken: list[Any] = []
"""Recordings that failed, and their pools: PyTorch's allocators may still know them by their address."""


def _stream(key: Key) -> torch.cuda.Stream:
    if key not in _streams:
        own: Any = torch.cuda.ExternalStream(_C.new_cuda_stream(key[0]), device=key[0])
        _streams[key] = own
    return _streams[key]


def _keep_workspace(key: Key) -> None:
    """Make cuBLAS allocate its workspace now, while the stream of `key` is recorded, so that its size is known."""
    before = torch.cuda.memory_allocated(key[0])
    torch.cuda.current_blas_handle()
    if (taken := torch.cuda.memory_allocated(key[0]) - before) > 0:
        _workspaces[threading.get_ident(), key] = taken


def _pool(key: Key) -> Pool:
    """Return the pool for the stream of `key`."""
    found = _pools.get(key)
    if found is None:
        handle = tuple(torch.cuda.graph_pool_handle())
        found = _pools[key] = Pool(handle, _small(handle))
    return found


def _small(pool: Any = None) -> Any:
    """Return a trivial recording."""
    graph, one = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
    torch.cuda.current_stream().synchronize()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    one.add_(1)
    graph.capture_end()
    return graph


def _gone(key: Key, pool: Pool) -> None:
    """Note the death of a recording of a pool; the pool's memory is freed with the last one."""
    pool.recordings -= 1
    if pool.recordings == 0 and _pools.get(key) is pool:
        del _pools[key]


@dataclass(slots=True)
class Recorder:
    """Records one compiled graph. `places`: by extern, the operator and the user's line. `warn`: tell the user."""

    places: Sequence[tuple[str, str]]
    warn: bool = True
    _key: Key = (-1, 0, 0)
    _graph: Any = None
    _states: torch.Tensor | None = None
    _counts: Sequence[int] = ()
    _open: ExitStack = field(default_factory=ExitStack)
    _begun: bool = False

    def begin(self, device: int, stream: int, number: int) -> None:
        self._key = key = device, stream, number
        self._graph = torch.cuda.CUDAGraph()
        self._open.enter_context(collector_paused())
        torch.cuda.current_blas_handle()  # of this thread: it cannot be made later
        draws = sum(operator == _DRAW for operator, _ in self.places)
        self._states = torch.zeros(2 * draws, dtype=torch.int64, device=f"cuda:{device}") if draws else None
        torch.cuda.current_stream(device).synchronize()
        self._open.enter_context(torch.cuda.stream(_stream(key)))
        if self._states is not None:
            _library.begin_draws(self._states)
            self._open.callback(_library.end_draws)
        with torch.inference_mode(False):
            handle = _pool(key).handle
            self._begun = True
            self._graph.capture_begin(pool=handle, capture_error_mode="thread_local")
            if any(_PRODUCT.search(operator) for operator, _ in self.places):
                _keep_workspace(key)

    def end(self) -> Segments:
        with torch.inference_mode(False):
            self._graph.capture_end()
        self._begun = False
        self._counts = _library.end_draws()
        self._open.close()
        pool = _pools[self._key]
        pool.recordings += 1
        weakref.finalize(self._graph, _gone, self._key, pool).atexit = False
        return pool.segments()

    def play(self, again: Callable[[], None] | None) -> tuple[int, Callable[[], Any]]:
        """Return the executable, only for a recording that draws no random numbers, and the function that replays
        others: the generator advances, first for kernels' draws, then (by PyTorch) for operators'."""
        graph, states, counts = self._graph, self._states, self._counts
        self._graph = self._states = None

        def replay() -> None:
            if states is not None:
                _library.play_draws(states, counts)
            graph.replay()

        generator = torch.cuda.default_generators[self._key[0]]
        before = generator.get_offset()
        replay()
        executable = getattr(graph, "raw_cuda_graph_exec", None)
        return executable() if executable is not None and generator.get_offset() == before else 0, replay

    def fail(self, extern: int, why: str) -> None:
        if self._begun:
            self._abandon()
        self._open.close()
        self._graph = self._states = None
        operator, line = self.places[extern] if 0 <= extern < len(self.places) else ("", "")
        reason = next(iter(why.strip().splitlines()), "")
        self.tell(f"{operator} cannot be recorded: {reason}" if operator else reason, line)

    def tell(self, why: str, line: str = "") -> None:
        if self.warn:
            where = f" ({line})" if line else ""
            log.warn_once(f"recording:{why}:{line}", f"framesmith: a graph runs without CUDA graphs: {why}{where}")

    def _abandon(self) -> None:
        """End a failed recording, and restore the state of the allocator and the generator."""
        self._begun = False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "the graph is empty"
                self._graph.capture_end()
            self._graph.reset()
            return
        except RuntimeError:
            pool = _pools.pop(self._key)
            _broken.append((self._graph, pool))
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self._key[0], pool.handle)
            torch._C._cuda_releasePool(self._key[0], pool.handle)
        with suppress(RuntimeError), torch.inference_mode(False):
            _small()  # the generator waits for the end of a recording


def cuda_graph_memory(device: int | torch.device | None = None, idle: bool = False) -> int:
    """Bytes that recordings hold on a CUDA device (default: the current one): their pools, results, and places for
    inputs.

    `idle`: only what counts as allocated in PyTorch's statistics though no tensor of the program's lives in it.
    """
    index = torch.cuda._utils._get_device_index(device, optional=True)
    pools = [] if idle else [pool for key, pool in _pools.items() if key[0] == index]
    held = sum(size for pool in pools for _, size in pool.segments()) + _C.recorded_bytes(index, idle)
    return held + sum(size for (_, key), size in _workspaces.items() if key[0] == index and idle)


_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)


def record(call: CompiledGraph, plan: Plan, targets: Iterable[Any], places: Sequence[tuple[str, str]], limit: int,
           warn: bool = True) -> None:
    """From its second call on, record calls of a graph on a CUDA device and replay them. `targets`: its operators;
    `places`: by extern, the operator and the user's line."""
    if not plan.externs and not plan.images:
        return
    recorder = Recorder(places, warn)
    for target in targets:
        if _UNSAFE is not None and _UNSAFE in getattr(target, "tags", ()):
            recorder.tell(f"{target} is tagged as one that cannot be recorded", dict(places).get(str(target), ""))
            return
    call.record(recorder, limit)
