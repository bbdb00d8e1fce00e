"""`python -m framesmith bench model.py:make`: eager, framesmith and every installed peer, for a model of the user's.

`make()` returns the model, or the model and the tuple of its arguments, or these and a dict of keyword arguments. All
run in inference, in one process and in turn. Caches are empty at first, so a first call has compiled.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from framesmith.inspection import explain
from framesmith.peers import PEERS, Call, Peer, flat_tensors
from framesmith.tools.interleaved import interleaved

Row = dict[str, Any]
_CACHES = {"FRAMESMITH_CACHE_DIR": "framesmith", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_COLOURS = {"eager": "#a0aec0", "framesmith": "#2b6cb0"}
_OTHERS = "#d69e2e"


def function_of(name: str) -> Callable[..., Any]:
    """Return the function that `file.py:function` or `package.module:function` names. Raises SystemExit for a name that
    is none."""
    module, _, function = name.partition(":")
    if not function:
        raise SystemExit(f"expected file.py:function or module:function, got {name!r}")
    sys.path.insert(0, "")
    try:
        if module.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(module).stem, module)
            assert spec is not None and spec.loader is not None
            found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            sys.path.insert(0, str(Path(module).resolve().parent))
            spec.loader.exec_module(found)
        else:
            found = importlib.import_module(module)
        return getattr(found, function)
    except (FileNotFoundError, ModuleNotFoundError, AttributeError) as error:
        raise SystemExit(f"{name}: {error}") from error


def load(name: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Call a builder and return its result as (model, args, kwargs). Raises SystemExit."""
    made = function_of(name)()
    model, args, kwargs = (*made, {})[:3] if isinstance(made, tuple) and len(made) > 1 else (made, (), {})
    return model, tuple(args) if isinstance(args, tuple | list) else (args,), kwargs


def error_between(got: Any, want: Any) -> float | None:
    """Return the largest difference of any two tensors, relative to the largest element; None if `got` has no tensors
    to compare. NaN where a result is not finite in one alone."""
    ours, theirs = flat_tensors(got), flat_tensors(want)
    if len(ours) != len(theirs):
        return None
    worst = [float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30))
             for a, b in zip(ours, theirs) if a.numel()]
    return max(worst, key=lambda e: (math.isnan(e), e), default=0.0)


def measure(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], peers: Mapping[str, Peer],
            rounds: int = 15, seconds: float = 0.05,
            report: Callable[[str], object] = lambda name: None) -> dict[str, Row]:
    """Measure a model beside its peers; returns by contender: seconds of a call (median, low, high of rounds of about
    `seconds` each), speed-up over eager, seconds of the first call, which compiles, and error against eager; or why it
    failed. `report` is told what begins.
    """
    if isinstance(model, nn.Module):
        model.eval()
    rows: dict[str, Row] = {}
    with torch.no_grad():
        want = model(*args, **kwargs)
        calls: dict[str, Call] = {}
        for name, peer in peers.items():
            report(name)
            rows[name] = {"how": peer.how, "weights": peer.weights}
            start = time.perf_counter()
            try:
                call = peer.build(model, args, kwargs)
                got = call()
            except Exception as problem:  # a peer's failure is a result, whatever it raises
                rows[name]["failed"] = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
                continue
            rows[name] |= {"first": time.perf_counter() - start, "error": error_between(got, want)}
            calls[name] = call
        report("timing")
        for name, timing in interleaved(calls, rounds, seconds).items():
            rows[name] |= {"seconds": timing.median, "low": timing.low, "high": timing.high}
        for name in calls:
            rows[name]["speedup"] = rows["eager"]["seconds"] / rows[name]["seconds"]
        if "framesmith" in calls:
            told = explain(model)(*args, **kwargs)
            rows["framesmith"] |= {"graphs": told.graph_count, "breaks": told.break_count}
    return rows


def chosen(only: Iterable[str], more: Iterable[str]) -> dict[str, Peer]:
    """Return the contenders that are installed, or of these `only` some besides eager, and those of the user's:
    `NAME=file.py: function`, where `function(model, args, kwargs)` returns a callable. Raises SystemExit for a name
    that is none."""
    wanted = set(only)
    unknown = wanted - PEERS.keys()
    if unknown:
        raise SystemExit(f"no contender is named {min(unknown)!r}; there are: {'; '.join(PEERS)}")
    found = {name: peer for name, peer in PEERS.items()
             if peer.installed and (not wanted or name in wanted or name == "eager")}
    for text in more:
        name, _, function = text.partition("=")
        found[name] = Peer(function_of(function), function, "")
    return found


