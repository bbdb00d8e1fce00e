"""The child process: judges the architectures named on its input, one JSON line each on its output.

    python -m benchmarks.breadth.worker SUITE BACKEND
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
import traceback
import warnings
from types import ModuleType
from typing import Any

import torch

import framesmith
from benchmarks.breadth.case import Case, NoModel
from benchmarks.breadth.exactness import as_exact, compiles_otherwise, raises_when_compiled
from benchmarks.comparing import assert_same
from framesmith.compiler import Ledger
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
    text = f"{type(problem).__name__}: {lines[0] if lines else ''}"
    return text.replace(os.getcwd() + "/", "")[:300]


def _run(model: torch.nn.Module, inputs: dict[str, Any]) -> Any:
    """One call without grad, from the same random state each time."""
    torch.manual_seed(0)
    with torch.no_grad():
        return model(**inputs)


def _prepared(case: Case) -> tuple[torch.nn.Module, Any]:
    """The model and what eager returns; whatever goes wrong here is no fault of the compiler."""
    try:
        model = case.build()
        _run(model, case.inputs(model))  # some models fill caches of their own in the first call
        return model, _run(model, case.inputs(model))
    except Exception as problem:
        reason = str(problem) if isinstance(problem, NoModel) else f"{_words(problem)} ({_where(problem)})"
        raise NoModel(reason) from problem


def judge(case: Case, backend: str) -> Outcome:
    """Compile with `fullgraph=True` and call twice; the second call must find the first one's entry."""
    try:
        model, eager = _prepared(case)
    except NoModel as problem:
        return {"status": "no model", "reason": str(problem)}
    ledger = Ledger()
    start = time.perf_counter()
    try:
        compiled = framesmith.compile(model, fullgraph=True, backend=backend)
        compiled._framesmith_call.callback.ledger = ledger
        first = _run(compiled, case.inputs(model))
        seconds = time.perf_counter() - start
        second = _run(compiled, case.inputs(model))
    except Unsupported as refusal:
        at = f"{_short(refusal.at[0])}:{refusal.at[1]}" if refusal.at else ""
        return {"status": "break", "reason": refusal.reason, "at": at}
    except FramesmithError as problem:
        return {"status": "refused", "reason": _words(problem), "at": _where(problem)}
    except Exception as problem:
        if raises_when_compiled(problem, model, functools.partial(case.inputs, model), _run):
            return {"status": "no model",
                    "reason": f"eager raises too under torch.compiler.is_compiling(): {_words(problem)}"}
        return {"status": "error", "reason": _words(problem), "at": _where(problem)}
    noted: Outcome = {}
    try:
        assert_same(first, eager)
        assert_same(second, eager)
    except AssertionError as difference:
        note = _excused(first, second, eager, model, case)
        if note is None:
            return {"status": "differs", "reason": (str(difference).splitlines() or ["other containers"])[0][:300]}
        noted = {"note": note}
    if [bool(r.operators) for r in ledger.records] != [True]:
        made = ", ".join(f"{r.function} ({_short(r.file)}:{r.line})" for r in ledger.records)
        return {"status": "recompiles", "reason": f"{len(ledger.records)} compilations for two equal calls: {made}"}
    return {"status": "pass", "seconds": round(seconds, 2), "operators": sum(ledger.records[0].operators.values()),
            **noted}


def _excused(first: Any, second: Any, eager: Any, model: torch.nn.Module, case: Case) -> str | None:
    """Why a difference from eager is none of the compiler's, if that can be shown."""
    inputs = functools.partial(case.inputs, model)
    try:
        assert_same(first, second)
        return compiles_otherwise(first, model, inputs, _run) or as_exact(first, eager, model, inputs, _run)
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
            outcome = judge(suite.case(line.strip()), sys.argv[2])
            results.write(json.dumps(outcome) + "\n")
            results.flush()
            framesmith.reset()


if __name__ == "__main__":
    main()
