"""The stream of events: what was compiled, why, and what it cost.

Events arise where frames are captured and graphs compiled, never in a call that finds its code: so the stream costs
calls nothing. The last of them are kept (`recent`), for reports; each is told to whoever asked (`on_event`), and to
Python's `logging`, under `framesmith.<name of the event>` at the level INFO.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from framesmith.util import log
from framesmith.util.locks import forkable_lock
from framesmith.util.stack import Place


@dataclass(slots=True)
class Compile:
    """One compile of a frame or of a backward, while it runs. `entries`: keys of what it found or left in the cache.
    `running`: the names of the stages that its thread is in, the outermost first. `graph`: the text of what was
    captured, where processes compare it."""

    number: int
    function: str
    file: str
    line: int
    part: str = ""
    outcome: str = "in eager"
    spans: list[Span] = field(default_factory=list)
    entries: set[str] = field(default_factory=set)
    running: list[str] = field(default_factory=list)
    graph: str = ""
    start: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True, slots=True)
class Span:
    """The time of one stage: seconds from the start of its compile. `depth`: how many stages are around it."""

    stage: str
    start: float
    seconds: float
    depth: int


class _Open(threading.local):
    def __init__(self) -> None:
        self.stack: list[Compile] = []


_open = _Open()
_numbers, _graphs = itertools.count(1), itertools.count(1)


def current() -> Compile | None:
    """Return the compile that this thread is in."""
    return _open.stack[-1] if _open.stack else None


def _current_number() -> int:
    return _open.stack[-1].number if _open.stack else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`at`: seconds since the epoch. `compile`: the number of the compile that it belongs to; 0: of none."""

    at: float = field(default_factory=time.time)
    compile: int = field(default_factory=_current_number)

    @property
    def weight(self) -> int:
        """Its share of the memory for recent events."""
        return 1


@dataclass(frozen=True, slots=True)
class CompileBegan(Event):
    """`why`: "first call", "another variant", "after a break" or "backward"."""

    function: str
    file: str
    line: int
    why: str

    def __str__(self) -> str:
        return f"compile {self.compile} begins: {self.function} ({self.file}:{self.line}), {self.why}"


@dataclass(frozen=True, slots=True)
class CompileEnded(Event):
    """`outcome`: "compiled", "loaded" (from the capture cache), "in eager" or "raised"."""

    function: str
    file: str
    line: int
    outcome: str
    seconds: float
    spans: tuple[Span, ...]

    def __str__(self) -> str:
        return f"compile {self.compile} ends: {self.function} ({self.file}:{self.line}): {self.outcome}, " \
               f"{self.seconds:.3f} s"

    @property
    def weight(self) -> int:
        return 1 + len(self.spans)


@dataclass(frozen=True, slots=True)
class BackgroundCompile(Event):
    """The end of a compile while eager served. `outcome`: "compiled" (calls take it from now on), "in eager", or
    "raised". `seconds`: since a call asked for it."""

    function: str
    file: str
    line: int
    outcome: str
    seconds: float

    def __str__(self) -> str:
        what = "calls take compiled code from now on" if self.outcome == "compiled" else self.outcome
        return f"in the background: {self.function} ({self.file}:{self.line}): {what}, after {self.seconds:.3f} s"


@dataclass(frozen=True, slots=True)
class Captured(Event):
    """A frame was captured. `graph`: whether there was anything to compute."""

    guards: int
    instructions: int
    graph: bool

    def __str__(self) -> str:
        return f"captured {self.instructions} instructions under {self.guards} guards"


@dataclass(frozen=True, slots=True)
class GraphBreak(Event):
    """The place where a graph ended before its frame did. `remedy`: what to write instead."""

    file: str
    line: int
    function: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"graph break at {self.file}:{self.line} in {self.function}: {self.reason} -> {self.remedy}"


@dataclass(frozen=True, slots=True)
class UnrolledLoop(Event):
    """A loop whose number of rounds varies, of which each number is a variant: its body cannot be recorded once.
    `cause`: the user's line that prevents it. `remedy`: what to write instead."""

    file: str
    line: int
    function: str
    reason: str
    cause: Place | None
    remedy: str

    def __str__(self) -> str:
        at = f" ({self.cause[0]}:{self.cause[1]})" if self.cause else ""
        return (f"unrolled: the loop at {self.file}:{self.line} in {self.function}, for each number of rounds: "
                f"{self.reason}{at} -> {self.remedy}")


