"""`python -m framesmith.bench package.module:builder`: eager against compiled, for a model of the user's.

`builder()` returns the model, or the model and the tuple of its arguments, or these and a dict of keyword arguments.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from framesmith.api import compile  # noqa: A004
from framesmith.inspection import explain


def load(name: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Call the builder `module:function` and return its result as (model, args, kwargs). Raises SystemExit for a name
    that is none."""
    module, _, function = name.partition(":")
    if not function:
        raise SystemExit(f"expected module:builder, got {name!r}")
    sys.path.insert(0, "")
    made = getattr(importlib.import_module(module), function)()
    model, args, kwargs = (*made, {})[:3] if isinstance(made, tuple) and len(made) > 1 else (made, (), {})
    return model, tuple(args) if isinstance(args, tuple | list) else (args,), kwargs


def seconds_of(call: Callable[[], Any], budget: float = 1.0) -> list[float]:
    """Seconds of each call, for about `budget` seconds and at least three calls."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < budget and len(times) < 1000:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def error_between(got: Any, want: Any) -> float:
    """The largest difference of any two tensors, relative to the largest element. NaN where a result is not finite in
    one alone."""
    pairs = zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True)
    worst = [float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30))
             for a, b in pairs if isinstance(a, torch.Tensor) and a.numel()]
    return max(worst, default=0.0)


def measure(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
            budget: float = 1.0) -> dict[str, float]:
    """Eager and compiled milliseconds, the first compiled call's seconds, graphs, breaks, error. Inference,
    interleaved."""
    if isinstance(model, nn.Module):
        model.eval()
    with torch.no_grad():
        want = model(*args, **kwargs)
        fast = compile(model)
        start = time.perf_counter()
        got = fast(*args, **kwargs)
        cold = time.perf_counter() - start
        eager, ours = [], []
        for _ in range(5):
            eager += seconds_of(lambda: model(*args, **kwargs), budget / 5)
            ours += seconds_of(lambda: fast(*args, **kwargs), budget / 5)
        told = explain(model)(*args, **kwargs)
    slow, quick = statistics.median(eager), statistics.median(ours)
    return {
        "eager ms": 1e3 * slow, "compiled ms": 1e3 * quick, "speed-up": slow / quick, "first call s": cold,
        "graphs": told.graph_count, "breaks": told.break_count, "error": error_between(got, want),
    }


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m framesmith.bench", description=__doc__)
    parser.add_argument("builder", help="module:function that returns the model and its arguments")
    parser.add_argument("--seconds", type=float, default=1.0, help="time spent on each of eager and compiled")
    options = parser.parse_args(argv)
    for name, value in measure(*load(options.builder), options.seconds).items():
        print(f"{name:>14}  {value:.3g}")


if __name__ == "__main__":
    main()
