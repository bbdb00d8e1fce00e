"""One model over many sizes: compiles, seconds that the first pass over the sizes takes, and times a call.

    python -m benchmarks.dynamic [--models NAME,...] [--rounds N] [--out FILE]

Contenders in one process: eager; framesmith and torch.compile as they are by default, each compiled once and called
with the sizes in one random order; framesmith with `dynamic=False` and a variant for each size. Each result of
framesmith is compared with eager's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import machine, models
from benchmarks.child import caches
from benchmarks.measure import interleaved
from benchmarks.run import error_against
from benchmarks.table import geometric_mean

RESULTS = Path(__file__).parent / "results"
TOLERANCE = 1e-3
Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """`about`: the model and its sizes in words; `build` makes the model, `sizes` the inputs of each call."""

    about: str
    build: Callable[[], Any]
    sizes: Callable[[random.Random], list[Inputs]]


def _tokens(count: int, batch: int, length: int, mask: bool) -> Callable[[random.Random], list[Inputs]]:
    def sizes(rng: random.Random) -> list[Inputs]:
        pairs = [(rng.randint(1, batch), rng.randint(1, length)) for _ in range(count)]
        return [{"input_ids": torch.randint(0, 1000, pair),
                 **({"attention_mask": torch.ones(pair, dtype=torch.long)} if mask else {})} for pair in pairs]

    return sizes


def _images(rng: random.Random) -> list[Inputs]:
    return [{"x": torch.randn(rng.randint(1, 4), 3, side, side)} for side in range(64, 256, 16)]


def _bert() -> Any:
    import transformers
    config = transformers.BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                                     intermediate_size=1024, vocab_size=1000)
    return transformers.BertModel(config)


def _gpt2() -> Any:
    import transformers
    config = transformers.GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=1000, use_cache=False)
    return transformers.GPT2Model(config)


def _resnet() -> Any:
    import timm
    return timm.create_model("resnet18")


CASES = {
    "bert": Case("BERT (4 layers, 256 wide), 40 pairs of batch 1…16 and length 1…512", _bert,
                 _tokens(40, 16, 512, True)),
    "gpt2": Case("GPT-2 (4 layers, 256 wide), 20 pairs of batch 1…8 and length 1…256", _gpt2,
                 _tokens(20, 8, 256, False)),
    "resnet18": Case("ResNet-18, 12 resolutions 64…240, batch 1…4", _resnet, _images),
}


def _first(out: Any) -> torch.Tensor:
    return out if isinstance(out, torch.Tensor) else out[0]


def _first_pass(call: Callable[..., Any], sizes: list[Inputs]) -> tuple[float, list[torch.Tensor]]:
    start = time.perf_counter()
    results = [_first(call(**inputs)).clone() for inputs in sizes]
    return time.perf_counter() - start, results


def _times(calls: dict[str, Callable[..., Any]], inputs: Inputs, rounds: int) -> dict[str, float]:
    """The median seconds of a call of each contender."""
    found = interleaved({name: partial(call, **inputs) for name, call in calls.items()}, rounds)
    return {name: timing.median for name, timing in found.items()}


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Measure one case: a row of the results."""
    import torch._dynamo as dynamo

    import framesmith
    from framesmith import compiler

    torch.manual_seed(0)
    model, sizes = case.build().eval(), case.sizes(random.Random(0))
    captured: list[str] = []
    capture = compiler.convert_frame

    def counted(code: Any, *args: Any, **kwargs: Any) -> Any:
        captured.append(code.co_qualname)
        return capture(code, *args, **kwargs)

    compiler.convert_frame = counted
    try:
        with torch.no_grad():
            want = [_first(model(**inputs)) for inputs in sizes]
            ours = framesmith.compile(model)
            seconds, got = _first_pass(ours, sizes)
            compiles = len(captured)
            static = framesmith.compile(model, dynamic=False, options={"max_variants": len(sizes) + 1})
            _first_pass(static, sizes)
            dynamo.reset()
            dynamo.utils.counters.clear()
            peer = torch.compile(model)
            peer_seconds, _ = _first_pass(peer, sizes)
            peer_compiles = dynamo.utils.counters["stats"]["unique_graphs"]
            calls = {"eager": model, "framesmith": ours, "static": static, "torch.compile": peer}
            times = [_times(calls, inputs, rounds) for inputs in sizes]
    finally:
        compiler.convert_frame = capture
    return {
        "about": case.about, "sizes": len(sizes), "error": max(map(error_against, want, got)),
        "framesmith": {"compiles": compiles, "first_pass": seconds},
        "torch.compile": {"compiles": peer_compiles, "first_pass": peer_seconds}, "times": times,
    }


def ratios(row: dict[str, Any], of: str, to: str) -> list[float]:
    """The times of contender `to` in those of `of`, for each size: above one, `of` is faster."""
    return [one[to] / one[of] for one in row["times"]]


HEADER = ["model and sizes", "compiles", "first pass", "against a compile for each size", "against eager", "lowest",
          "torch.compile: compiles", "first pass", "against eager"]


def rows_of(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table: header and rows."""
    rows = []
    for row in results["rows"]:
        ours, peer = row["framesmith"], row["torch.compile"]
        eager = ratios(row, "framesmith", "eager")
        rows.append([row["about"], str(ours["compiles"]), f"{ours['first_pass']:.1f} s",
                     f"{geometric_mean(ratios(row, 'framesmith', 'static')):.2f}×", f"{geometric_mean(eager):.2f}×",
                     f"{min(eager):.2f}×", str(peer["compiles"]), f"{peer['first_pass']:.1f} s",
                     f"{geometric_mean(ratios(row, 'torch.compile', 'eager')):.2f}×"])
    return HEADER, rows


def main() -> Iterator[str]:
    p = argparse.ArgumentParser(prog="python -m benchmarks.dynamic", description="One model over many sizes.")
    p.add_argument("--models", default=",".join(CASES), help="comma-separated names")
    p.add_argument("--rounds", type=int, default=5, help="interleaved rounds for each size")
    p.add_argument("--out", type=Path, default=RESULTS / "dynamic-cpu.json")
    a = p.parse_args()
    models.declare_torchvision_operators()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(caches(Path(folder)))  # each contender begins without a cache
        for name in a.models.split(","):
            rows.append(measure(CASES[name], a.rounds))
            if rows[-1]["error"] > TOLERANCE:
                yield f"{name}: a result differs from eager's by {rows[-1]['error']:.1e}"
            results = {"machine": machine.describe(), "date": time.strftime("%Y-%m-%d"), "rows": rows}
            a.out.write_text(json.dumps(results, indent=1) + "\n")
    header, lines = rows_of(results)
    shown = Table(*header)
    for line in lines:
        shown.add_row(*line)
    Console().print(shown)


if __name__ == "__main__":
    raise SystemExit("\n".join(main()) or 0)
