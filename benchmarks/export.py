"""Exports of many models with a dynamic batch (and length): saved, loaded in a process without the models' source, run
at three sizes, compared with eager; and the time of an export beside torch.export's.

    python -m benchmarks.export named|transformers|timm [--only PATTERN] [--count N] [--times] [--out FILE]

A batch of models is exported by one process and read by another, which has neither their source nor their library.
`--times`: each export three times, in turn with `torch.export.export(strict=False)` of the same call, both warm.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks import machine

RESULTS = Path(__file__).parent / "results"
TOLERANCE = 1e-3
BATCHES = (2, 1, 3)
ROUNDS = 3
TOGETHER = 8
"""Models of one process."""

CHECK = """
import json, sys, torch, framesmith
from framesmith.export.trees import flatten

def far(a, b):
    a, b = a.double(), b.double()
    error = ((a - b).abs().max() / b.abs().max().clamp_min(1e-6)).item() if a.numel() else 0.0
    return error if error == error else 0.0 if torch.equal(a.isnan(), b.isnan()) else 9.0

for name in sys.argv[2:]:
    note = None
    try:
        program, worst = framesmith.load(f"{sys.argv[1]}/{name}.program"), 0.0
        for kwargs, want, exact in torch.load(f"{sys.argv[1]}/{name}.cases"):
            got = [x for x in flatten(program(**kwargs))[0] if isinstance(x, torch.Tensor)]
            assert [x.shape for x in got] == [x.shape for x in want], "shapes"
            for a, b, c in zip(got, want, exact):
                error = far(a, b)
                if error > 1e-3 and c is not None and far(a, c) <= 1.5 * far(b, c):
                    note, error = f"as near to float64 as eager, which is off by {far(b, c):.1e}", 0.0
                worst = max(worst, error)
        problem = None
    except Exception as e:
        worst, problem = None, f"{type(e).__name__}: {e}"
    print(json.dumps([name, worst, problem, note]), flush=True)
assert not {"transformers", "timm", "benchmarks"} & set(sys.modules)
"""


# --- the named models, small

class UNet(nn.Module):
    """Two levels down, two up, with skips (Ronneberger et al. 2015)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList([_double(3, width), _double(width, 2 * width)])
        self.middle = _double(2 * width, 4 * width)
        self.up = nn.ModuleList([_double(6 * width, 2 * width), _double(3 * width, width)])
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for block, skip in zip(self.up, reversed(kept), strict=True):
            x = nn.functional.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = block(torch.cat([x, skip], 1))
        return self.last(x)


def _double(wide_in: int, wide_out: int) -> nn.Module:
    layers: list[nn.Module] = []
    for wide in (wide_in, wide_out):
        layers += [nn.Conv2d(wide, wide_out, 3, padding=1), nn.BatchNorm2d(wide_out), nn.ReLU()]
    return nn.Sequential(*layers)


def _ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 100, (batch, length))


def _text(cls: str, config: str, **options: Any) -> tuple[nn.Module, Callable[[int, int], dict[str, Any]]]:
    import transformers
    return (getattr(transformers, cls)(getattr(transformers, config)(**options)),
            lambda n, k: {"input_ids": _ids(n, k)})


def _picture(name: str, side: int = 64, **options: Any) -> tuple[nn.Module, Callable[[int, int], dict[str, Any]]]:
    import timm
    return timm.create_model(name, pretrained=False, **options), lambda n, k: {"x": torch.randn(n, 3, side, side)}


def _t5() -> tuple[nn.Module, Callable[[int, int], dict[str, Any]]]:
    model, _ = _text("T5ForConditionalGeneration", "T5Config", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                     vocab_size=200)
    return model, lambda n, k: {"input_ids": _ids(n, k), "decoder_input_ids": _ids(n, k)}


