"""CPython's own regression tests with the frame hook on for every Python function.

    python tests/cpython_suite.py [NAME ...] [--fast] [--jobs N] [--limit SECONDS] [--reasons] [--only TEST] [--keep]

Each test file runs twice, each time in a process of its own: plain, and hooked with the "eager" back end, the standard
library's functions included. A test that passes plain and fails hooked is a failure of ours. Captures without a tensor
are kept, so what runs is residual code: the table counts it, a file in which nothing was captured or run from the cache
fails. The last line is `N passed, N failed`.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import importlib
import json
import multiprocessing
import os
import platform
import re
import sys
import tempfile
import threading
import time
import traceback
import unittest
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

FAST = (
    "test_bisect", "test_class", "test_defaultdict", "test_enumerate", "test_extcall", "test_generators",
    "test_genexps",
    "test_keywordonlyarg", "test_list", "test_listcomps", "test_named_expressions", "test_patma", "test_property",
    "test_raise",
    "test_scope", "test_slice", "test_string", "test_super", "test_unpack", "test_with",
)
FULL = (
    "test_grammar", "test_raise", "test_exceptions", "test_with", "test_scope", "test_closures", "test_generators",
    "test_genexps",
    "test_listcomps", "test_contextlib", "test_dict", "test_list", "test_tuple", "test_set", "test_slice", "test_range",
    "test_iter",
    "test_enumerate", "test_itertools", "test_functools", "test_operator", "test_collections", "test_deque",
    "test_defaultdict",
    "test_ordered_dict", "test_dataclasses", "test_enum", "test_call", "test_extcall", "test_keywordonlyarg",
    "test_positional_only_arg",
    "test_class", "test_descr", "test_property", "test_super", "test_unpack", "test_unpack_ex", "test_patma",
    "test_fstring", "test_string",
    "test_named_expressions", "test_math", "test_copy", "test_heapq", "test_bisect", "test_random", "test_json",
    "test_re", "test_typing",
    "test_inspect", "test_weakref",
)
HOOK_OPTIONS = {"backend": "eager", "standard_library": True, "keep_graphless": True, "warn": False,
                "max_instructions": 20_000}
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "cpython-suite.json"
RAN = ("passed", "skipped", "expected failure")
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["framesmith.compiler"])
"""Forks a process for each run, of one that has imported PyTorch."""
ONE_AT_A_TIME = threading.Lock()
"""Starting a process asks for the ends of others, which two threads must not do at once."""


# --- the child: one file, plain or hooked -----------------------------------------------------------------------------

class Tally(list):
    """A ledger's list that counts what is appended and keeps nothing."""

    def __init__(self, counts: Counter[str], what: Any) -> None:
        super().__init__()
        self.counts = counts
        self.what = what

    def append(self, item: Any) -> None:
        for name in self.what(item):
            self.counts[name] += 1


def make_callback(counts: Counter[str], reasons: Counter[str]) -> Any:
    """The frame callback of `compile`, for every function, and its counts."""
    from framesmith import _C
    from framesmith.compiler import FrameCompiler
    from framesmith.config import Config
    from framesmith.ledger import Ledger

    def of_record(record: Any) -> list[str]:
        for b in record.breaks:
            reasons["break: " + shorten(b.reason)] += 1
        return ["broke"] * bool(record.breaks)

    def of_refusal(refusal: Any) -> list[str]:
        reasons[("fault: " if refusal.internal else "refused: ") + shorten(refusal.reason)] += 1
        return ["refused", "faults"] if refusal.internal else ["refused"]

    class Counting(FrameCompiler):
        def __call__(self, code: Any, func: Any, f_locals: Any) -> Any:
            answer = super().__call__(code, func, f_locals)
            counts["captured"] += isinstance(answer, _C.Entry)
            return answer

    return Counting(Config.from_env({}, **HOOK_OPTIONS), Ledger(Tally(counts, of_record), Tally(counts, of_refusal)))


def shorten(reason: str) -> str:
    """A reason without what differs from place to place."""
    return re.sub(r"0x[0-9a-f]+", "0x…", reason.split("\n", 1)[0])[:160]


