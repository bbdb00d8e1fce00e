"""Measurements for a report: of kernels and operators on synthetic data, of the machine, and of a call against
eager."""

from __future__ import annotations

import ctypes
import functools
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_leaves

from framesmith.runtime.load import load
from framesmith.runtime.plan import Call, Dyn, Integer, Kind, Plan, PlanValue, TensorArg
from framesmith.symbolic.expr import Expr, as_expr
from framesmith.tools.collect import Facts, code_of
from framesmith.tools.shapes import FLOPS
from framesmith.util.state_restored import state_restored

RUNS = 20
KNOWN = frozenset({"aten", "mkldnn", "framesmith", "prims"})
"""Namespaces of operators that may be called on synthetic data."""


def measure_graphs(facts: Facts) -> None:
    """Add to each graph's kernels and calls their seconds and their fraction of the machine's rate, and to each graph
    its seconds; or `unmeasured`, the reason why not."""
    with state_restored(None), torch.no_grad():
        trials = [trial for graph in facts["graphs"] if (trial := _trial(graph)) is not None]
        devices = {t.device for t in trials}
        seconds = _profiled([t.call for t in trials], [n for t in trials for n in t.names], "cuda" in devices)
        rates = {device: Rates(device) for device in sorted(devices)}
        for trial in trials:
            _note(trial, seconds, rates[trial.device])
    facts["measured"] = {**(facts["measured"] or {}), "rates": {d: r.facts() for d, r in rates.items()}}


@dataclass(frozen=True, slots=True)
class _Trial:
    """A graph that can be called on synthetic data; `names` of its steps."""

    graph: Facts
    plan: Plan
    table: list[int]
    call: Callable[[], Any]
    names: list[str]
    device: str


def _trial(graph: Facts) -> _Trial | None:
    """Prepare a graph for measurement, or return the reason why not."""
    code = code_of(graph)
    if code is None or not Path(graph["library"]).exists():
        graph["unmeasured"] = "its code is not in the cache" if graph["folder"] else "it has no code of framesmith's"
        return None
    plan = code.plan
    foreign = [str(e.name) for e in plan.externs if not isinstance(e.name, str) or e.name.split("::")[0] not in KNOWN]
    if foreign:
        graph["unmeasured"] = f"it calls {foreign[0]}, which is the program's own"
        return None
    names = [f"step {k} of graph {graph['number']}" for k in range(len(plan.steps))]
    device = "cuda" if plan.device >= 0 else "cpu"
    try:
        table = _table(plan, graph["library"], graph["values"])
        given, constants = _memory(plan, table)
        compiled = load(replace(plan, watched=()), Path(graph["library"]), constants)
        compiled.name(f"graph {graph['number']} as a whole", names)
        call = functools.partial(compiled, given)
        for _ in range(3):
            call()
        graph["seconds"] = _least_seconds(call, device)
    except Exception as problem:  # an operator may refuse data that is made up
        graph["unmeasured"] = f"{type(problem).__name__}: {problem}".partition("\n")[0]
        return None
    return _Trial(graph, plan, table, call, names, device)


def _note(trial: _Trial, seconds: Mapping[str, float], rates: Rates) -> None:
    spent: dict[tuple[str, int], float] = defaultdict(float)
    for (what, number), name in zip(trial.plan.steps, trial.names):
        spent[what, number] += seconds.get(name, 0.0)
    for row in trial.graph["kernels"]:
        _rate(row, spent.get(("kernel", row["number"])), row["launches"], rates)
    for row, extern in zip(trial.graph["externs"], trial.plan.externs):
        row["bytes"], row["operations"] = _cost(extern, trial.plan, trial.table)
        _rate(row, spent.get(("call", row["number"])), 1, rates)


def _rate(row: Facts, seconds: float | None, launches: int, rates: Rates) -> None:
    """Record the seconds of all launches, and the lower bound of their time as a fraction."""
    row["seconds"] = seconds
    if not seconds or row["bytes"] is None:
        return
    moving = launches * row["bytes"] / rates.bytes(row["bytes"])
    computing = launches * (row["operations"] or 0) / rates.operations
    row["share"] = max(moving, computing) / seconds
    row["bound"] = "memory" if moving >= computing else "arithmetic"


# ------------------------------------------------------------------------------------------------- memory made up


