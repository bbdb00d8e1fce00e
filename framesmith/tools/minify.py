"""`minify`: find a small program that reproduces the fault of a call."""

from __future__ import annotations

import functools
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from framesmith.config import Config
from framesmith.tools import programs
from framesmith.tools.child import Child, Lost, Raised, Setup
from framesmith.tools.judge import FINE, ODD, Question, Verdict, judge
from framesmith.tools.programs import Data, Program
from framesmith.tools.recorded import Recorded, recorded
from framesmith.tools.shrink import shrink

_CHECKED = ("fullgraph", "suppress_errors", "warn", "cache_dir", "cache")
"""Options that a script sets itself."""


@dataclass(frozen=True, slots=True)
class Minified:
    """The outcome of `minify`. `kind`: "wrong result", "error", "crash", "hang", "slow", or "" where nothing is wrong
    with any graph of the call. `detail`: what is seen of it. `script`: plain torch and framesmith; it fails as long as
    the fault is there. `operators`: of the whole graph that failed, and of the script's. `tried`: programs that were
    run for it."""

    kind: str
    detail: str
    script: str = ""
    operators: tuple[int, int] = (0, 0)
    tried: int = 0
    folder: str = ""

    def __str__(self) -> str:
        return self.script or (f"# {self.kind}: {self.detail}" if self.kind else f"# {self.detail}")


class Verdicts:
    """Verdicts on programs, from a child process, which has a code cache of its own."""

    def __init__(self, config: Config, setup: Setup, seconds: float, slow: float, folder: Path,
                 tolerance: float | None = None) -> None:
        self.config = config.with_(cache_dir=str(folder / "cache"), cache=True)
        self.seconds, self.slow, self.tolerance = seconds, slow, tolerance
        self.data = Data(folder)
        self.tried = 0
        self._child = Child(judge, setup)
        self._known: dict[Any, Verdict] = {}

    def verdict(self, program: Program, rows: tuple[tuple[str, str], ...] = (), **changes: Any) -> Verdict:
        """Return the fault of a program, under changed options where some are given, and without `rows`."""
        q = Question(programs.text(program, self.data), self.config.with_(**changes), program.train, self.slow,
                     self.tolerance, rows)
        if q not in self._known:
            self._known[q] = self._asked(q)
        return self._known[q]

    def _asked(self, q: Question) -> Verdict:
        self.tried += 1
        try:
            return self._child.ask(q, self.seconds)  # type: ignore[no-any-return]
        except Lost as lost:
            if lost.hangs:
                return Verdict("hang", f"no answer in {self.seconds:.0f} s")
            return Verdict("crash", str(lost), lost.how)
        except Raised as raised:
            return Verdict("error", str(raised), "outside")

    def close(self) -> None:
        """End the child process."""
        self._child.close()


def minify_call(root: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], config: Config,
                train: bool, setup: Setup = None, seconds: float = 30.0, slow: float = 2.0,
                budget: float = 300.0, tolerance: float | None = None) -> Minified:
    """See `framesmith.minify`."""
    folder = Path(tempfile.mkdtemp(prefix="framesmith-minify-"))
    verdicts = Verdicts(config, setup, seconds, slow, folder, tolerance)
    try:
        graphs = graphs_of(root, args, kwargs, config, train, setup, seconds)
        found = _small(graphs, verdicts, time.monotonic() + budget) if isinstance(graphs, list) else graphs
    finally:
        verdicts.close()
        shutil.rmtree(folder / "cache", ignore_errors=True)
        if not any(folder.glob("data*.pt")):
            shutil.rmtree(folder, ignore_errors=True)
    if str(folder) not in found.script:
        shutil.rmtree(folder, ignore_errors=True)
        return found
    return replace(found, folder=str(folder))


def graphs_of(root: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], config: Config, train: bool,
              setup: Setup, seconds: float) -> list[Recorded] | Minified:
    """Return the graphs of a call, or the reason why there are none: they are captured in a child process first, if it
    can be forked."""
    record = functools.partial(recorded, root, args, kwargs, config, train)
    trial = Child(lambda _: len(record()), setup)
    if trial.forks:
        with trial:
            try:
                trial.ask(None, seconds * 4)
            except Lost as lost:
                return Minified("hang" if lost.hangs else "crash", f"while the program is captured: {lost}")
            except Raised as raised:
                return Minified("error", f"the call raises while its graphs run operator by operator: {raised}")
    return record()


