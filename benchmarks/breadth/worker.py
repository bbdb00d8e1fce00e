"""The child process: judges the architectures named on its input, one JSON line each on its output.

    python -m benchmarks.breadth.worker SUITE BACKEND [dynamic]
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import sysconfig
import time
import traceback
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

import framesmith
from benchmarks.breadth.case import Case, NoModel
from benchmarks.breadth.exactness import Rounding, compiles_otherwise, raises_when_compiled
from benchmarks.breadth.sizes import DYNAMIC, FIRST, Sizes, at, choices, only
from benchmarks.comparing import assert_same
from framesmith.ledger import Ledger
from framesmith.util.errors import FramesmithError, Unsupported

Outcome = dict[str, Any]


def _where(problem: BaseException) -> str:
    """The last line of the traceback that is not torch's."""
    frames = [f for f in traceback.extract_tb(problem.__traceback__) if "/torch/" not in f.filename]
    return f"{_short(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""


def _short(file: str) -> str:
    """A path without what differs between machines."""
    return file.rsplit("/site-packages/", 1)[-1].rsplit("/framesmith/framesmith/",
                                                        1)[-1].removeprefix(os.getcwd() + "/")


def _words(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines()
    return _plain(f"{type(problem).__name__}: {lines[0] if lines else ''}")


def _plain(text: str) -> str:
    """A message without what differs between machines."""
    return text.replace(os.getcwd() + "/", "").replace(_PACKAGES, "")[:300]


_PACKAGES = sysconfig.get_path("purelib") + "/"


def _run(model: torch.nn.Module, inputs: dict[str, Any]) -> Any:
    """One call without grad, from the same random state each time."""
    torch.manual_seed(0)
    with torch.no_grad():
        return model(**inputs)


def _prepared(case: Case, dynamic: bool) -> tuple[torch.nn.Module, str, list[Sizes], list[Any]]:
    """The model, what of its sizes varies, the sizes of each call, and what eager returns; whatever goes wrong here is
    no fault of the compiler."""
    try:
        model = case.build()
        _run(model, case.inputs(model))  # some models fill caches of their own in the first call
        if not dynamic:
            return model, "", [FIRST] * 2, [_run(model, case.inputs(model))] * 2
        first: Exception | None = None
        for varying, sizes in choices():
            try:
                if _all_vary(given := [_inputs(case, model, size) for size in sizes]):
                    return model, _what_varies(case, model, varying), sizes, [_run(model, one) for one in given]
            except Exception as problem:
                first = first or problem
        raise NoModel("no other size" if first is None else f"no other size: {_words(first)}")
    except Exception as problem:
        reason = str(problem) if isinstance(problem, NoModel) else f"{_words(problem)} ({_where(problem)})"
        raise NoModel(reason) from problem


def _inputs(case: Case, model: torch.nn.Module, sizes: Sizes) -> dict[str, Any]:
    with at(sizes):
        return case.inputs(model)


def _shapes(given: dict[str, Any]) -> tuple[torch.Size, ...]:
    return tuple(x.shape for x in given.values() if isinstance(x, torch.Tensor))


def _all_vary(given: list[dict[str, Any]]) -> bool:
    """Whether the shapes of the inputs differ from call to call."""
    return len({_shapes(one) for one in given}) == len(given)


def _what_varies(case: Case, model: torch.nn.Module, varying: tuple[str, ...]) -> str:
    """Those of `varying` that the shapes of the inputs follow."""
    first = _shapes(case.inputs(model))
    return " ".join([name for name in varying if _shapes(_inputs(case, model, only((name,), DYNAMIC[1]))) != first])


def judge(case: Case, backend: str, dynamic: bool = False) -> Outcome:
    """Compile with `fullgraph=True` and call twice, or at three sizes; later calls must find the first one's entry."""
    try:
        model, varying, sizes, eager = _prepared(case, dynamic)
    except NoModel as problem:
        return {"status": "no model", "reason": str(problem)}
    compile_ = functools.partial(framesmith.compile, fullgraph=True, backend=backend, dynamic=dynamic or None)
    rounding = functools.cache(lambda: Rounding(model, compile_, _run))
    compiled = compile_(model)
    ledger = compiled._framesmith_call.callback.ledger = Ledger()
    ours, seconds = [], 0.0
    try:
        for size in sizes:
            given, start = _inputs(case, model, size), time.perf_counter()
            ours.append(_run(compiled, given))
            seconds = seconds or time.perf_counter() - start
    except Unsupported as refusal:
        at_line = f"{_short(refusal.at[0])}:{refusal.at[1]}" if refusal.at else ""
        return {"status": "break", "reason": refusal.reason, "at": at_line}
    except FramesmithError as problem:
        return {"status": "refused", "reason": _words(problem), "at": _where(problem)}
    except Exception as problem:
        if raises_when_compiled(problem, model, functools.partial(_inputs, case, model, sizes[len(ours)]), _run):
            return {"status": "no model",
                    "reason": f"eager raises too under torch.compiler.is_compiling(): {_words(problem)}"}
        return {"status": "error", "reason": _words(problem), "at": _where(problem)}
    noted: Outcome = {"varying": varying} if dynamic else {}
    for mine, theirs, size in zip(ours, eager, sizes, strict=True):
        try:
            assert_same(mine, theirs)
        except AssertionError as difference:
            again = ours[1] if not dynamic else mine
            note = _excused(mine, again, theirs, model, rounding, functools.partial(_inputs, case, model, size))
            if note is None:
                reason = (str(difference).splitlines() or ["other containers"])[0][:300]
                return {"status": "differs", "reason": reason, **noted}
            noted["note"] = note
    if [bool(r.operators) for r in ledger.records] != [True]:
        return {"status": "recompiles", "reason": _why_again(ledger, compiled, dynamic), **noted}
    return {"status": "pass", "seconds": round(seconds, 2), "operators": sum(ledger.records[0].operators.values()),
            **noted}


def _why_again(ledger: Ledger, compiled: Any, dynamic: bool) -> str:
    """Why there was not one compilation."""
    seen = compiled._framesmith_call.callback._seen.values()
    if dynamic and (reasons := [*ledger.fixed, *[miss.text for one in seen for miss in one.misses.values()]]):
        return _plain(reasons[0])
    if ledger.refusals:
        return _plain(ledger.refusals[0].reason)
    made = ", ".join(f"{r.function} ({_short(r.file)}:{r.line})" for r in ledger.records)
    return f"{len(ledger.records)} compilations for equal calls: {made}"


def _excused(ours: Any, again: Any, eager: Any, model: torch.nn.Module, rounding: Callable[[], Rounding],
             inputs: Callable[[], Any]) -> str | None:
    """Why a difference from eager is none of the compiler's, if that can be shown."""
    try:
        assert_same(ours, again)
        return compiles_otherwise(ours, model, inputs, _run) or rounding().excuses(ours, eager, inputs)
    except Exception:  # float64 is not for every model; what differs stays a difference
        return None


def _quiet() -> int:
    """Keep the real output for results: whatever libraries print goes to the error stream."""
    results = os.dup(1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    return results


def main() -> None:
    """Answer each name on the standard input until it ends."""
    suite: ModuleType = importlib.import_module(f"benchmarks.breadth.{sys.argv[1]}")
    with os.fdopen(_quiet(), "w") as results:
        for line in sys.stdin:
            outcome = judge(suite.case(line.strip()), sys.argv[2], "dynamic" in sys.argv[3:])
            results.write(json.dumps(outcome) + "\n")
            results.flush()
            framesmith.reset()


if __name__ == "__main__":
    main()
