"""One model over many sizes: compiles, seconds that the first pass over the sizes takes, and times a call.

    python -m benchmarks.dynamic [--models NAME,...] [--rounds N] [--out FILE]

Contenders in one process: eager; framesmith and torch.compile as they are by default, each compiled once and called
with the sizes in one order; framesmith with `dynamic=False` and a variant for each size that is timed. Each result of
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
    """`about`: the model and its sizes in words; `build` makes the model, `sizes` the inputs of each call. `every`: one
    of so many sizes is timed. `trains`: a call is a step of training, its result a gradient."""

    about: str
    build: Callable[[], Any]
    sizes: Callable[[random.Random], list[Inputs]]
    every: int = 1
    trains: bool = False

    def call(self, model: Any) -> Callable[..., torch.Tensor]:
        """The function of inputs that is timed, around `model` or what a compiler made of it."""
        return partial(_step if self.trains else _inference, model)


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


class _Decoder(torch.nn.Module):
    """One token more of GPT-2, given the keys and values of those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _gpt2()

    def forward(self, input_ids: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        from transformers import DynamicCache
        cache = DynamicCache(list(zip(keys.unbind(), values.unbind())))
        out: torch.Tensor = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True)[0]
        return out


def _cached(rng: random.Random) -> list[Inputs]:
    return [{"input_ids": torch.randint(0, 1000, (1, 1)), "keys": torch.randn(4, 1, 4, length, 64),
             "values": torch.randn(4, 1, 4, length, 64)} for length in range(1, 201)]


def _whisper() -> Any:
    import transformers
    config = transformers.WhisperConfig(
        d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=1024, decoder_ffn_dim=1024, vocab_size=1000, max_source_positions=200, use_cache=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    return transformers.WhisperModel(config)


def _spoken(rng: random.Random) -> list[Inputs]:
    return [{"input_features": torch.randn(2, 80, 400), "decoder_input_ids": torch.randint(0, 1000, (2, length))}
            for length in rng.sample(range(2, 200), 20)]


def _resnet() -> Any:
    import timm
    return timm.create_model("resnet18")


CASES = {
    "bert": Case("BERT (4 layers, 256 wide), 40 pairs of batch 1…16 and length 1…512", _bert,
                 _tokens(40, 16, 512, True)),
    "gpt2": Case("GPT-2 (4 layers, 256 wide), 20 pairs of batch 1…8 and length 1…256", _gpt2,
                 _tokens(20, 8, 256, False)),
    "decode": Case("GPT-2 (4 layers, 256 wide), 200 tokens, each with the cache of those before it", _Decoder, _cached,
                   every=20),
    "whisper": Case("Whisper (2 + 2 layers, 256 wide), 20 lengths 2…200 of the text", _whisper, _spoken),
    "bert-training": Case("BERT (4 layers, 256 wide), forward and backward, 12 pairs of batch 1…8 and length 1…256",
                          _bert, _tokens(12, 8, 256, True), trains=True),
    "resnet18": Case("ResNet-18, 12 resolutions 64…240, batch 1…4", _resnet, _images),
}


def _first(out: Any) -> torch.Tensor:
    return out if isinstance(out, torch.Tensor) else out[0]


def _inference(call: Callable[..., Any], **inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return _first(call(**inputs))


def _step(call: Callable[..., Any], **inputs: torch.Tensor) -> torch.Tensor:
    """The gradient of the first parameter."""
    parameters = list(call.parameters())  # type: ignore[attr-defined]
    for p in parameters:
        p.grad = None
    _first(call(**inputs)).square().mean().backward()
    found: torch.Tensor = parameters[0].grad
    return found


def _first_pass(call: Callable[..., torch.Tensor], sizes: list[Inputs]) -> tuple[float, list[torch.Tensor]]:
    start = time.perf_counter()
    results = [call(**inputs).clone() for inputs in sizes]
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
        timed = sizes[::case.every]
        want = [case.call(model)(**inputs) for inputs in sizes]
        ours = case.call(framesmith.compile(model))
        seconds, got = _first_pass(ours, sizes)
        compiles = len(captured)
        static = case.call(framesmith.compile(model, dynamic=False, options={"max_variants": len(timed) + 1}))
        _first_pass(static, timed)
        dynamo.reset()
        dynamo.utils.counters.clear()
        peer = case.call(torch.compile(model))
        peer_seconds, _ = _first_pass(peer, sizes)
        peer_compiles = dynamo.utils.counters["stats"]["unique_graphs"]
        calls = {"eager": case.call(model), "framesmith": ours, "static": static, "torch.compile": peer}
        times = [_times(calls, inputs, rounds) for inputs in timed]
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
    known = json.loads(a.out.read_text())["rows"] if a.out.exists() else []
    rows = {row["name"]: row for row in known if "name" in row}  # of models that are not measured now
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(caches(Path(folder)))  # each contender begins without a cache
        for name in a.models.split(","):
            rows[name] = {"name": name, **measure(CASES[name], a.rounds)}
            if rows[name]["error"] > TOLERANCE:
                yield f"{name}: a result differs from eager's by {rows[name]['error']:.1e}"
            found = [rows[name] for name in CASES if name in rows]
            results = {"machine": machine.describe(), "date": time.strftime("%Y-%m-%d"), "rows": found}
            a.out.write_text(json.dumps(results, indent=1) + "\n")
    header, lines = rows_of(results)
    shown = Table(*header)
    for line in lines:
        shown.add_row(*line)
    Console().print(shown)


if __name__ == "__main__":
    raise SystemExit("\n".join(main()) or 0)
