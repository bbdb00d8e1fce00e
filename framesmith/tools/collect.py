"""The facts of a report, as plain JSON data, from the stream of events and from live graphs and variants."""

from __future__ import annotations

import linecache
import os
import platform
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from framesmith.compiler import FrameCompiler
from framesmith.pipeline import Generated
from framesmith.runtime.cache import Cache
from framesmith.util import events
from framesmith.util.events import (
    CacheLookup,
    Captured,
    CompileBegan,
    CompileEnded,
    Event,
    Fallback,
    GraphBreak,
    GraphCompiled,
    Operator,
    Recompile,
    UnrolledLoop,
)
from framesmith.util.stack import Place

Facts = dict[str, Any]
GUARDS = 40
"""The maximal number of guards of a variant that are listed; the others are counted."""


def collect(compilers: Iterable[FrameCompiler], given: Sequence[Event] | None = None) -> Facts:
    """Collect the facts of the whole process, as far as events are kept, or of the events `given`."""
    happened = events.recent() if given is None else list(given)
    compiles = _compiles(happened)
    graphs = [_graph(e) for e in happened if isinstance(e, GraphCompiled)]
    cache = [_lookup(e) for e in happened if isinstance(e, CacheLookup)]
    stages: dict[str, float] = defaultdict(float)
    for c in compiles:
        for name, seconds in c["stages"].items():
            stages[name] += seconds
    fallbacks = _fallbacks([e for e in happened if isinstance(e, Fallback)])
    recompiles = _recompiles([e for e in happened if isinstance(e, Recompile)])
    breaks = _breaks([e for e in happened if isinstance(e, GraphBreak)], compiles)
    loops = _fallbacks([e for e in happened if isinstance(e, UnrolledLoop)])
    variants = variants_of(compilers, {c["number"]: c for c in compiles})
    return {
        "format": "framesmith report 1", "when": time.strftime("%Y-%m-%d %H:%M:%S"), "program": " ".join(sys.argv),
        "machine": _machine(), "dropped": events.dropped(),
        "totals": {
            "seconds": sum(c["seconds"] for c in compiles), "compiles": len(compiles),
            "graphs": len(graphs), "operators": sum(len(g["operators"]) for g in graphs),
            "kernels": sum(len(g["kernels"]) for g in graphs), "calls": sum(len(g["externs"]) for g in graphs),
            "breaks": sum(b["count"] for b in breaks), "recompiles": sum(r["count"] for r in recompiles),
            "fallbacks": sum(f["count"] for f in fallbacks),
            "unrolled": sum(row["count"] for row in loops),
            "variants": len(variants), "uses": sum(v["uses"] for v in variants),
            "constants": sum(g["constants"] for g in graphs),
            "hits": sum(c["hit"] for c in cache), "misses": sum(not c["hit"] for c in cache),
        },
        "stages": dict(stages), "compiles": compiles, "graphs": graphs, "breaks": breaks, "recompiles": recompiles,
        "fallbacks": fallbacks, "loops": loops, "variants": variants, "cache": cache, "measured": None,
    }


def source_line(file: str, line: int) -> str:
    """Return the text of a line of the user's program, or ""."""
    return linecache.getline(file, line).strip()


def _place(file: str, line: int, function: str) -> Facts:
    return {"file": file, "line": line, "function": function, "source": source_line(file, line)}


def _machine() -> Facts:
    devices = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())] \
        if torch.cuda.is_initialized() else []
    return {"processor": _processor(), "threads": torch.get_num_threads(), "devices": devices,
            "python": platform.python_version(), "torch": torch.__version__, "process": os.getpid()}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")),
                        platform.machine())
    except OSError:
        return platform.machine()


# ------------------------------------------------------------------------------------------------------------- compiles