def _whisper() -> tuple[nn.Module, Callable[[int, int], dict[str, Any]]]:
    model, _ = _text("WhisperForConditionalGeneration", "WhisperConfig", d_model=32, encoder_layers=2, decoder_layers=2,
                     encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
                     vocab_size=200, max_source_positions=50, max_target_positions=64, pad_token_id=0,
                     bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    return model, lambda n, k: {"input_features": torch.randn(n, 80, 100), "decoder_input_ids": _ids(n, k)}


def _dlrm() -> tuple[nn.Module, Callable[[int, int], dict[str, Any]]]:
    from benchmarks.models import DLRM
    return DLRM(8, 100), lambda n, k: {
        "dense": torch.randn(n, 13), "indices": torch.randint(0, 100, (8, 4 * n)),
        "offsets": torch.arange(0, 4 * n, 4).repeat(8, 1)}


def _lstm() -> tuple[nn.Module, Callable[[int, int], dict[str, Any]]]:
    from benchmarks.models import TwoLayerLSTM
    return TwoLayerLSTM(16, 32), lambda n, k: {"x": torch.randn(n, k, 16)}


_BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
         "vocab_size": 200}
NAMED: dict[str, Callable[[], tuple[nn.Module, Callable[[int, int], dict[str, Any]]]]] = {
    "BERT": lambda: _text("BertForMaskedLM", "BertConfig", **{**_BERT, "num_hidden_layers": 12}),
    "GPT-2": lambda: _text("GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=12, n_head=4, vocab_size=200),
    "Llama": lambda: _text("LlamaForCausalLM", "LlamaConfig", **{**_BERT, "num_hidden_layers": 12},
                           num_key_value_heads=2),
    "ResNet-18": lambda: _picture("resnet18"), "ResNet-50": lambda: _picture("resnet50"),
    "MobileNetV3": lambda: _picture("mobilenetv3_small_100"),
    "EfficientNet": lambda: _picture("efficientnet_b0"),
    "ViT": lambda: _picture("vit_tiny_patch16_224", img_size=64),
    "ConvNeXt": lambda: _picture("convnext_atto"),
    "Swin": lambda: _picture("swin_tiny_patch4_window7_224", 224, embed_dim=24, depths=(2, 2, 2, 2)),
    "T5": _t5, "Whisper": _whisper, "U-Net": lambda: (UNet(), lambda n, k: {"x": torch.randn(n, 3, 8 * k, 8 * k)}),
    "DLRM": _dlrm, "LSTM": _lstm,
}
_BY_HAND = {"DLRM": lambda dim: {"dense": {0: dim}, "indices": {1: 4 * dim}, "offsets": {1: dim}}}


def _named(name: str) -> tuple[nn.Module, list[dict[str, Any]]]:
    import benchmarks.models  # noqa: F401 - before transformers
    torch.manual_seed(0)
    model, inputs = NAMED[name]()
    return model.eval(), [inputs(n, k) for n, k in zip(BATCHES, (8, 5, 11), strict=True)]


# --- the models of a library, called as the breadth suites call them

def _of_suite(suite: str, name: str) -> tuple[nn.Module, list[dict[str, Any]]]:
    case = importlib.import_module(f"benchmarks.breadth.{suite}").case(name)
    model = case.build()
    given = case.inputs(model)
    batch = max((x.shape[0] for x in given.values() if isinstance(x, torch.Tensor) and x.dim()), default=1)
    return model, [{k: _rows(x, n, batch) for k, x in given.items()} for n in BATCHES]


def _rows(x: Any, count: int, batch: int) -> Any:
    if not isinstance(x, torch.Tensor) or not x.dim() or x.shape[0] != batch:
        return x
    return x[torch.arange(count) % batch].clone()


def _dims(name: str, cases: list[dict[str, Any]], dim: Any) -> dict[str, Any]:
    """A named batch for each dimension of which the size is the batch's in all cases; what varies else by itself."""
    if name in _BY_HAND:
        return _BY_HAND[name](dim("batch"))
    shapes: dict[str, Any] = {}
    for key, first in cases[0].items():
        if not isinstance(first, torch.Tensor):
            shapes[key] = None
            continue
        sizes = [[case[key].shape[d] for case in cases] for d in range(first.dim())]
        shapes[key] = {d: dim("batch") if tuple(s) == BATCHES and not d else dim.AUTO
                       for d, s in enumerate(sizes) if len(set(s)) > 1}
    return shapes


# --- one process of exports

def _export_all(suite: str, names: list[str], folder: Path, times: bool) -> None:
    import framesmith
    build = _named if suite == "named" else lambda name: _of_suite(suite, name)
    for name in names:
        row: dict[str, Any] = {"name": name}
        try:
            model, cases = build(name)
            row["stage"] = "eager"
            with torch.no_grad():
                want = [_tensors(model(**kwargs)) for kwargs in cases]
            torch.save(list(zip(cases, want, _exact(model, cases, want), strict=True)), folder / f"{_file(name)}.cases")
            row["stage"] = "export"
            start = time.perf_counter()
            program = framesmith.export(model, (), cases[0], dynamic_shapes=_dims(name, cases, framesmith.Dim))
            row["first"] = time.perf_counter() - start
            row.update(nodes=sum(n.op == "call_function" for n in program.graph.nodes),
                       dimensions={k: list(v) for k, v in program.dimensions.items()})
            row["stage"] = "save"
            program.save(folder / f"{_file(name)}.program")
            row["stage"] = "saved"
            if times:
                row["times"] = _times(name, model, cases)
        except Exception as e:
            row["problem"] = f"{type(e).__name__}: {e}"[:600]
            if type(e).__name__ == "NoModel" or row.get("stage", "build") in ("build", "eager"):
                row["problem"] = f"no model: {row['problem']}"
        print(json.dumps(row), flush=True)


def _tensors(result: Any) -> list[torch.Tensor]:
    from framesmith.export.trees import flatten
    return [x for x in flatten(result)[0] if isinstance(x, torch.Tensor)]


def _exact(model: nn.Module, cases: list[dict[str, Any]], want: list[list[torch.Tensor]]) -> list[list[Any]]:
    """The results in float64; None for each where the model does not take it."""
    try:
        double = copy.deepcopy(model).double()
        with torch.no_grad():
            found = [_tensors(double(**{k: _double_of(x) for k, x in kwargs.items()})) for kwargs in cases]
    except Exception:
        return [[None] * len(row) for row in want]
    return [[e if x.is_floating_point() and e.shape == x.shape else None for e, x in zip(got, row, strict=True)]
            for got, row in zip(found, want, strict=True)]


def _double_of(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _times(name: str, model: nn.Module, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """The median seconds of each exporter, in turn; the peer's error if it has one. Caches of keys and values are left
    out of the results, where the peer takes none."""
    import framesmith
    for part in model.modules():
        if hasattr(config := getattr(part, "config", None), "use_cache"):
            config.use_cache = False
    peer_dims = _dims(name, cases, torch.export.Dim)
    one = nn.Sequential(nn.Linear(2, 2))
    torch.export.export(one, (torch.randn(3, 2),), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False)
    exporters: dict[str, Callable[[], Any]] = {
        "framesmith": lambda: framesmith.export(model, (), cases[0],
                                                dynamic_shapes=_dims(name, cases, framesmith.Dim)),
        "torch.export": lambda: torch.export.export(model, (), cases[0], dynamic_shapes=peer_dims, strict=False),
    }
    found: dict[str, Any] = {key: [] for key in exporters}
    for _ in range(ROUNDS):
        for key, run in exporters.items():
            if isinstance(found[key], str):
                continue
            start = time.perf_counter()
            try:
                with torch.no_grad():
                    run()
            except Exception as e:
                found[key] = f"{type(e).__name__}: {e}"[:300]
                continue
            found[key].append(time.perf_counter() - start)
    return {key: value if isinstance(value, str) else statistics.median(value) for key, value in found.items()}


def _file(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _lines(command: list[str], limit: float) -> Iterator[Any]:
    """JSON lines that a process prints, until it ends or has taken its time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit,
                              env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])})
        text = done.stdout
    except subprocess.TimeoutExpired as e:
        text = (e.stdout or b"").decode()
    for line in text.splitlines():
        if line.startswith(("{", "[")):
            yield json.loads(line)


def judge(suite: str, names: list[str], times: bool) -> Iterator[dict[str, Any]]:
    """A row for each model: `status` is "pass", "no model", or what failed."""
    step = 1 if suite == "named" else TOGETHER
    for first in range(0, len(names), step):
        part = names[first:first + step]
        with tempfile.TemporaryDirectory(prefix="export-") as folder:
            command = [sys.executable, "-m", "benchmarks.export", suite, "--work", folder, "--names", *part]
            rows = {row["name"]: row for row in _lines([*command, *(["--times"] if times else [])], 240 * len(part))}
            saved = [n for n in part if rows.get(n, {}).get("stage") == "saved"]
            checked = {name: rest for name, *rest in _lines(
                [sys.executable, "-c", CHECK, folder, *map(_file, saved)], 240 * len(part))} if saved else {}
        for name in part:
            row = rows.get(name, {"name": name, "problem": "the process ended or took too long"})
            error, problem, note = checked.get(_file(name), (None, row.get("problem"), None))
            row["error"] = error
            if note is not None:
                row["note"] = note
            if error is not None and error <= TOLERANCE:
                row["status"] = "pass"
            else:
                text = str(problem or row.get("problem") or f"results differ by {error}")
                row["status"] = "no model" if text.startswith("no model") else "fail"
                row["problem"] = text
            yield row


def names_of(suite: str) -> list[str]:
    return list(NAMED) if suite == "named" else importlib.import_module(f"benchmarks.breadth.{suite}").names()


HEADER = ["model", "operators", "largest difference", "framesmith", "torch.export", "of it"]


def rows_of(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the table of a run with times."""
    rows = []
    for name, row in results["models"].items():
        times = row.get("times", {})
        ours, peer = times.get("framesmith"), times.get("torch.export")
        both = isinstance(ours, float) and isinstance(peer, float)
        rows.append([name, str(row.get("nodes", "–")), f"{row['error']:.1e}" if row["error"] is not None else "fails",
                     f"{ours:.2f} s" if isinstance(ours, float) else "–",
                     f"{peer:.2f} s" if isinstance(peer, float) else "fails" if peer else "–",
                     f"{ours / peer:.0%}" if both else "–"])
    return HEADER, rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=("named", "transformers", "timm"))
    parser.add_argument("--only", default="",
                        help="a regular expression that names must match; results of others stay in the file")
    parser.add_argument("--count", type=int, default=None, help="stop after so many that pass")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--work", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="*", default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work is not None:
        _export_all(args.suite, args.names, args.work, args.times)
        return
    console, out = Console(), args.out or RESULTS / f"export-{args.suite}.json"
    found = json.loads(out.read_text())["models"] if args.only and out.exists() else {}
    for row in judge(args.suite, [n for n in names_of(args.suite) if re.search(args.only, n)], args.times):
        name = row.pop("name")
        found[name] = row
        if row["status"] == "fail":
            console.print(f"{name}: {row['problem']}", markup=False, highlight=False)
        passed = sum(r["status"] == "pass" for r in found.values())
        results = {"date": datetime.date.today().isoformat(), "machine": machine.describe(), "load": os.getloadavg()[0],
                   "passed": passed, "counted": sum(r["status"] != "no model" for r in found.values()),
                   "models": dict(sorted(found.items())) if args.only else found}
        out.write_text(json.dumps(results, indent=1) + "\n")
        if args.count is not None and passed >= args.count:
            break
    header, rows = rows_of(results)
    made = Table(*header, title=f"{results['passed']} of {results['counted']} exported, loaded and equal")
    for cells in rows:
        made.add_row(*cells)
    console.print(made)


if __name__ == "__main__":
    main()
