"""The integer algebra beside SymPy, and a compile for any size beside one for one size.

    python -m benchmarks.symbolic [--models NAME,...] [--rounds N] [--out FILE]

The expressions are those of the models' own compiles (`dynamic=True`): each operation on expressions that a compile
asks for, once. A fresh process makes all of them in order, with this algebra and with SymPy, which is given the
sequence in its own terms: `expand` of products, `floor` of quotients, `Mod`, `Min` and `Max`, over symbols of the same
signs. Processor time counts. Both values are compared at a point. Then 12 layers of BERT are compiled in fresh
processes, with `dynamic=True` and `dynamic=False` in turn, with an empty cache and again with the cache that the first
left.
"""

from __future__ import annotations

import argparse
import gc
import json
import pickle
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import capture_cost, child, machine, models
from benchmarks.table import geometric_mean
from framesmith.symbolic import extrema
from framesmith.symbolic.expr import Expr, FloorDiv, Int, Max, Min, Mod, Product, Sum, Symbol, as_expr, max_, min_

RESULTS = Path(__file__).parent / "results"
LAYERS = capture_cost.LAYERS
Step = tuple[str, tuple[Any, ...]]
"""An operation and its operands: numbers of earlier steps, or `Given`s."""
Given = tuple[Expr]
"""An expression that no step made."""
OPERATORS = {"__add__": "add", "__mul__": "mul", "__floordiv__": "floordiv", "__mod__": "mod"}
OURS: dict[str, Callable[..., Expr]] = {
    "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b,
    "min": min_, "max": max_,
}


class Trace:
    """The operations on expressions that are asked for from outside of the algebra, each once."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.asked = 0
        self._inside = False
        self._numbers: dict[Expr, int] = {}
        self._seen: set[Step] = set()

    def wrap(self, name: str, plain: Callable[..., Expr]) -> Callable[..., Expr]:
        """`plain` with a note of each call."""

        def noted(*args: Any) -> Expr:
            if self._inside:
                return plain(*args)
            self._inside = True
            try:
                result = plain(*args)
            finally:
                self._inside = False
            self.asked += 1
            step = name, tuple([self._operand(as_expr(x)) for x in args])
            if step not in self._seen and any(type(x) is int or not x[0].is_const for x in step[1]):
                self._seen.add(step)
                self._numbers.setdefault(result, len(self.steps))
                self.steps.append(step)
            return result

        return noted

    def _operand(self, e: Expr) -> int | Given:
        return self._numbers.get(e, (e,))

    def install(self) -> None:
        """Note the operations of this process from now on."""
        for method, name in OPERATORS.items():
            noted = self.wrap(name, getattr(Expr, method))
            setattr(Expr, method, noted)
            if name in ("add", "mul"):
                setattr(Expr, method.replace("__", "__r", 1), noted)
        plain = extrema._extremum
        notes = {Min: self.wrap("min", lambda *xs: plain(Min, 1, xs)),
                 Max: self.wrap("max", lambda *xs: plain(Max, -1, xs))}
        extrema._extremum = lambda cls, sign, operands: notes[cls](*operands)  # type: ignore[assignment]


def record(name: str, file: str) -> None:
    """Compile a model for any size, and write the trace."""
    model, args = models.named()[name]()
    import framesmith

    trace = Trace()
    trace.install()
    with torch.no_grad():
        framesmith.compile(model, dynamic=True)(*args)
    Path(file).write_bytes(pickle.dumps(trace.steps))
    print(json.dumps({"asked": trace.asked}))


def replay(file: str) -> None:
    """Make the expressions of a trace anew, with both algebras."""
    import sympy

    steps: list[Step] = pickle.loads(Path(file).read_bytes())
    given = dict.fromkeys(x[0] for _, args in steps for x in args if not isinstance(x, int))
    symbols = dict.fromkeys(s for e in given for s in e.free)
    theirs = {s: sympy.Symbol(f"{s.name}_{k}", integer=True, positive=True if (s.lo or 0) > 0 else None,
                              nonnegative=True if s.lo == 0 else None) for k, s in enumerate(symbols)}
    operators: dict[str, Callable[..., Any]] = {
        "add": lambda a, b: a + b, "mul": lambda a, b: sympy.expand(a * b), "mod": sympy.Mod, "min": sympy.Min,
        "floordiv": lambda a, b: sympy.floor(a / b), "max": sympy.Max,
    }
    leaves = {e: _translated(e, theirs, operators) for e in given}
    gc.collect()
    gc.disable()  # as in a compile
    start = time.process_time()
    ours = _run(steps, {e: e for e in given}, OURS)
    between = time.process_time()
    sympys = _run(steps, leaves, operators)
    end = time.process_time()
    draw = random.Random(0)
    point = {s: (s.lo or 0) + draw.randint(0, 5 if s.hi is None else min(5, s.hi - (s.lo or 0))) for s in symbols}
    there = {theirs[s]: n for s, n in point.items()}
    checked = draw.sample(range(len(steps)), min(200, len(steps)))
    differ = [str(ours[k]) for k in checked if ours[k].evaluate(point) != sympys[k].subs(there)]
    print(json.dumps({"steps": len(steps), "ours": between - start, "sympy": end - between, "differ": differ}))


def _run(steps: list[Step], leaves: dict[Expr, Any], operators: dict[str, Callable[..., Any]]) -> list[Any]:
    made: list[Any] = []
    for name, args in steps:
        made.append(operators[name](*[made[x] if isinstance(x, int) else leaves[x[0]] for x in args]))
    return made


def _translated(e: Expr, symbols: dict[Symbol, Any], operators: dict[str, Callable[..., Any]]) -> Any:
    """The expression in SymPy's terms."""
    import sympy

    if isinstance(e, Symbol):
        return symbols[e]
    if isinstance(e, Int):
        return sympy.Integer(e.value)
    args = [_translated(a, symbols, operators) for a in e.args]
    if isinstance(e, Sum):
        return sympy.Add(e.offset, *(a * k for a, (_, k) in zip(args, e.terms, strict=True)))
    if isinstance(e, Product):
        return sympy.Mul(*args)
    return operators[{FloorDiv: "floordiv", Mod: "mod", Min: "min", Max: "max"}[type(e)]](*args)  # type: ignore[index]