@dataclass(frozen=True, slots=True)
class Recompile(Event):
    """A call that no variant took. Of the variant that fits it best: `guard`: what was looked at; `kind`: of guard;
    `old`: what the variant was made for; `new`: what came; `assumed`: the user's line that made the assumption, if one
    did."""

    function: str
    file: str
    line: int
    guard: str
    kind: str
    text: str
    old: str
    new: str
    assumed: Place | None
    remedy: str

    def __str__(self) -> str:
        return f"recompile of {self.function} ({self.file}:{self.line}): {self.text} -> {self.remedy}"


@dataclass(frozen=True, slots=True)
class Fallback(Event):
    """A frame, a backward or further calls of a frame that run in eager. `internal`: for a fault of framesmith's."""

    function: str
    file: str
    line: int
    reason: str
    remedy: str
    internal: bool = False

    def __str__(self) -> str:
        return f"in eager: {self.function} ({self.file}:{self.line}): {self.reason} -> {self.remedy}"


@dataclass(frozen=True, slots=True)
class CacheLookup(Event):
    """`what`: "code" (of a graph), "library" (what a C++ compiler made of code), "capture" (of a frame, with its
    guards and graph) or "packed weights". `reason`: of a miss."""

    what: str
    key: str
    hit: bool
    reason: str = ""

    def __str__(self) -> str:
        return f"cache {'hit' if self.hit else 'miss'}: {self.what} {self.key[:12]}" + (f": {self.reason}"
                                                                                       if self.reason else "")


@dataclass(frozen=True, slots=True)
class NotCached(Event):
    """A capture that no other process can take over; `reason`: what of it means nothing there."""

    function: str
    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"capture not kept: {self.function} ({self.file}:{self.line}): {self.reason}"


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a captured graph. `bytes`: of its results at the sizes that were compiled for, 0 for a view;
    `last`: the number of the last operator that reads them (or a view of them); those that are returned have a number
    past the last operator's."""

    name: str
    place: Place | None
    bytes: int
    last: int


@dataclass(frozen=True, slots=True)
class GraphCompiled(Event):
    """A graph that has code. `part`: "" (inference), "forward" or "backward". `operators`: as captured. `work`: for
    each kernel, the user's lines that it computes, and their operators. `externs`: calls of eager's operators, and
    the user's line of each. `key`: of its code in the cache at `folder`; `library`: the file of its machine code.
    `values`: of its size symbols, in order. `constants`: bytes of values that are kept between calls (packed and
    folded weights); `given`: bytes of its inputs."""

    number: int
    part: str
    name: str
    device: str
    operators: tuple[Operator, ...]
    work: tuple[tuple[tuple[str, str], ...], ...]
    externs: tuple[tuple[str, str], ...]
    key: str
    folder: str
    library: str
    values: tuple[int, ...]
    constants: int
    given: int

    def __str__(self) -> str:
        return f"graph {self.number} ({self.name}): {len(self.operators)} operators, {len(self.work)} kernels, " \
               f"{len(self.externs)} calls"

    @property
    def weight(self) -> int:
        return 1 + len(self.operators) + sum(map(len, self.work))


Callback = Callable[[Event], object]
ROOM = 60_000
"""The weight of the events that are kept: about 10 MB of graphs with many operators."""


