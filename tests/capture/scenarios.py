"""Scenarios: programs that build a module, call it and change it in between.  Run plainly and compiled, they must give
the same.

A scenario takes `c`, which compiles what it is given (plainly: gives it back), and returns whatever is to be compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

import framesmith
from framesmith.testing import CompileCounter
from tests.capture.driver import same

Scenario = Callable[[Callable[[Any], Any]], Any]


def outcome(run: Scenario, compiles: Callable[[Any], Any]) -> Any:
    """What a scenario returns, or the type and text of what it raises."""
    torch.manual_seed(0)
    with torch.no_grad():
        try:
            return run(compiles)
        except framesmith.exc.FramesmithError:
            raise
        except Exception as e:
            return type(e), str(e)


def check(run: Scenario, *, whole: bool = True, graphs: int | None = None) -> None:
    """`whole`: every call is captured without a break; `graphs`: so many graphs are compiled (at least one, if
    None)."""
    counter = CompileCounter()
    options = {"suppress_errors": False}
    with warnings.catch_warnings():
        if whole:
            warnings.filterwarnings("error", message="framesmith")
        got = outcome(run, lambda m: framesmith.compile(m, backend=counter, fullgraph=whole, options=options))
    want = outcome(run, lambda m: m)
    assert same(got, want), f"compiled: {got}\nplain: {want}"
    assert counter.frame_count == graphs if graphs is not None else counter.frame_count > 0