def first_fault(graphs: list[Recorded], verdicts: Verdicts) -> tuple[Program, Verdict] | str:
    """Return the first of the graphs that fails, and how; in words, that none does."""
    for graph in graphs:
        program = programs.of(graph)
        if programs.as_function(program) and (verdict := verdicts.verdict(program)).kind not in (FINE, ODD):
            return program, verdict
    return f"nothing is wrong with the {len(graphs)} graphs of this call, each by itself"


def _small(graphs: list[Recorded], verdicts: Verdicts, end: float) -> Minified:
    found = first_fault(graphs, verdicts)
    if isinstance(found, str):
        return Minified("", found, tried=verdicts.tried)
    program, first = found
    least = min(first.off / 2, 2 * verdicts.slow) if first.kind == "slow" else 0.0
    """The least factor over eager of a slow program: well above the limit that the script asserts, since times vary."""

    def fails(candidate: Program) -> bool:
        if time.monotonic() > end:
            return False
        verdict = verdicts.verdict(candidate)
        return verdict.same(first) and not verdict.off < least

    small = shrink(program, fails, first.result)
    last = verdicts.verdict(small)
    return Minified(last.kind, last.detail, script(small, last, verdicts), (len(program.calls), len(small.calls)),
                    verdicts.tried)


# -------------------------------------------------------------------------------------------------------------- script


def script(program: Program, verdict: Verdict, verdicts: Verdicts) -> str:
    """Return the program with a check that shows its fault."""
    lines = [f"# framesmith.minify: {verdict.kind}: {_line(verdict.detail)}", programs.text(program, verdicts.data), "",
             ""]
    compiled = f"framesmith.compile(program, {_options(verdicts.config)})"
    run = _run_trained(program) if program.train else []
    call = "run({})" if run else "{}(*inputs)"
    lines += run
    if verdict.kind == "wrong result":
        lines += [f"expected, actual = {call.format('program')}, {call.format(compiled)}",
                  f"torch.testing.assert_close(actual, expected, rtol=0, atol={_room(verdict)}, equal_nan=True)"]
    elif verdict.kind == "slow":
        lines += ["import timeit", f"compiled = {compiled}", f"{call.format('compiled')}",
                  *(f"{name} = min(timeit.repeat(lambda: {call.format(fn)}, number=3))"
                    for name, fn in (("eager", "program"), ("ours", "compiled"))),
                  f"assert ours <= {verdicts.slow} * eager, (ours, eager)"]
    else:
        lines.append(call.format(compiled))
    return "\n".join(lines) + "\n"


def _run_trained(program: Program) -> list[str]:
    leaves = "[x for x in inputs if x.requires_grad]"
    if any(x.param for x in program.inputs):
        leaves = "[x for x in [*inputs, *p.parameters()] if x.requires_grad]"
    several = len(program.results) > 1
    given = "fn(*inputs)" if several else "[fn(*inputs)]"
    return ["def run(fn):",
            f"    out = [y for y in {given} if y.requires_grad]",
            "    tangents = [torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape).to(y) for y in out]",
            f"    return [*out, *torch.autograd.grad(out, {leaves}, tangents, allow_unused=True)]", "", ""]


def _options(config: Config) -> str:
    plain = Config()
    options = {name: value for name, value in vars(config).items()
               if name not in _CHECKED and value != getattr(plain, name)}
    own = [f"{name}={options.pop(name)!r}" for name in ("dynamic", "mode") if name in options]
    return ", ".join(["fullgraph=True", *own, f"options={ {**options, 'cache': False} !r}"])


def _room(verdict: Verdict) -> str:
    """Return half of the difference as a tolerance: right results are closer."""
    return f"{verdict.off / 2:.1g}" if 0 < verdict.off < float("inf") else "1e-5"


def _line(text: str) -> str:
    return text.partition("\n")[0][:150]
