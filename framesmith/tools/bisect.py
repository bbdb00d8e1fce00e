"""`bisect`: find the option, pass, decomposition or lowering that causes a fault.

The failing graph is compiled again with one thing turned off at a time, and those that make it right are reported; rows
of a table are bisected: without a row the operator's own kernel is called.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framesmith.config import Config
from framesmith.passes import with_registered
from framesmith.pipeline import PASSES
from framesmith.tools.child import Setup
from framesmith.tools.judge import FINE, TABLES, Verdict
from framesmith.tools.minify import Minified, Verdicts, first_fault, graphs_of
from framesmith.tools.programs import Program

OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("fusion", False, "fusing loop nests into kernels"),
    ("vectorize", False, "vector code"),
    ("numerics", "eager", "16-bit values that are not rounded within a kernel"),
    ("weight_caching", False, "values of parameters that are kept between calls"),
    ("freezing", False, "rewriting what depends on parameters"),
    ("packing", False, "weights packed for our own contractions"),
    ("library_choice", False, "the choice of a library for each contraction"),
    ("partitioner", False, "what a forward keeps for its backward"),
    ("scoped_memory", True, "places in one arena"),
    ("parallel_threshold", 1 << 60, "several threads in a kernel"),
    ("tiling", False, "tiles of two dimensions"),
    ("sharing", False, "kernels that are shared between sizes"),
    ("recordings", 0, "CUDA graphs"),
    ("data_symbols", False, "sizes that depend on data"),
    ("compiler_flags", "-O0", "the optimisation of the C++ compiler"),
)
"""(option, the value that turns a part of the compiler off, the part)."""
_FORMS = {"decomposition": "the decomposition of {}", "lowering": "the lowering of the prim {}"}


@dataclass(frozen=True, slots=True)
class Bisected:
    """The outcome of `bisect`. `verdict`: what is wrong. `stage`: "capture and autograd" (the graph is wrong without
    any code of ours), "code", or "" where nothing is wrong. `options`: what makes it right, as `options=` takes it,
    with what that turns off. `passes`: those without which it is right. `rows`: of decompositions and lowerings,
    the same. `fusions`: the first that makes it wrong. `tried`: how often the graph was compiled."""

    verdict: Verdict
    stage: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    passes: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    fusions: list[str] = field(default_factory=list)
    tried: int = 0

    @property
    def blamed(self) -> list[str]:
        """The causes found, in words, the most specific first."""
        words = {name: text for name, _, text in OPTIONS}
        return [*self.fusions, *self.rows, *(f"the pass {name}" for name in self.passes),
                *(f"{words[name]} ({name}={value!r} is right)" for name, value in self.options.items())]

    def __str__(self) -> str:
        if not self.stage:
            return self.verdict.detail or "nothing is wrong"
        head = f"{self.verdict.kind}: {self.verdict.detail}"
        if self.stage != "code":
            return f"{head}\nto blame: {self.stage}: it is wrong with backend='eager', too"
        found = self.blamed or ["none of the options, passes and rows alone"]
        lines = [head, "to blame: " + found[0], *(f"      or: {text}" for text in found[1:])]
        if self.passes or self.options:
            means = {"without": ",".join(self.passes)} if self.passes else dict([next(iter(self.options.items()))])
            lines.append(f"until it is mended: options={means}")
        return "\n".join(lines)


def bisect_call(root: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], config: Config, train: bool,
                setup: Setup = None, seconds: float = 30.0, slow: float = 2.0,
                tolerance: float | None = None) -> Bisected:
    """See `framesmith.bisect`."""
    folder = Path(tempfile.mkdtemp(prefix="framesmith-bisect-"))
    verdicts = Verdicts(config, setup, seconds, slow, folder, tolerance)
    try:
        graphs = graphs_of(root, args, kwargs, config, train, setup, seconds)
        if isinstance(graphs, Minified):
            return Bisected(Verdict(graphs.kind, graphs.detail), "capture and autograd")
        found = first_fault(graphs, verdicts)
        return Bisected(Verdict(FINE, found)) if isinstance(found, str) else _blamed(*found, verdicts)
    finally:
        verdicts.close()
        shutil.rmtree(folder, ignore_errors=True)


def _blamed(program: Program, first: Verdict, verdicts: Verdicts) -> Bisected:
    def is_right(**changes: Any) -> bool:
        return verdicts.verdict(program, **changes).kind == FINE

    if not is_right(backend="eager"):
        return Bisected(first, "capture and autograd", tried=verdicts.tried)
    config = verdicts.config
    options = {name: value for name, value, _ in OPTIONS
               if getattr(config, name) != value and is_right(**{name: value})}
    names = [one.name for one in with_registered(PASSES) if not one.makes and _may_run(one.targets, program)]
    passes = [name for name in names if is_right(without=",".join(filter(None, (config.without, name))))]
    fusions = [_fusion(program, first, verdicts)] if "fusion" in options else []
    rows = [_FORMS[kind].format(key) for kind in TABLES for key in _needed(kind, program, verdicts)]
    return Bisected(first, "code", options, passes, rows, fusions, verdicts.tried)


def _fusion(program: Program, first: Verdict, verdicts: Verdicts) -> str:
    """Return the first loop nest that makes the program wrong when it is fused, by bisection: the kernel that it
    becomes."""
    low, high = 0, 8 * len(program.calls) + 8
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if verdicts.verdict(program, fusion_limit=middle).same(first) else (middle, high)
    before, after = (verdicts.verdict(program, fusion_limit=limit).kernels for limit in (low, high))
    made = [kernel for kernel in after if kernel not in before]
    return f"the fusion of loop nest {low} into a kernel" + (f" of {made[0]}" if made else "")


def _may_run(targets: Sequence[str], program: Program) -> bool:
    return not targets or any(x.value.device.type in targets for x in program.inputs)


def _needed(kind: str, program: Program, verdicts: Verdicts) -> list[str]:
    """Return the fewest rows of a table without which the program is right, by bisection; none if it is wrong without
    all."""
    def is_right(keys: Iterable[str]) -> bool:
        return verdicts.verdict(program, rows=tuple((kind, key) for key in keys)).kind == FINE

    keys = list(TABLES[kind]())
    if not is_right(keys):
        return []
    while len(keys) > 1:
        half = len(keys) // 2
        found = next((part for part in (keys[:half], keys[half:]) if is_right(part)), None)
        if found is None:
            break
        keys = found
    return keys if len(keys) < 4 else []