class _Journal:
    """The last events; the oldest go first when there is no room."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.weight = 0
        self.dropped = 0
        self.lock: Any = forkable_lock()

    def add(self, event: Event) -> None:
        with self.lock:
            self.events.append(event)
            self.weight += event.weight
            while self.weight > ROOM and len(self.events) > 1:
                self.weight -= self.events.popleft().weight
                self.dropped += 1

    def clear(self) -> None:
        with self.lock:
            self.events.clear()
            self.weight = self.dropped = 0


_journal = _Journal()
_counts: Counter[tuple[str, str]] = Counter()
_COUNTS: dict[type, Callable[[Any], Iterable[tuple[str, str, float]]]] = {
    CompileEnded: lambda e: [("compiles", e.outcome, 1),
                             *[("compile_seconds", s.stage, s.seconds) for s in e.spans]],
    GraphCompiled: lambda e: [("graphs", e.part or "inference", 1), ("kernels", "", len(e.work)),
                              ("constant_bytes", "", e.constants)],
    GraphBreak: lambda e: [("graph_breaks", e.reason, 1)],
    UnrolledLoop: lambda e: [("unrolled_loops", e.reason, 1)],
    Recompile: lambda e: [("recompiles", e.kind, 1)],
    Fallback: lambda e: [("fallbacks", "yes" if e.internal else "no", 1)],
    BackgroundCompile: lambda e: [("background_compiles", e.outcome, 1)],
    CacheLookup: lambda e: [("cache_lookups", "hit" if e.hit else "miss", 1)],
}
"""The increments of counters for each event: name, label, amount."""
_callbacks: list[Callback] = []
_keepers: set[str] = set()


def _snake(name: str) -> str:
    return "".join(["_" * bool(k and c.isupper()) + c.lower() for k, c in enumerate(name)])


_loggers: dict[type, logging.Logger] = {
    kind: logging.getLogger(f"framesmith.{_snake(kind.__name__)}")
    for kind in (CompileBegan, CompileEnded, BackgroundCompile, Captured, GraphBreak, UnrolledLoop, Recompile, Fallback,
                 CacheLookup, NotCached, GraphCompiled)}


def _nothing(event: Event) -> tuple[tuple[str, str, float], ...]:
    return ()


def counted(name: str) -> dict[str, float]:
    """Return a counter since the process began, by its parts."""
    return {part: count for (counter, part), count in _counts.copy().items() if counter == name}


def emit(event: Event) -> None:
    """Keep an event, and tell it to those who asked. What a callback raises is the user's to read, in one warning."""
    _journal.add(event)
    with _journal.lock:
        for name, part, amount in _COUNTS.get(type(event), _nothing)(event):
            _counts[name, part] += amount  # type: ignore[assignment]
    logger = _loggers[type(event)]
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", event)
    for callback in tuple(_callbacks):
        try:
            callback(event)
        except Exception as error:
            log.warn_once(f"callback:{callback!r}",
                          f"framesmith: a callback of on_event raised {type(error).__name__}: {error}")


class Subscription:
    """A callback that is told events until `remove()`, or the end of a `with` block."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        _callbacks.append(callback)

    def remove(self) -> None:
        """Tell it no more."""
        if self.callback in _callbacks:
            _callbacks.remove(self.callback)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def on_event(callback: Callback) -> Subscription:
    """Call `callback(event)` for each event from now on, in the thread and at the time that it arises: in the midst of
    a compile, so it should be short. Calls that find their code have no event."""
    if not callable(callback):
        raise TypeError(f"on_event takes a callable, not {type(callback).__name__}")
    return Subscription(callback)


def recent() -> list[Event]:
    """Return the events that are kept, in order."""
    with _journal.lock:
        return list(_journal.events)


def dropped() -> int:
    """Return the number of events that were dropped because the journal was full."""
    return _journal.dropped


def keep(owner: str) -> None:
    """Have `forget` keep what a report at the end of the process is to show."""
    _keepers.add(owner)


def forget() -> None:
    """Drop the events that are kept."""
    if not _keepers:
        _journal.clear()


@contextlib.contextmanager
def compiling(function: str, file: str, line: int, why: str, part: str = "") -> Iterator[Compile]:
    """Be in a compile, which begins and ends with an event. Its `outcome` is what the body says."""
    now = Compile(next(_numbers), function, file, line, part)
    outer = len(_open.stack)
    try:  # from here on: a signal handler may raise behind any call
        _open.stack.append(now)
        emit(CompileBegan(function, file, line, why))
        yield now
    except BaseException:
        now.outcome = "raised"
        raise
    finally:
        try:
            emit(CompileEnded(function, file, line, now.outcome, time.perf_counter() - now.start, tuple(now.spans)))
        finally:
            del _open.stack[outer:]


@contextlib.contextmanager
def part_of_graph(part: str) -> Iterator[None]:
    """Graphs that are compiled in the body are this part of what was captured."""
    now = current()
    before = now.part if now is not None else ""
    if now is not None:
        now.part = part
    try:
        yield
    finally:
        if now is not None:
            now.part = before


def next_graph() -> int:
    """Return the number of a graph that is compiled, unique in this process."""
    return next(_graphs)


def graph_name(number: int) -> str:
    """Return the name by which profilers and reports show the graph that is being compiled."""
    now = current()
    where = f": {now.part + ' of ' if now.part else ''}{now.function} ({now.file}:{now.line})" if now else ""
    return f"framesmith graph {number}{where}"