def first_call(dynamic: str) -> None:
    """The first call of BERT, in seconds, and those of its stages."""
    import framesmith
    from framesmith.util import timing

    model, kwargs = capture_cost.bert(small=False)
    with torch.no_grad():
        fast = framesmith.compile(model, dynamic=dynamic == "symbolic")
        start = time.perf_counter()
        fast(**kwargs)
        seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "stages": timing.by_stage(timing.stages())}))


def compiles(rounds: int) -> dict[str, Any]:
    """First calls in turn: seconds of each round by kind of compile and cache, and the stages of the last."""
    found: dict[str, Any] = {f"{kind}, {cache}": [] for cache in ("cold", "warm") for kind in ("static", "symbolic")}
    stages: dict[str, Any] = {}
    for _ in range(rounds):
        for kind in ("static", "symbolic"):
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                for cache in ("cold", "warm"):
                    said = child.report_of("benchmarks.symbolic", "--child", "first_call", kind,
                                           environment=child.caches(Path(folder)))
                    if "error" in said:
                        raise RuntimeError(said["error"])
                    found[f"{kind}, {cache}"].append(said["seconds"])
                    stages[f"{kind}, {cache}"] = said["stages"]
    return {"layers": LAYERS, "seconds": found, "stages": stages}


def algebra(names: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each model."""
    for name in names:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            file, environment = f"{folder}/trace", child.caches(Path(folder))
            said = child.report_of("benchmarks.symbolic", "--child", "record", name, file, environment=environment)
            if "error" not in said:
                said |= child.report_of("benchmarks.symbolic", "--child", "replay", file, environment=environment)
            yield {"model": name, **said}


def speed_rows(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table of expressions: header and rows."""
    header = ["model", "asked for", "different", "framesmith", "SymPy", "times as fast"]
    rows = []
    done = [row for row in results["algebra"] if "error" not in row and row["steps"]]
    for row in done:
        rows.append([row["model"], f"{row['asked']:,}", f"{row['steps']:,}", f"{row['ours'] * 1e3:.1f} ms",
                     f"{row['sympy'] * 1e3:,.0f} ms", f"{row['sympy'] / row['ours']:.0f}×"])
    ratios = [row["sympy"] / row["ours"] for row in done]
    return header, [*rows, ["geometric mean", "", "", "", "", f"{geometric_mean(ratios):.0f}×"]]


def compile_rows(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table of compiles: header and rows."""
    seconds = {key: statistics.median(of) for key, of in results["compiles"]["seconds"].items()}
    rows = [[cache, *(f"{seconds[f'{kind}, {cache}']:.2f} s" for kind in ("static", "symbolic")),
             f"{seconds[f'symbolic, {cache}'] / seconds[f'static, {cache}']:.2f}×"] for cache in ("cold", "warm")]
    return ["cache", "for one size", "for any size", "ratio"], rows


CHILDREN: dict[str, Callable[..., None]] = {"record": record, "replay": replay, "first_call": first_call}


def main() -> Iterator[str]:
    p = argparse.ArgumentParser(prog="python -m benchmarks.symbolic", description="The algebra beside SymPy.")
    p.add_argument("--models", default=",".join(models.named()),
                   help="comma-separated names (none: keep the figures)")
    p.add_argument("--rounds", type=int, default=3, help="compiles of each kind (0: keep the file's figures)")
    p.add_argument("--out", type=Path, default=RESULTS / "symbolic-cpu.json")
    p.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.child:
        CHILDREN[a.child[0]](*a.child[1:])
        return
    rows = []
    for row in algebra([name for name in a.models.split(",") if name]):
        print(row, flush=True)
        rows.append(row)
        if row.get("error") or row.get("differ"):
            yield f"{row['model']}: {row.get('error') or row['differ']}"
    before = json.loads(a.out.read_text()) if a.out.exists() else {}
    results = {"machine": machine.describe(), "date": time.strftime("%Y-%m-%d"),
               "algebra": rows or before["algebra"],
               "compiles": compiles(a.rounds) if a.rounds else before["compiles"]}
    a.out.write_text(json.dumps(results, indent=1) + "\n")
    for header, lines in (speed_rows(results), compile_rows(results)):
        shown = Table(*header)
        for line in lines:
            shown.add_row(*line)
        Console().print(shown)


if __name__ == "__main__":
    raise SystemExit("\n".join(main()) or 0)