def _compiles(happened: Sequence[Event]) -> list[Facts]:
    """Return each compile that has ended, with the time of each of its stages."""
    began = {e.compile: e for e in happened if isinstance(e, CompileBegan)}
    captured = {e.compile: e for e in happened if isinstance(e, Captured)}
    first = min([e.at for e in happened], default=0.0)
    out = []
    for end in happened:
        if not isinstance(end, CompileEnded):
            continue
        found, start = captured.get(end.compile), began.get(end.compile)
        spans = [{"stage": s.stage, "start": s.start, "seconds": s.seconds, "depth": s.depth}
                 for s in sorted(end.spans, key=lambda s: (s.start, s.depth))]
        out.append({
            "number": end.compile, **_place(end.file, end.line, end.function),
            "why": start.why if start is not None else "", "outcome": end.outcome,
            "began": end.at - end.seconds - first, "seconds": end.seconds,
            "guards": found.guards if found else 0, "instructions": found.instructions if found else 0,
            "stages": _own_seconds(spans), "spans": spans,
        })
    return sorted(out, key=lambda c: c["began"])


def _own(span: Facts) -> str:
    """Return the stage to which a span's own time, outside nested spans, belongs."""
    return "capture" if span["stage"] == "total" else str(span["stage"])


def _own_seconds(spans: Sequence[Facts]) -> dict[str, float]:
    """Return the seconds of each stage without nested ones."""
    out: dict[str, float] = defaultdict(float)
    stack: list[Facts] = []
    for span in spans:
        while stack and span["depth"] <= stack[-1]["depth"]:
            stack.pop()
        out[_own(span)] += span["seconds"]
        if stack:
            out[_own(stack[-1])] -= span["seconds"]
        stack.append(span)
    return {name: max(seconds, 0.0) for name, seconds in out.items()}


# --------------------------------------------------------------------------------------------------------------- graphs


def code_of(graph: GraphCompiled | Facts) -> Generated | None:
    """Return the code of a graph, as the cache has it; None where it has not, or not any more."""
    folder, key = (graph["folder"], graph["key"]) if isinstance(graph, dict) else (graph.folder, graph.key)
    if not folder:
        return None
    found = Cache(folder).load(key)
    return found if isinstance(found, Generated) else None


def _graph(e: GraphCompiled) -> Facts:
    code = code_of(e)
    symbols = dict(zip(_symbols(code), e.values))
    return {
        "number": e.number, "compile": e.compile, "part": e.part or "inference", "name": e.name, "device": e.device,
        "operators": [{"name": o.name, "bytes": o.bytes, **(_shown(o.place))} for o in e.operators],
        "memory": {"eager": _eager_memory(e.operators), "given": e.given,
                   "planned": [] if code is None else [x.evaluate(symbols) for x in code.memory]},
        "kernels": _kernels(e, code, symbols), "externs": _externs(e),
        "steps": [] if code is None else [list(step) for step in code.plan.steps],
        "constants": e.constants, "key": e.key, "folder": e.folder, "library": e.library, "values": list(e.values),
        "sizes": {str(s): v for s, v in symbols.items()}, "seconds": None,
    }


def _symbols(code: Generated | None) -> list[Any]:
    return list(code.symbols) if code is not None else []


def _shown(place: Place | None) -> Facts:
    return _place(*place) if place is not None else _place("", 0, "")


def _eager_memory(operators: Sequence[Operator]) -> list[int]:
    """Bytes of results that are alive behind each operator, if they ran one by one."""
    dying: Counter[int] = Counter()
    for k, o in enumerate(operators):
        dying[max(o.last, k)] += o.bytes
    alive, out = 0, []
    for k, o in enumerate(operators):
        alive += o.bytes
        out.append(alive)
        alive -= dying[k]
    return out


def _kernels(e: GraphCompiled, code: Generated | None, symbols: Facts) -> list[Facts]:
    launches = Counter(n for what, n in code.plan.steps if what == "kernel") if code is not None else Counter()
    out = []
    for k, work in enumerate(e.work):
        facts = code.kernels[k] if code is not None else None
        fits = facts is not None and all(s in symbols for s in (*facts.bytes.free, *facts.operations.free))
        out.append({
            "number": k, "name": facts.name if facts else f"k{k}", "launches": launches[k] if code else 1,
            "work": [{"place": place, "operators": operators} for place, operators in work],
            "bytes": facts.bytes.evaluate(symbols) if facts and fits else None,
            "operations": facts.operations.evaluate(symbols) if facts and fits else None,
            "code": facts.text if facts else "", "seconds": None, "share": None, "bound": None,
        })
    return out


