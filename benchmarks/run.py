"""Measure models against peers: one row a model, one record a peer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

import framesmith
from benchmarks import cold, models, peers
from framesmith.tools.interleaved import interleaved

Report = Callable[[str], None]
REST = 0.1
"""Seconds before each contender's turn: threads of ONNX Runtime and OpenVINO poll after a call, the former 40 ms, on
processors that the next one needs."""


def relative_error(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """In the Frobenius norm, in float64; infinite for NaN, which never passes."""
    wide = expected.double()
    error = (wide - actual.double()).norm().item() / (wide.norm().item() or 1.0)
    return math.inf if math.isnan(error) else error


def error_against(expected: Any, actual: Any) -> float:
    """Largest relative error over the tensors of two outputs."""
    pairs = zip(peers.flat_tensors(expected), peers.flat_tensors(actual), strict=True)
    return max((relative_error(e, a) for e, a in pairs), default=0.0)


def failure(problem: Exception) -> dict[str, str]:
    """What the row of a contender that raised holds: a peer's failure is a result, whatever it raises."""
    return {"failed": f"{type(problem).__name__}: {problem}".splitlines()[0][:200]}


def timed(calls: dict[str, peers.Call], rounds: int, rows: dict[str, dict[str, Any]]) -> None:
    """Add the interleaved times of `calls`, and their ratios to eager's, to `rows`."""
    for name, timing in interleaved(calls, rounds, rest=REST).items():
        rows[name] |= {"seconds": timing.median, "low": timing.low, "high": timing.high}
    for name in calls:
        rows[name]["speedup"] = rows["eager"]["seconds"] / rows[name]["seconds"]


def _prepare(names: Iterable[str], model: Any, args: tuple[Any, ...], expected: Any, rows: dict[str, dict[str, Any]],
             report: Report) -> dict[str, peers.Call]:
    """Callables of the peers that work; what fails is recorded in `rows`."""
    calls = {}
    for name in names:
        if not peers.takes(name, model):
            continue
        report(name)
        rows[name] = {}
        try:
            call = peers.build(name, model, args)
            out = call()
            if peers.flat_tensors(out):
                rows[name]["error"] = error_against(expected, out)
            calls[name] = call
        except Exception as problem:
            rows[name] |= failure(problem)
    return calls


def waited_for(call: peers.Call) -> peers.Call:
    """The call until the device is done: PyTorch's return before, JAX's does not."""
    def done() -> Any:
        out = call()
        torch.cuda.synchronize()
        return out

    return done


def measure(
    model_name: str, names: list[str], *, rounds: int = 15, cold_start: bool = True, device: str = "cpu",
    report: Report = lambda _: None
) -> dict[str, Any]:
    """All figures of one model: times, ratios to eager, errors, first calls, and framesmith's graphs and breaks."""
    model, args = models.named()[model_name]()
    if device != "cpu":
        model, args = model.to(device), tree_map_only(torch.Tensor, lambda x: x.to(device), args)
    rows: dict[str, dict[str, Any]] = {}
    with torch.inference_mode():
        expected = model(*args)
        calls = _prepare(names, model, args, expected, rows, report)
        report("timing")
        timed(calls if device == "cpu" else {n: waited_for(c) for n, c in calls.items()}, rounds, rows)
        if "framesmith" in calls:
            found = framesmith.explain(model)(*args)
            rows["framesmith"] |= {"graphs": found.graph_count, "breaks": found.break_count}
    if cold_start:
        for name in names:
            if name != "eager" and "failed" not in rows.get(name, {"failed": ""}):
                report(f"first call, {name}")
                first, warm = cold.cold_and_warm(model_name, name, again=name in cold.KEPT)
                rows[name] |= {"cold": first.get("seconds"), "warm": warm.get("seconds")}
    return {"model": model_name, "peers": rows}


def ablate(model_name: str, *, rounds: int = 15, report: Report = lambda _: None) -> dict[str, Any]:
    """Speed-up over eager with each option turned off in turn."""
    model, args = models.named()[model_name]()
    with torch.inference_mode():
        calls = {"eager": peers.build("eager", model, args)}
        for name, options in peers.ABLATIONS.items():
            report(name)
            framesmith.reset()
            calls[name] = peers.build("framesmith", model, args, **options)
            calls[name]()
        times = interleaved(calls, rounds)
    base = times["eager"].median
    return {"model": model_name, "ablation": {n: base / t.median for n, t in times.items() if n != "eager"}}


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; nan for none."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