class Recorder(unittest.TestResult):
    """Writes a line for each test as it starts and ends, so that a crash is known by its test; the hook is on between
    the two."""

    def __init__(self, out: Any, callback: Any) -> None:
        super().__init__()
        self.out = out
        self.callback = callback
        self.bad = False

    def line(self, **event: Any) -> None:
        self.out.write(json.dumps(event) + "\n")
        self.out.flush()

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self.bad = False
        self.line(start=test.id())
        if self.callback is not None:
            set_callback(self.callback)

    def stopTest(self, test: Any) -> None:
        if self.callback is not None:
            set_callback(None)
        super().stopTest(test)

    def end(self, test: Any, how: str, error: Any = None) -> None:
        """The outcome of a test or of one of its subtests; the hook stays off until it is written."""
        if self.callback is not None:
            set_callback(None)
        text = "".join(traceback.format_exception(*error)) if error is not None else ""
        self.line(end=test.id(), how=how, text=text[-6000:])
        if self.callback is not None:
            set_callback(self.callback)

    def addSuccess(self, test: Any) -> None:
        self.end(test, "passed")

    def addError(self, test: Any, err: Any) -> None:
        self.end(test, "error", err)

    def addFailure(self, test: Any, err: Any) -> None:
        self.end(test, "failed", err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.end(subtest, "failed", err)

    def addSkip(self, test: Any, reason: str) -> None:
        self.end(test, "skipped")

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.end(test, "expected failure")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.end(test, "unexpected success")


def set_callback(callback: Any) -> None:
    """Turn the hook on or off in this thread."""
    from framesmith import _C

    _C.set_callback(callback)


def child(name: str, hooked: bool, path: str, said: str, only: str | None) -> None:
    """Run one file and write its events to `path`, and what it prints to `said`."""
    os.setsid()
    with open(said, "wb") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    faulthandler.enable()
    here = str(Path(__file__).parent)
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here]
    sys.path.insert(0, str(Path(here).parent))
    from test import support
    from test.support import os_helper

    import framesmith.compiler  # both runs load the same modules  # noqa: F401
    from framesmith import _C

    support.use_resources = []
    for method in (Recorder.startTest, Recorder.stopTest, Recorder.end, Recorder.line, set_callback):
        _C.skip_code(method)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    callback = make_callback(counts, reasons) if hooked else None
    with open(path, "w") as out, os_helper.temp_cwd(quiet=True):
        loader = unittest.TestLoader()
        tests = loader.loadTestsFromModule(importlib.import_module("test." + name))
        if only:
            tests = unittest.TestSuite(t for t in flatten(tests) if only in t.id())
        result = Recorder(out, callback)
        tests.run(result)
        result.line(done=True, counts={**counts, "hits": _C.hits()}, reasons=reasons.most_common(400))
        out.flush()
    os._exit(0)


def flatten(tests: Any) -> Any:
    """The test cases of a suite."""
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            yield from flatten(test)
        else:
            yield test


# --- the parent: two processes a file, compared -----------------------------------------------------------------------

@dataclass
class Run:
    """What one process said of its file."""

    outcomes: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    reasons: list[tuple[str, int]] = field(default_factory=list)
    seconds: float = 0.0
    lost: str | None = None
    """Why the process ended before its tests did."""

    def bad(self) -> dict[str, str]:
        """The tests that did not pass, and why."""
        return {test: text or how for test, ends in self.outcomes.items() for how, text in ends if how not in RAN}


def run(name: str, hooked: bool, limit: float, only: str | None = None) -> Run:
    """One file in a process of its own; raises nothing if that dies."""
    found = Run()
    with tempfile.TemporaryDirectory() as folder:
        events, said = Path(folder, "events"), Path(folder, "said")
        begin = time.perf_counter()
        process = SERVER.Process(target=child, args=(name, hooked, str(events), str(said), only))
        with ONE_AT_A_TIME:
            process.start()
        ended = wait([process.sentinel], limit)
        if not ended:
            os.killpg(process.pid, 6)  # faulthandler shows where it hangs
            wait([process.sentinel], 20)
        with ONE_AT_A_TIME:
            code = process.exitcode if ended else None
        found.seconds = time.perf_counter() - begin
        lines = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
        tail = said.read_text(errors="replace")[-4000:] if said.exists() else ""
    read_events(found, lines)
    if not lines or "done" not in lines[-1]:
        found.lost = f"no end within {limit:.0f} s" if code is None else f"the process ended with status {code}"
        at = next((e["start"] for e in reversed(lines) if "start" in e), name)
        found.outcomes.setdefault(at, []).append(("lost", f"{found.lost}\n{tail}"))
    return found