def _externs(e: GraphCompiled) -> list[Facts]:
    return [{"number": k, "name": name, "work": [{"place": place, "operators": name}], "bytes": None,
             "operations": None, "seconds": None, "share": None, "bound": None}
            for k, (name, place) in enumerate(e.externs)]


# ----------------------------------------------------------------------------- breaks, recompiles, fallbacks, cache


def _breaks(found: Sequence[GraphBreak], compiles: Sequence[Facts]) -> list[Facts]:
    """Return breaks by reason, with the compile time of their continuations in the same function."""
    behind: dict[Any, float] = defaultdict(float)
    for c in compiles:
        if c["why"] == "after a break":
            behind[c["file"], c["function"]] += c["seconds"]
    owner = {c["number"]: (c["file"], c["function"]) for c in compiles}
    shares = Counter(owner.get(e.compile) for e in found)
    groups: dict[str, Facts] = {}
    for e in found:
        group = groups.setdefault(e.reason, {"reason": e.reason, "remedy": e.remedy, "count": 0, "places": [],
                                             "compile_seconds": 0.0, "call_seconds": None, "compiles": []})
        group["count"] += 1
        group["compiles"].append(e.compile)
        frame = owner.get(e.compile)
        group["compile_seconds"] += behind[frame] / shares[frame] if frame is not None else 0.0
        _count_place(group["places"], _place(e.file, e.line, e.function))
    return sorted(groups.values(), key=lambda g: -g["count"])


def _count_place(places: list[Facts], place: Facts) -> None:
    known = next((p for p in places if {**p, "count": 0} == {**place, "count": 0}), None)
    if known is None:
        places.append({**place, "count": 1})
    else:
        known["count"] += 1


def _recompiles(found: Sequence[Recompile]) -> list[Facts]:
    """Return recompiles, grouped by guard and change."""
    out: dict[Any, Facts] = {}
    for e in found:
        row = out.setdefault((e.file, e.line, e.function, e.guard, e.kind, e.old, e.new), {
            **_place(e.file, e.line, e.function), "guard": e.guard, "kind": e.kind, "text": e.text, "old": e.old,
            "new": e.new, "assumed": _shown(e.assumed) if e.assumed else None, "remedy": e.remedy, "count": 0})
        row["count"] += 1
    return list(out.values())


def _fallbacks(found: Sequence[Fallback | UnrolledLoop]) -> list[Facts]:
    """Return what runs in eager, or is unrolled, by place and reason."""
    out: dict[Any, Facts] = {}
    for e in found:
        row = out.setdefault((e.file, e.line, e.function, e.reason), {
            **_place(e.file, e.line, e.function), "reason": e.reason, "remedy": e.remedy, "count": 0,
            **({"internal": e.internal} if isinstance(e, Fallback)
               else {"cause": _shown(e.cause) if e.cause else None})})
        row["count"] += 1
    return list(out.values())


def _lookup(e: CacheLookup) -> Facts:
    return {"what": e.what, "key": e.key, "hit": e.hit, "reason": e.reason, "compile": e.compile}


def variants_of(compilers: Iterable[FrameCompiler], compiles: dict[int, Facts]) -> list[Facts]:
    """Return the variants that are alive, or whose last use is known, with how often calls took them."""
    out = []
    for use in sorted({u.compile: u for compiler in compilers for u in compiler.uses()}.values(),
                      key=lambda u: u.compile):
        out.append({**_place(use.file, use.line, use.function), "compile": use.compile, "uses": use.uses,
                    "alive": use.alive, "guards": use.guards[:GUARDS], "guard_count": len(use.guards),
                    "known": use.compile in compiles})
    return out
