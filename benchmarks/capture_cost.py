"""What capture and its guards cost, beside torch.compile in the same run.

    python -m benchmarks.capture_cost [--small] [--total] [--out FILE]

Kernels are left out: the back end of both answers with outputs computed before, so a call is hook, guards and residual
code alone. `--total` adds the whole first call with each one's own back end, its cache empty. `--small`: a narrow BERT
of the same depth.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import framesmith
from benchmarks import machine, models
from framesmith import _C
from framesmith.util import timing

RESULTS = Path(__file__).parent / "results"
LAYERS = 12
AIMS = {
    "guards, two tensors (us)": 1.0,
    "guards, BERT (us)": 15.0,
    "call over its kernel, two tensors (us)": 2.0,
    "capture, BERT (s)": 0.4,
}


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


def bert(small: bool) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A real BertModel of twelve layers with random weights, in eval mode, and its inputs."""
    models.declare_torchvision_operators()
    import transformers  # after the operators that its imports look for

    narrow = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}
    config = transformers.BertConfig(num_hidden_layers=LAYERS, **(narrow if small else {}))
    torch.manual_seed(0)
    return transformers.BertModel(config).eval(), {"input_ids": torch.arange(16).reshape(1, 16)}


class Answering:
    """A back end whose graphs answer with what they gave once."""

    def __init__(self) -> None:
        self.kernel: Callable[..., Any] | None = None
        self.inputs: list[Any] = []

    def __call__(self, gm: Any, inputs: Any) -> Callable[..., Any]:
        out = gm(*inputs)
        self.kernel = lambda *args: out
        self.inputs = list(inputs)
        return self.kernel


def microseconds(call: Callable[[], Any], rounds: int = 40, seconds: float = 0.02) -> float:
    """The best of `rounds` means."""
    call()
    start = time.perf_counter()
    call()
    number = max(1, int(seconds / rounds * 20 / max(time.perf_counter() - start, 1e-7)))
    best = float("inf")
    gc.disable()
    try:
        for _ in range(rounds):
            start = time.perf_counter()
            for _ in range(number):
                call()
            best = min(best, (time.perf_counter() - start) / number)
    finally:
        gc.enable()
    return best * 1e6


def _codes(fn: Any) -> list[Any]:
    """The code of a function and of what its decorators wrap."""
    out = []
    while fn is not None:
        out.append(fn.__code__)
        fn = getattr(fn, "__wrapped__", None)
    return out


# --- the two compilers, by the same five questions ---

class Ours:
    name = "framesmith"

    def compile(self, model: Any, backend: Any) -> Any:
        return framesmith.compile(model, backend=backend)

    def reset(self) -> None:
        framesmith.reset()

    def guards(self, compiled: Any, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """The check of the variant that the last call made."""
        root = compiled._framesmith_call.function if isinstance(original, torch.nn.Module) else original
        entry = _C.entries(root)[0]
        f_locals = {"args": args,
                    "kwargs": kwargs} if root is not original else dict(zip(root.__code__.co_varnames, args,
                                                                            strict=False))
        cells = dict(zip(root.__code__.co_freevars, root.__closure__ or (), strict=True))
        check, f_globals, f_builtins = entry.tree.check, root.__globals__, root.__builtins__
        if check(f_locals, f_globals, f_builtins, cells) is None:
            raise RuntimeError("the guards do not hold")
        return lambda: check(f_locals, f_globals, f_builtins, cells)

    def native(self) -> str:
        return "native"


class Peer:
    name = "torch.compile"

    def compile(self, model: Any, backend: Any) -> Any:
        return torch.compile(model, backend=backend, dynamic=False)

    def reset(self) -> None:
        torch._dynamo.reset()

    def guards(self, compiled: Any, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        module = isinstance(original, torch.nn.Module)
        for code in _codes(type(original).forward if module else original):
            entries = torch._C._dynamo.eval_frame._debug_get_cache_entry_list(code)
            if entries:
                break
        else:
            raise RuntimeError("no cache entry")
        f_locals = {"self": original, "args": args,
                    "kwargs": kwargs} if module else dict(zip(code.co_varnames, args, strict=False))
        check = entries[0].guard_manager.check
        if not check(f_locals):
            raise RuntimeError("the guards do not hold")
        return lambda: check(f_locals)

    def native(self) -> str:
        return "inductor"


def _guards(one: Any, compiled: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | str:
    try:
        return microseconds(one.guards(compiled, model, args, kwargs))
    except (AttributeError, RuntimeError) as problem:  # the peer's inner names are its own
        return f"{type(problem).__name__}: {problem}"


def figures(one: Any, small: bool, total: bool) -> dict[str, Any]:
    """All figures of one compiler."""
    row: dict[str, Any] = {}
    a, b = torch.randn(4), torch.randn(4)
    answering = Answering()
    fast = one.compile(add, answering)
    fast(a, b)
    kernel, inputs = answering.kernel, answering.inputs
    row["guards, two tensors (us)"] = _guards(one, fast, add, (a, b), {})
    row["call over its kernel, two tensors (us)"] = (microseconds(lambda: fast(a, b))
                                                     - microseconds(lambda: kernel(*inputs)))
    model, kwargs = bert(small)
    seconds, capture = [], []
    for _ in range(7):
        one.reset()
        gc.collect()
        timing.reset()
        fast = one.compile(model, Answering())
        start = time.perf_counter()
        fast(**kwargs)
        seconds.append(time.perf_counter() - start)
        stages = timing.stages()
        capture.append(stages.get("total", 0.0) - stages.get("back end", 0.0))
    row["guards, BERT (us)"] = _guards(one, fast, model, (), kwargs)
    row["call without its kernels, BERT (us)"] = microseconds(lambda: fast(**kwargs))
    row["first call without a back end, BERT (s)"] = statistics.median(seconds)
    row["the very first one (s)"] = seconds[0]
    if any(capture):
        row["capture, BERT (s)"] = statistics.median(capture)
    if total:
        one.reset()
        start = time.perf_counter()
        one.compile(model, one.native())(**kwargs)
        row["first call with its own back end, BERT (s)"] = time.perf_counter() - start
    return row


def table(rows: dict[str, dict[str, Any]]) -> Table:
    """A rich table: a line a figure, a column a compiler, and what is aimed at."""
    made = Table(title=f"what capture costs ({LAYERS}-layer BERT; kernels left out)")
    made.add_column("")
    for name in rows:
        made.add_column(name, justify="right")
    made.add_column("aim", justify="right")
    for figure in dict.fromkeys(figure for row in rows.values() for figure in row):
        cells = [row.get(figure) for row in rows.values()]
        texts = [f"{c:.2f}" if isinstance(c, float) else "–" if c is None else "fails" for c in cells]
        made.add_row(figure, *texts, f"≤ {AIMS[figure]:g}" if figure in AIMS else "")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--total", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "capture-cost.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, torch.no_grad():
        os.environ |= {"FRAMESMITH_CACHE_DIR": f"{folder}/framesmith", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        rows = {one.name: figures(one, options.small, options.total) for one in (Ours(), Peer())}
    result = {"date": time.strftime("%Y-%m-%d"), "machine": machine.describe(), "load": os.getloadavg()[0],
              "small": options.small,
              "layers": LAYERS, "aims": AIMS, "figures": rows}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    Console().print(table(rows))


if __name__ == "__main__":
    main()