def _table(plan: Plan, library: str, values: Sequence[int]) -> list[int]:
    """Return the integer table of a call whose size symbols have these values, as generated code computes it."""
    table = (ctypes.c_int64 * max(plan.table, 1))(*values)
    if plan.table:
        getattr(ctypes.CDLL(library), plan.entry + "_sizes")(table)
    return list(table)


def _memory(plan: Plan, table: Sequence[int]) -> tuple[tuple[Any, ...], list[torch.Tensor]]:
    """Inputs and constants like those of the call: random numbers, and zeros for integers, which may be indices."""
    device = torch.device("cuda", plan.device) if plan.device >= 0 else torch.device("cpu")
    given: list[Any] = [None] * plan.inputs
    constants: dict[int, torch.Tensor] = {}
    for number, value in enumerate(plan.values):
        if value.kind is Kind.INPUT:
            where = torch.device("cpu") if number in plan.numbers else device
            given[_int(value.ref, table)] = _random(value, table, where)
        elif value.kind is Kind.CONSTANT:
            constants[_int(value.ref, table)] = _random(value, table, device)
    for k, symbol in enumerate(plan.symbols):
        if symbol.dim < 0:
            given[symbol.input] = table[k]
        elif given[symbol.input] is None:  # its size alone is read
            sizes = {s.dim: table[i] for i, s in enumerate(plan.symbols) if s.input == symbol.input}
            given[symbol.input] = torch.empty([sizes.get(d, 1) for d in range(max(sizes) + 1)], device="meta")
    return tuple(given), [constants[k] for k in range(plan.constants)]


def _random(value: PlanValue, table: Sequence[int], device: torch.device) -> torch.Tensor:
    size, stride = ([_int(n, table) for n in ns] for ns in (value.size, value.stride))
    made = torch.empty_strided(size, stride, dtype=value.dtype, device=device)
    return made.normal_() if value.dtype.is_floating_point or value.dtype.is_complex else made.zero_()


def _int(value: Integer, table: Sequence[int]) -> int:
    return table[value.index] if isinstance(value, Dyn) else value


def _cost(extern: Call, plan: Plan, table: Sequence[int]) -> tuple[int, int]:
    """Bytes that a call of an operator reads and writes, and its multiplications and additions."""

    def tensor(number: int) -> torch.Tensor:
        return torch.empty([_int(n, table) for n in plan.values[number].size], dtype=plan.values[number].dtype,
                           device="meta")

    def stand_in(arg: Any) -> Any:
        if isinstance(arg, TensorArg):
            return SimpleNamespace(meta={"val": tensor(arg.value)})
        return [stand_in(a) for a in arg] if isinstance(arg, (tuple, list)) else arg

    results = [tensor(r if r >= 0 else -2 - r) for r in extern.results if r != -1]
    args = [stand_in(a) for a in (*extern.args, *extern.kwargs.values())]
    read = [a.meta["val"] for a in tree_leaves(args) if isinstance(a, SimpleNamespace)]
    namespace, _, name = str(extern.name).partition("::")
    row = FLOPS.get(getattr(getattr(torch.ops, namespace), name, None))
    val: Any = results[0] if results else next(reversed(read), None)
    operations: Expr = as_expr(0)
    if row is not None and val is not None:
        target = getattr(getattr(torch.ops, namespace), name)
        node: Any = SimpleNamespace(args=args, meta={"val": val}, target=target)
        operations = row(node, lambda x: tuple(map(as_expr, x.shape)))
    return sum(x.numel() * x.element_size() for x in (*read, *results)), operations.evaluate({})


