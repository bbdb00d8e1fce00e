"""Verdicts on a program's text, run compiled and in eager."""

from __future__ import annotations

import contextlib
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from framesmith import _C
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.ledger import Ledger
from framesmith.lower.table import PRIM_ROWS
from framesmith.passes import IDENTITIES
from framesmith.prims.registry import rules
from framesmith.tools.difference import distance, mismatch, to_float64
from framesmith.tools.recorded import own, seeded

FINE, ODD = "", "left out"
"""Kinds of verdicts: nothing is wrong; eager itself raises. Others: "wrong result", "error", "crash", "hang",
"slow"."""
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fault of a program. `sign`: which of several faults of the kind it is. `result`: which result differs; `off`:
    by how much, or how many times as long as eager it takes. `kernels`: what each of the code's kernels computes, as
    far as that is known."""

    kind: str
    detail: str = ""
    sign: str = ""
    result: int | None = None
    off: float = 0.0
    kernels: tuple[str, ...] = ()

    def same(self, other: Verdict) -> bool:
        """Return whether another program fails in the same way."""
        return (self.kind, self.sign) == (other.kind, other.sign)


@dataclass(frozen=True, slots=True)
class Question:
    """A program's text, and how to judge it. `slow`: that many times eager's time is slow; 0: slowness is no fault.
    `rows`: decompositions and lowerings to turn off (table and key)."""

    text: str
    config: Config
    train: bool
    slow: float = 0.0
    tolerance: float | None = None
    rows: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class _Run:
    """A program's results and gradients, in order. `draws`: it drew random numbers."""

    results: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    draws: bool = False

    def named(self) -> list[tuple[str, Any]]:
        return [*((f"result {k}", x) for k, x in enumerate(self.results)),
                *((f"gradient {k}", x) for k, x in enumerate(self.gradients))]


def judge(q: Question) -> Verdict:
    """Compare a compiled call of a program with eager's, and with float64."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            space = loaded(q.text)
            plain = run_once(space, space["program"], q.train)
    except Exception as error:
        return Verdict(ODD, f"{type(error).__name__}: {error}")
    ledger = Ledger()
    compiler = FrameCompiler(q.config.with_(fullgraph=True, warn=False), ledger)
    fn = _C.CompiledFunction(space["program"], compiler)
    try:
        with warnings.catch_warnings(), rows_off(q.rows):
            warnings.simplefilter("ignore")
            for _ in range(2):
                got = run_once(space, fn, q.train)
                if faults := [r.reason for r in ledger.refusals if r.internal]:
                    return Verdict("error", faults[0], _sign(faults[0]))
                if found := _difference(plain, got, lambda: exact(q.text, q.train), q.tolerance):
                    return replace(found, kernels=_kernels(ledger))
            return _slowness(space, fn, q) if q.slow else Verdict(FINE, kernels=_kernels(ledger))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1].name
        text = f"{type(error).__name__}: {error}".strip()
        return Verdict("error", f"{text[:300]} [in {where}]", f"{type(error).__name__} {where}")
    finally:
        compiler.forget()


@contextlib.contextmanager
def rows_off(rows: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Turn some decompositions and lowerings off within the block: the operators' own kernels are called."""
    if not rows:
        yield
        return
    gone = set(rows)
    before = dict(rules), dict(PRIM_ROWS)
    IDENTITIES.append(f"without {sorted(gone)}")
    try:
        for target in [t for t in rules if ("decomposition", str(t)) in gone]:
            del rules[target]
        PRIM_ROWS.update({name: lambda *args: None for kind, name in gone if kind == "lowering"})
        yield
    finally:
        for table, was in zip((rules, PRIM_ROWS), before, strict=True):
            table.clear()
            table.update(was)  # type: ignore[arg-type]
        IDENTITIES.pop()


TABLES: dict[str, Callable[[], list[str]]] = {
    "decomposition": lambda: [str(t) for t in rules], "lowering": lambda: list(PRIM_ROWS),
}
"""The tables whose rows can be turned off, and their keys."""


def _kernels(ledger: Ledger) -> tuple[str, ...]:
    reports = [r.report for r in ledger.records if r.report is not None]
    return tuple([", ".join(what for _, what in kernel) for report in reports for kernel in report.work])


def _sign(text: str) -> str:
    return re.sub(r"[0-9]+", "", text)[-80:]