# --------------------------------------------------------------------------------------------------------------- output


def table_of(rows: Mapping[str, Row]) -> Table:
    """Return the measurement as a table, the fastest first."""
    table = Table()
    for name in ("contender", "how", "weights"):
        table.add_column(name)
    for name in ("ms", "low – high", "speed-up", "first call s", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, row in _ordered(rows):
        about = (escape(name), escape(row["how"]), row["weights"])
        if "failed" in row:
            table.add_row(*about, "fails")
            continue
        error = "–" if row["error"] is None else f"{row['error']:.0e}"
        table.add_row(*about, f"{1e3 * row['seconds']:.3f}", f"{1e3 * row['low']:.3f} – {1e3 * row['high']:.3f}",
                      f"{row['speedup']:.2f} ×", f"{row['first']:.2f}", error,
                      style="bold" if name == "framesmith" else "")
    return table


def _ordered(rows: Mapping[str, Row]) -> list[tuple[str, Row]]:
    return sorted(rows.items(), key=lambda item: item[1].get("seconds", math.inf))


def plot(rows: Mapping[str, Row], title: str, path: str) -> None:
    """Write a bar for each contender's speed-up, with the range over rounds; the format is that of the file's ending.
    Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    shown = [(name, row) for name, row in _ordered(rows) if "seconds" in row][::-1]
    names = [name for name, _ in shown]
    base = rows["eager"]["seconds"]
    figure = Figure(figsize=(8, 1.2 + 0.4 * len(shown)), layout="constrained")
    axes = figure.subplots()
    values = [row["speedup"] for _, row in shown]
    ranges = [[v - base / row["high"] for v, (_, row) in zip(values, shown)],
              [base / row["low"] - v for v, (_, row) in zip(values, shown)]]
    bars = axes.barh(names, values, xerr=ranges, color=[_COLOURS.get(name, _OTHERS) for name in names],
                     error_kw={"elinewidth": 1, "ecolor": "#4a5568"})
    axes.bar_label(bars, [f"{v:.2f}" for v in values], padding=8, fontsize=9)
    axes.axvline(1.0, color="#4a5568", linestyle="--", linewidth=1)
    axes.set(xlabel="speed-up over eager", title=title, xlim=(0, 1.15 * max(base / row["low"] for _, row in shown)))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> int:
    """Return the command line."""
    parser = argparse.ArgumentParser("python -m framesmith bench", description=__doc__)
    parser.add_argument("builder", help="file.py:function or module:function")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="besides eager; may be repeated")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=FILE:FUNCTION",
                        help="one more: FUNCTION(model, args, kwargs) returns a callable without arguments")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.05, help="of a contender in a round")
    parser.add_argument("--warm", action="store_true", help="with the caches that there are")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", metavar="FILE", help="an .svg, .png or .pdf")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if not options.warm:
            os.environ.update({name: str(Path(folder) / place) for name, place in _CACHES.items()})
        peers = chosen(options.only, options.peer)
        model, args, kwargs = load(options.builder)
        with console.status("") as status:
            rows = measure(model, args, kwargs, peers, options.rounds, options.seconds, status.update)
    console.print(table_of(rows))
    ours = rows.get("framesmith", {})
    if "graphs" in ours:
        console.print(f"framesmith: {ours['graphs']} graphs, {ours['breaks']} breaks; {torch.get_num_threads()} "
                      f"threads, PyTorch {torch.__version__}", highlight=False)
    for name, row in rows.items():
        if "failed" in row:
            console.print(f"{name} fails: {row['failed']}", markup=False, highlight=False)
    absent = [name for name, peer in PEERS.items() if not peer.installed]
    if absent and not options.only:
        console.print(f"not installed: {', '.join(absent)}", highlight=False)
    if options.json is not None:
        about = {"torch": torch.__version__, "threads": torch.get_num_threads(), "builder": options.builder}
        options.json.write_text(json.dumps({**about, "peers": rows}, indent=1) + "\n")
    if options.plot is not None:
        plot(rows, options.builder, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