def read_events(found: Run, lines: list[dict[str, Any]]) -> None:
    """The outcome of each test; one that started and said nothing more is the one that was lost."""
    for event in lines:
        if "end" in event:
            found.outcomes.setdefault(event["end"], []).append((event["how"], event["text"]))
        elif "done" in event:
            found.counts, found.reasons = event["counts"], event["reasons"]


@dataclass
class Verdict:
    """One file: what fails hooked and not plain."""

    name: str
    plain: Run
    hooked: Run
    broken: dict[str, str]

    @property
    def idle(self) -> bool:
        """Nothing was captured, or nothing ran from the cache: the file proves nothing."""
        return not (self.hooked.counts.get("captured") and self.hooked.counts.get("hits"))

    @property
    def passed(self) -> bool:
        return not (self.broken or self.plain.lost or self.hooked.lost or self.idle)


def compare(name: str, limit: float, only: str | None = None) -> Verdict:
    """Run a file plain and hooked. Tests that the hooked process never came to count with the one at which it was
    lost."""
    plain = run(name, False, limit, only)
    hooked = run(name, True, limit, only)
    known = {} if plain.lost else plain.bad()
    broken = {test: text for test, text in hooked.bad().items() if test not in known}
    missing = [t for t, ends in plain.outcomes.items() if t not in hooked.outcomes
               and all(how in RAN for how, _ in ends)]
    if not hooked.lost:
        broken.update((t, "did not run") for t in missing)
    return Verdict(name, plain, hooked, broken)


def exists(name: str) -> bool:
    """Whether this interpreter has the file."""
    return importlib.util.find_spec("test." + name) is not None


def columns(v: Verdict) -> list[str]:
    """A row of the table."""
    c = v.hooked.counts
    word = ("[green]passed[/]" if v.passed
            else f"[red]{v.hooked.lost or (f'{len(v.broken)} failed' if v.broken else 'idle')}[/]")
    counted = [f"{c.get(k, 0)}" for k in ("captured", "hits", "broke", "refused", "faults")]
    return [v.name, f"{len(v.plain.outcomes)}", *counted, f"{v.plain.seconds:.0f}", f"{v.hooked.seconds:.0f}", word]


def show(verdicts: list[Verdict], reasons: bool) -> None:
    """The table, what failed, and (`reasons`) why frames broke or were refused."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=150, soft_wrap=True)
    table = Table("file", "tests", "captured", "run again", "broke", "refused", "faults", "plain s", "hooked s", "")
    for v in verdicts:
        table.add_row(*columns(v))
    console.print(table)
    for v in verdicts:
        for test, text in v.broken.items():
            console.print(f"[red]{escape(test)}[/]\n{escape(text[-2500:])}")
        for reason, n in v.hooked.reasons if reasons else ():
            console.print(f"  {v.name} {n:5} {escape(reason)}")


def keep(verdicts: list[Verdict]) -> None:
    """Write the table as JSON."""
    rows = [{"file": v.name, "passed": v.passed, "failed": sorted(v.broken), "tests": len(v.plain.outcomes),
             **v.hooked.counts,
             "plain_s": round(v.plain.seconds, 1), "hooked_s": round(v.hooked.seconds, 1)} for v in verdicts]
    said = {"python": platform.python_version(), "date": datetime.date.today().isoformat(), "files": rows}
    RESULTS.write_text(json.dumps(said, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="test files; default: all of the list")
    parser.add_argument("--fast", action="store_true", help="the part that CI runs")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one file, plain or hooked")
    parser.add_argument("--reasons", action="store_true", help="print why frames broke or were refused")
    parser.add_argument("--jobs", type=int, default=1, help="files at a time")
    parser.add_argument("--keep", action="store_true", help=f"write the table to {RESULTS.name}")
    parser.add_argument("--only", metavar="TEST", help="only tests whose name has this in it")
    args = parser.parse_args()
    names = args.names or [n for n in (FAST if args.fast else FULL) if exists(n)]
    verdicts = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for verdict in pool.map(lambda name: compare(name, args.limit, args.only), names):
            verdicts.append(verdict)
            print(f"{verdict.name}: {'passed' if verdict.passed else 'failed'}", file=sys.stderr, flush=True)
    show(verdicts, args.reasons)
    if args.keep:
        keep(verdicts)
    passed = sum(v.passed for v in verdicts)
    print(f"{passed} passed, {len(verdicts) - passed} failed")
    return 0 if passed == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
