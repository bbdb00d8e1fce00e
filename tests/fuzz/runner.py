"""Runs a program's text in plain Python and compiled, and compares all that can be seen."""

from __future__ import annotations

import contextlib
import io
import sys
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import framesmith
from framesmith.ledger import Ledger
from tests.fuzz import prelude
from tests.fuzz.program import CALLS
from tests.fuzz.snapshot import Numbers, TooLarge, difference, freeze

FILE = "<random program>"
MODULE = "random_program"
LINES = 4000
"""Lines that the plain run of a program may execute; a longer program is left out."""
LETTERS = 20_000
"""Letters that a text handed to a function may have: text that shows itself again and again doubles each time."""


class TooLong(BaseException):
    """The program executes too many lines, or its text grows without end."""


class BadArguments(Exception):
    """The program fails before `main` is called."""


@dataclass
class Verdict:
    """What became of a program. `kind`: "same", "left out", "different", "internal" (an error of the compiler's
    own)."""

    kind: str
    detail: str = ""
    returned: int = 0
    """Calls that returned."""
    captured: int = 0
    """Frames that have compiled code."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why frames, or parts of them, run in plain Python."""

    @property
    def good(self) -> bool:
        return self.kind in ("same", "left out")


def check(source: str, backend: str = "eager", tolerance: float = 0.0) -> Verdict:
    """Compare a program's compiled run with its plain one."""
    try:
        with _bounded():
            plain = run(source, None)
        again = run(source, None)
    except (TooLong, TooLarge, SyntaxError, BadArguments, AttributeError, RuntimeError) as e:
        return Verdict("left out", f"{type(e).__name__}: {e}")
    if _compare(plain, again, 0.0):
        return Verdict("left out", "not the same twice")
    ledger = Ledger()
    try:
        seen = run(source, lambda fn: _compiled(fn, backend, ledger))
    except Exception:
        return Verdict("internal", traceback.format_exc(limit=-4))
    finally:
        framesmith.reset()
    reasons = Counter([b.reason for r in ledger.records for b in r.breaks] + [f"refused: {r.reason}"
                                                                              for r in ledger.refusals])
    internal = next((e for e in map(_internal, seen) if e), None)
    found = _compare(plain, seen, tolerance)
    kind = "internal" if internal else "different" if found else "same"
    returned = sum(x.error is None for x in plain)
    return Verdict(kind, internal or found, returned, sum(r.operators.total() > 0 for r in ledger.records), reasons)


def _compiled(fn: Callable[..., Any], backend: str, ledger: Ledger) -> Any:
    out = framesmith.compile(fn, backend=backend,
                             options={"suppress_errors": False, "keep_graphless": True, "warn": False})
    out.callback.ledger = ledger
    return out


@dataclass
class Seen:
    """One call: what it gave or raised, and the world after it."""

    outcome: Any
    world: Any
    printed: str
    lines: list[tuple[str, int]]
    error: BaseException | None


PARTS = ("outcome", "world", "printed", "lines")


def run(source: str, compiler: Callable[[Callable[..., Any]], Any] | None) -> list[Seen]:
    """Each call's `Seen`. `compiler` is applied to `main`."""
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    prelude.RECORDS.clear()
    prelude.EVENTS.clear()
    torch.set_grad_enabled(True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                exec(compile(source, FILE, "exec", dont_inherit=True), module.__dict__)
            except Exception as e:
                raise BadArguments(repr(e)) from e
        main = module.main if compiler is None else compiler(module.main)
        return [_call(module, main, k) for k in range(CALLS)]


def _call(module: types.ModuleType, main: Callable[..., Any], k: int) -> Seen:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            args, kwargs = module.arguments(k)
        except Exception as e:
            raise BadArguments(repr(e)) from e
    prelude.EVENTS.clear()
    error: BaseException | None = None
    result: Any = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            result = main(*args, **kwargs)
        except Exception as e:
            error = e
    lines = [(f.name, f.lineno or 0)
             for f in traceback.extract_tb(error.__traceback__) if f.filename == FILE] if error else []
    numbers = Numbers()
    given = freeze((args, kwargs), numbers)
    outcome = freeze(error if error is not None else result, numbers)
    if leaves := [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad
                  and x.is_leaf]:
        outcome = outcome, *[freeze(x) for x in _gradients(leaves, result)]
    space = {k: v for k, v in vars(module).items() if not k.startswith("__")
             and getattr(v, "__module__", MODULE) == MODULE and k != "main"
             and not isinstance(v, types.ModuleType)}
    world = (given, freeze(space, numbers), freeze(prelude.EVENTS, numbers), tuple(prelude.RECORDS),
             torch.is_grad_enabled())
    torch.set_grad_enabled(True)
    return Seen(outcome, world, printed.getvalue(), lines, error)


def _gradients(leaves: list[torch.Tensor], result: Any) -> tuple[Any, ...]:
    """Return the gradients of a weighted sum of all tensors in the result, or the class of the error."""
    sums = [(x * (x.detach() * 0 + torch.linspace(1, 2, x.numel()).view(x.shape))).sum() for x in tree_leaves(result)
            if isinstance(x, torch.Tensor) and x.requires_grad]  # the results' gradients have their layouts
    try:
        found = torch.autograd.grad(sum(sums), leaves, allow_unused=True) if sums else ()
        return tuple([None if x is None else x.clone(memory_format=torch.contiguous_format) for x in found])
    except Exception as e:
        return (type(e).__name__,)


def _compare(a: list[Seen], b: list[Seen], tolerance: float) -> str:
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        for part in PARTS:
            left, right = getattr(x, part), getattr(y, part)
            found = f": {left} became {right}" if part == "lines" and left != right else difference(left, right,
                                                                                                    tolerance)
            if found:
                return f"call {k}: {part}{found}"
    return ""


def _internal(seen: Seen) -> str:
    """The error, if it was raised in the compiler and not by the program."""
    if seen.error is None:
        return ""
    frames = traceback.extract_tb(seen.error.__traceback__)
    if frames and "/framesmith/" in frames[-1].filename and any(f.name == "convert_frame" or f.name == "_compile"
                                                                for f in frames):
        where = " < ".join(f"{f.filename.rsplit('/framesmith/')[-1]}:{f.lineno} {f.name}"
                           for f in reversed(frames[-5:]))
        return f"{type(seen.error).__name__}: {seen.error} at {where}"
    return ""


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """Raises TooLong in a block that executes too many lines."""
    count = 0

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != FILE:
            return None
        count += 1
        if count > LINES:
            raise TooLong(f"{LINES} lines")
        if event == "call" and any(type(v) is str and len(v) > LETTERS for v in frame.f_locals.values()):
            raise TooLong(f"{LETTERS} letters")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