def loaded(text: str) -> dict[str, Any]:
    """Execute a program's text and return the namespace that it defines."""
    space: dict[str, Any] = {}
    with torch.random.fork_rng():
        exec(compile(text, "<program>", "exec"), space)
    return space


def run_once(space: dict[str, Any], fn: Callable[..., Any], train: bool) -> _Run:
    """Call a program, and its backward with tangents that differ from element to element."""
    given = [own(x) for x in space["inputs"]]
    with torch.set_grad_enabled(train), seeded() as drawn:
        found = fn(*given)
        results = list(found) if isinstance(found, tuple) else [found]
        out = _Run([x.detach().clone() for x in results])
        leaving = [y for y in results if y.requires_grad]
        leaves = [x for x in [*given, *_parameters(space)] if x.requires_grad]
        if train and leaving and leaves:
            out.gradients = list(torch.autograd.grad(leaving, leaves, [tangent(y) for y in leaving],
                                                     allow_unused=True))
        out.draws = drawn()
    return out


def tangent(y: torch.Tensor) -> torch.Tensor:
    """Return a tensor that serves as the gradient of a result."""
    line = torch.linspace(0.5, 1.5, y.numel(), dtype=torch.float64, device=y.device)
    return line.reshape(y.shape).to(y.dtype)


def _parameters(space: dict[str, Any]) -> list[torch.Tensor]:
    return list(space["p"].parameters()) if "p" in space else []


def exact(text: str, train: bool) -> _Run | None:
    """Return a program's results in float64; None where it has none, or draws random numbers."""
    head, body = text.split("def program(", 1)
    try:
        space = loaded(f"{head}def program({_FLOAT.sub('torch.float64', body)}")
        space["inputs"] = [to_float64(x) for x in space["inputs"]]
        for parameter in _parameters(space):
            parameter.data = to_float64(parameter.data)
        found = run_once(space, space["program"], train)
        return None if found.draws else found
    except Exception:  # an operator without a kernel for float64: there is nothing exact to compare with
        return None


_FLOAT = re.compile(r"torch\.(float32|float16|bfloat16)")


def wide_dtype(x: Any) -> Any:
    """float64 for a smaller one among arguments; anything else as it is."""
    return torch.float64 if isinstance(x, torch.dtype) and x.is_floating_point else x


def _difference(plain: _Run, got: _Run, wide: Callable[[], _Run | None], tolerance: float | None) -> Verdict | None:
    if (len(plain.results), len(plain.gradients)) != (len(got.results), len(got.gradients)):
        return Verdict("wrong result", "results that require grad are others")
    known: list[Any] | None = None
    for k, ((name, a), (_, b)) in enumerate(zip(plain.named(), got.named(), strict=True)):
        if a is None or b is None:
            if (a is None) != (b is None) and bool((b if a is None else a).any()):
                return Verdict("wrong result", f"{name} is None in one alone")
            continue
        if not mismatch(a, b, None, tolerance=tolerance):
            continue
        if known is None:
            run = wide()
            known = [x for _, x in run.named()] if run is not None else []
        if found := mismatch(a, b, known[k] if k < len(known) else None, tolerance=tolerance):
            return Verdict("wrong result", f"{name}: {found}", "",
                           k if k < len(plain.results) else None, distance(a, b))
    return None


def _slowness(space: dict[str, Any], fn: Callable[..., Any], q: Question) -> Verdict:
    """Compare the shortest of several calls, taken in turn."""
    times: list[list[float]] = [[], []]
    given = space["inputs"]
    with torch.set_grad_enabled(q.train):
        for _ in range(_ROUNDS):
            for taken, call in zip(times, (space["program"], fn), strict=True):
                start = time.perf_counter()
                if q.train:
                    run_once(space, call, True)
                else:
                    call(*given)
                if any(isinstance(x, torch.Tensor) and x.is_cuda for x in given):
                    torch.cuda.synchronize()
                taken.append(time.perf_counter() - start)
    eager, ours = map(min, times)
    if ours <= q.slow * eager:
        return Verdict(FINE)
    detail = f"{1000 * ours:.3g} ms, {ours / eager:.1f} times as long as eager's {1000 * eager:.3g} ms"
    return Verdict("slow", detail, off=ours / eager)