# ------------------------------------------------------------------------------------------------------------- times


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _lower(times: Sequence[float]) -> float:
    """Return the lower quartile, since the machine may be shared."""
    return sorted(times)[len(times) // 4]


def _seconds(call: Callable[[], Any], device: str, budget: float = 0.2, least: int = 5) -> float:
    times: list[float] = []
    while len(times) < least or sum(times) < budget and len(times) < 1000:
        start = time.perf_counter()
        call()
        _synchronize(device)
        times.append(time.perf_counter() - start)
    return _lower(times)


def _profiled(calls: Sequence[Callable[[], Any]], names: Sequence[str], on_device: bool) -> dict[str, float]:
    """Return the least seconds of the ranges of these names in the calls; on a CUDA device, those of the device."""
    found: dict[str, list[float]] = defaultdict(list)
    for e in _watched(lambda: [call() for call in calls for _ in range(RUNS)], frozenset(names), on_device):
        found[e.name].append((e.device_time_total if on_device else e.time_range.elapsed_us()) * 1e-6)
    return {name: min(times) for name, times in found.items()}


def _watched(run: Callable[[], Any], names: Collection[str], on_device: bool = False) -> list[Any]:
    """Return the ranges of these names while `run` runs, in order."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]
    with profile(activities=activities) as watched:
        run()
        _synchronize("cuda" if on_device else "cpu")
    return sorted([e for e in watched.events() if e.name in names], key=lambda e: e.time_range.start)


SIDE = 1024
SIZES = tuple(1 << k for k in range(12, 28, 3))


class Rates:
    """The machine's rates, measured when made: bytes per second by how many are moved (caches are faster than memory),
    and operations per second (of a product of float32 matrices)."""

    def __init__(self, device: str) -> None:
        self._copies = {}
        for size in SIZES:
            source = torch.zeros(size // 8, device=device)
            target = torch.empty_like(source)
            self._copies[size] = size / _least_seconds(lambda: target.copy_(source), device)  # noqa: B023
        a = torch.zeros(SIDE, SIDE, device=device)
        out = torch.empty_like(a)
        self.operations = 2 * SIDE**3 / _least_seconds(lambda: torch.mm(a, a, out=out), device)

    def bytes(self, size: int) -> float:
        """Return the bytes per second, if that many are moved."""
        return next((self._copies[s] for s in SIZES if s >= size), self._copies[SIZES[-1]])

    def facts(self) -> Facts:
        return {"bytes": {str(size): rate for size, rate in self._copies.items()}, "operations": self.operations}


def _least_seconds(call: Callable[[], Any], device: str, budget: float = 0.03, least: int = 10) -> float:
    """Return the least of some runs, the machine's undisturbed rate."""
    times: list[float] = []
    count = 1 if device == "cpu" else 10
    call()
    while len(times) < least or sum(times) < budget and len(times) < 1000:
        _synchronize(device)
        start = time.perf_counter()
        for _ in range(count):
            call()
        _synchronize(device)
        times.append((time.perf_counter() - start) / count)
    return min(times)


# ------------------------------------------------------------------------------------------------ a call and its breaks


def measure_call(facts: Facts, eager: Callable[[], Any], compiled: Callable[[], Any], model: Any = None) -> None:
    """Time a call against eager, in turns, and what lies between its graphs: the breaks."""
    device = "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu"
    with state_restored(model):
        slow, fast = [], []
        for _ in range(2):
            compiled()
        for _ in range(5):
            slow.append(_seconds(eager, device, 0.1, 3))
            fast.append(_seconds(compiled, device, 0.1, 3))
        between = _between_graphs(compiled, [g["name"] for g in facts["graphs"]])
    seconds = _lower(slow), _lower(fast)
    facts["measured"] = {**(facts["measured"] or {}), "eager": seconds[0], "compiled": seconds[1],
                         "speedup": seconds[0] / seconds[1]}
    by_compile = {g["compile"]: between.get(g["name"], 0.0) for g in facts["graphs"]}
    for group in facts["breaks"]:
        spent = [by_compile[c] for c in dict.fromkeys(group["compiles"]) if c in by_compile]
        group["call_seconds"] = sum(spent) if spent else None


def _between_graphs(call: Callable[[], Any], graphs: Collection[str]) -> dict[str, float]:
    """Seconds from the end of each graph to the beginning of the next of the call: guards, Python, and what broke the
    graph."""
    whole = "a call as a whole"

    def run() -> None:
        for _ in range(RUNS):
            with record_function(whole):
                call()

    gaps: dict[str, list[float]] = defaultdict(list)
    once: dict[str, float] = {}
    ranges = _watched(run, {whole, *graphs})
    for one, following in zip(ranges, [*ranges[1:], None]):
        if one.name != whole and following is not None and following.name != whole:
            gap = max(following.time_range.start - one.time_range.end, 0.0) * 1e-6
            once[one.name] = once.get(one.name, 0.0) + gap
        if following is None or following.name == whole:
            for name, spent in once.items():
                gaps[name].append(spent)
            once = {}
    return {name: _lower(times) for name, times in gaps.items()}

